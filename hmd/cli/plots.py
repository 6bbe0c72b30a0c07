# SPDX-License-Identifier: MIT
"""The pictures that commands draw, as PNG, SVG or PDF by the suffix of their file.

matplotlib is an optional dependency (extra plot). It is imported here only, and only when a picture
is drawn: the import takes about 0.3 s. Each ``draw_`` function raises MissingError without it, and
as :func:`save_plot`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hmd.base.atomic_file import check_writable, finished_file
from hmd.base.errors import TargetError, UsageError, missing_extra
from hmd.base.units import GIB, MIB, PAGE_BYTES
from hmd.estimate.capacity_sweep import CapacitySweep
from hmd.metrics.heat_map import grid
from hmd.simulate.simulation import Simulated
from hmd.tensors.lifetimes import vitality
from hmd.tensors.planner import StepProblem
from hmd.tensors.prices import StepPrice
from hmd.tensors.simulator import StepResult
from hmd.tensors.trace import TensorKind, TensorTrace
from hmd.trace.trace import Trace

_FORMATS: Final = ("png", "svg", "pdf")
_MAX_LIFETIMES: Final = 400
"""Lifetimes drawn: those of the largest tensors."""
_TIME_BINS: Final = 200
_GRID_COLUMNS, _GRID_ROWS = 400, 400
_NO_MEMORY: Final = "0.85"
"""Grey, for addresses without pages or samples."""


def check_picture(file: Path | None, instead: str = "") -> None:
    """Raise, before the work begins, what drawing would raise after it. None is no picture.

    ``instead`` names an option that does without matplotlib.
    """
    if file is None:
        return
    _format(file)
    check_writable(file)
    if find_spec("matplotlib") is None:
        raise missing_extra("a picture", "matplotlib", "plot", instead)


@contextmanager
def picture(
    file: Path, rows: int = 1, columns: int = 1, *, instead: str = "", **options: Any
) -> Iterator[tuple[Any, Any]]:
    """Give a figure and its axes (``options`` are those of pyplot.subplots); then write the file.

    Raises MissingError without matplotlib, UsageError for a suffix other than .png, .svg and .pdf,
    and as ``finished_file``.
    """
    try:
        import matplotlib
    except ImportError:
        raise missing_extra("a picture", "matplotlib", "plot", instead) from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(rows, columns, layout="tight", **options)
    try:
        yield figure, axes
        with finished_file(file) as opened:
            figure.savefig(opened, dpi=120, format=_format(file))
    finally:
        pyplot.close(figure)


def _format(file: Path) -> str:
    form = file.suffix[1:].lower()
    if form not in _FORMATS:
        raise UsageError(f"picture {file}: its name must end in .png, .svg or .pdf")
    return form


def _mark_addresses(axes: Any, addresses: npt.NDArray[np.uint64]) -> None:
    """Label up to nine rows of a grid with their addresses."""
    marks = np.linspace(0, len(addresses) - 1, min(9, len(addresses))).astype(int).tolist()
    axes.set_yticks([m + 0.5 for m in marks], [f"{int(addresses[m]):x}" for m in marks])


def draw_heatmap(
    document: Mapping[str, Any], pid: int, file: Path, title: str | None = None
) -> None:
    """Draw one process's heat map: time on x, address on y; left heat, right tier.

    Raises TargetError where the document has none of this process.
    """
    seen = grid(document, pid)
    with picture(file, 2, instead="or use --json", sharex=True, figsize=(7, 7)) as drawn:
        figure, (above, below) = drawn
        warmest = float(np.nanmax(seen.heat, initial=0.0)) or 1.0
        last = seen.seconds[-1] - seen.seconds[-2] if len(seen.seconds) > 1 else 1.0
        edges = [*seen.seconds.tolist(), float(seen.seconds[-1] + (last or 1.0))]
        floor = np.arange(len(seen.address) + 1)
        colours = _heat_colours(warmest / 1e3, warmest)
        hot = above.pcolormesh(edges, floor, np.maximum(seen.heat, warmest / 1e3), **colours)
        figure.colorbar(hot, ax=above, label="accesses per page and second")
        tier = below.pcolormesh(edges, floor, seen.fast * 100, cmap="Blues", vmin=0, vmax=100)
        figure.colorbar(tier, ax=below, label="pages in fast memory (%)")
        above.set_title(title or f"pid {pid}: heat of its memory, and where it lies")
        below.set_xlabel("seconds")
        for axes in (above, below):
            axes.set_facecolor(_NO_MEMORY)
            axes.set_ylabel("address")
            _mark_addresses(axes, seen.address)


def _heat_colours(coldest: float, warmest: float) -> dict[str, Any]:
    """Return the colours of heat, none of which is black: the least can be seen on any ground."""
    from matplotlib import colormaps
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    seen = colormaps["inferno"](np.linspace(0.2, 1.0, 256))
    colours = LinearSegmentedColormap.from_list("heat", seen)
    return {"cmap": colours, "norm": LogNorm(coldest, warmest)}


def draw_lifetimes(trace: TensorTrace, file: Path) -> None:
    """Draw the footprint over a step, and the lifetimes of its largest tensors."""
    life = vitality(trace)
    start = np.concatenate([[0.0], np.cumsum(trace.kernel_seconds)])
    with picture(file, 2, instead="or use --json", sharex=True, figsize=(9, 8)) as (figure, axes):
        axes[0].step(start[:-1], life.live_bytes / GIB, where="post", label="alive")
        axes[0].step(start[:-1], life.working_bytes / GIB, where="post", label="used by the kernel")
        axes[0].set_ylabel("footprint (GiB)")
        axes[0].legend(loc="upper right")
        largest = np.argsort(-trace.tensor_bytes, kind="stable")[:_MAX_LIFETIMES]
        largest = largest[np.argsort(life.birth[largest], kind="stable")]
        begin = np.where(life.birth[largest] < 0, 0, life.birth[largest])
        end = np.where(life.death[largest] < 0, trace.kernels, life.death[largest])
        for kind in TensorKind:
            rows = np.flatnonzero(trace.tensor_kind[largest] == kind)
            if len(rows):
                axes[1].hlines(
                    rows,
                    start[begin[rows]],
                    start[end[rows]],
                    color=f"C{int(kind)}",
                    label=kind.name.lower(),
                )
        axes[1].set_ylabel("tensors by birth")
        axes[1].set_xlabel("time of the step (s)")
        axes[1].legend(loc="upper left")
        figure.suptitle(f"{trace.name}: peak {life.peak_bytes / GIB:.1f} GiB")


def draw_plan(problem: StepProblem, result: StepResult, file: Path) -> None:
    """Draw residency by tier, use of the links, and stalls over the time of a step."""
    names = problem.system.names
    begin = result.begin / result.ticks_per_second
    end = result.end / result.ticks_per_second
    with picture(file, 3, sharex=True, figsize=(9, 8)) as (figure, axes):
        for tier, name in enumerate(names):
            axes[0].step(begin, result.occupied[:, tier] / GIB, where="post", label=name)
        axes[0].set_ylabel("residency (GiB)")
        edges = np.linspace(0.0, end[-1], _TIME_BINS + 1)
        slot = np.clip(np.searchsorted(edges, begin, side="right") - 1, 0, _TIME_BINS - 1)
        width = edges[1] - edges[0]
        for tier, name in enumerate(names[1:], 1):
            for way, label in ((0, f"from {name}"), (1, f"to {name}")):
                moved = np.bincount(slot, result.moved[:, tier, way], _TIME_BINS)
                axes[1].step(edges[:-1], moved / width / 1e9, where="post", label=label)
        axes[1].set_ylabel("links (GB/s)")
        stalled = np.bincount(slot, result.stall / result.ticks_per_second, _TIME_BINS)
        axes[2].fill_between(edges[:-1], stalled / width * 100, step="post", color="tab:red")
        axes[2].set_ylabel("stall (%)")
        axes[2].set_xlabel("time of the step (s)")
        for each in axes[:2]:
            each.legend(loc="upper right")
        share = problem.trace.ideal_seconds / (end[-1] - begin[0])
        figure.suptitle(f"{problem.trace.name}: {end[-1]:.2f} s, {share:.1%} of the ideal")


def draw_sweep(prices: Sequence[StepPrice], tier: str, file: Path) -> None:
    """Draw the time of a step over the capacity of a tier."""
    with picture(file, figsize=(9, 5)) as (figure, axis):
        capacity = [(price.tiers[tier] or 0) / GIB for price in prices]
        lines = {
            prices[0].planner: [price.seconds for price in prices],
            "lower bound": [price.bound_seconds for price in prices],
            "ideal": [price.ideal_seconds for price in prices],
        }
        for label, seconds in lines.items():
            axis.plot(capacity, seconds, marker="o", label=label)
        axis.set_xlabel(f"capacity of {tier} (GiB)")
        axis.set_ylabel("time of the step (s)")
        axis.set_ylim(bottom=0)
        axis.legend()
        figure.suptitle(f"{prices[0].trace}, rules {prices[0].rules}")


def draw_simulation(
    runs: Mapping[str, Simulated], baselines: Mapping[str, float], file: Path, title: str
) -> None:
    """Draw the fast node's share of misses over time, and runtimes with those of ``baselines``."""
    with picture(file, 2, instead="or use --json", figsize=(8, 7)) as (_, (shares, times)):
        for name, run in runs.items():
            shares.plot(*fast_shares(run), label=name)
        shares.set_xlabel("time (s, modelled)")
        shares.set_ylabel("misses served by the fast node (%)")
        shares.set_ylim(0, 100)
        shares.legend(loc="lower right")
        shares.set_title(title)
        rows = {**baselines, **{name: run.runtime_s for name, run in runs.items()}}
        colors = ["tab:gray"] * len(baselines) + [f"C{number}" for number in range(len(runs))]
        times.barh(list(rows), list(rows.values()), color=colors)
        times.invert_yaxis()
        times.set_xlabel("runtime (s, modelled)")


def fast_shares(run: Simulated) -> tuple[list[float], list[float]]:
    """Return the ends of ticks in seconds and the fast node's share of misses in per cent.

    A tick without misses, such as the last one when the program ends early in it, has no share.
    """
    ticks = [tick for tick in run.ticks if tick.fast_misses + tick.slow_misses]
    return [tick.end_s for tick in ticks], [100 * tick.fast_share for tick in ticks]


def draw_capacity_sweep(sweep: CapacitySweep, file: Path, title: str | None = None) -> None:
    """Draw the predicted runtime over the size of fast memory, with the knee."""
    mib, seconds = sweep.fast_bytes / MIB, sweep.runtime_ns / 1e9
    with picture(file, instead="or use --json", figsize=(8, 5)) as (_, axes):
        axes.plot(mib, seconds, color="tab:blue")
        marks = [("all slow", 0, "black", "left"), ("all fast", -1, "black", "right")]
        if sweep.knee is not None:
            marks.append(("knee", sweep.knee, "tab:red", "left"))
        for name, step, color, side in marks:
            at = float(mib[step]), float(seconds[step])
            axes.plot(*at, "o", color=color)
            label = f"{name}: {at[0]:,.1f} MiB, {at[1]:.3f} s"
            offset = (8, 8) if side == "left" else (-8, -16)
            axes.annotate(label, at, offset, textcoords="offset points", color=color, ha=side)
        axes.set_xlabel("fast memory for the hottest pages (MiB)")
        axes.set_ylabel("predicted runtime (s)")
        axes.set_ylim(0, 1.1 * float(seconds.max()))
        axes.set_title(title or "runtime versus fast-tier capacity")


def draw_trace(trace: Trace, file: Path) -> None:
    """Draw samples over time and address; pages without samples are left out.

    Raises TargetError without samples.
    """
    samples = trace.samples
    if not len(samples):
        raise TargetError("the trace has no samples to draw: record with a shorter --period")
    pages, place = np.unique(samples.address // np.uint64(PAGE_BYTES), return_inverse=True)
    pages_per_row = -(-len(pages) // _GRID_ROWS)
    rows = -(-len(pages) // pages_per_row)
    begin_ns = min(trace.begin_ns, int(samples.time_ns[0]))
    span_ns = max(int(samples.time_ns[-1]) - begin_ns + 1, trace.runtime_ns, 1)
    column = (samples.time_ns - np.uint64(begin_ns)).astype(np.float64) * (_GRID_COLUMNS / span_ns)
    column = np.minimum(column.astype(np.int64), _GRID_COLUMNS - 1)
    cell = place // pages_per_row * _GRID_COLUMNS + column
    count = np.bincount(cell, minlength=rows * _GRID_COLUMNS).reshape(rows, _GRID_COLUMNS)
    with picture(file, figsize=(12, 6)) as (figure, axes):
        shown = axes.imshow(
            np.ma.masked_equal(count, 0),
            origin="lower",
            aspect="auto",
            interpolation="nearest",
            extent=(0, span_ns / 1e9, 0, rows),
            **_heat_colours(1, max(2, int(count.max()))),
        )
        axes.set_facecolor(_NO_MEMORY)
        figure.colorbar(shown, ax=axes, label="samples")
        _mark_addresses(axes, pages[::pages_per_row] * np.uint64(PAGE_BYTES))
        axes.set_ylabel("address (pages without samples left out)")
        axes.set_xlabel("seconds" if trace.clock == "monotonic" else "seconds of modelled time")
        command = " ".join(str(word) for word in trace.about.get("command", []))
        axes.set_title(command[:100] or ", ".join(p.name for p in trace.processes))
