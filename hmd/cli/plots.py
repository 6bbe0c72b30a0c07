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
from hmd.cli.output import format_bytes, format_seconds
from hmd.estimate.breakdown import CapacitySweep
from hmd.metrics.heat_map import grid
from hmd.simulate.simulation import Simulated
from hmd.tensors.lifetimes import vitality
from hmd.tensors.move_plan import MovePlan
from hmd.tensors.planner import StepProblem
from hmd.tensors.prices import StepPrice
from hmd.tensors.simulator import StepResult
from hmd.tensors.trace import TensorKind, TensorTrace
from hmd.trace.trace import Trace

_FORMATS: Final = ("png", "svg", "pdf")
_MAX_LIFETIMES: Final = 400
"""Lifetimes drawn: those of the largest tensors."""
_MAX_NAMES: Final = 20
"""Tensors with their names: the largest, or those that move most."""
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
    file: Path, rows: int = 1, columns: int = 1, **options: Any
) -> Iterator[tuple[Any, Any]]:
    """Give a figure and its axes (``options`` are those of pyplot.subplots); then write the file.

    Raises MissingError without matplotlib, UsageError for a suffix other than .png, .svg and .pdf,
    and as ``finished_file``.
    """
    check_picture(file)
    import matplotlib

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
    with picture(file, 2, sharex=True, figsize=(7, 7)) as drawn:
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
            axes.set(facecolor=_NO_MEMORY, ylabel="address")
            _mark_addresses(axes, seen.address)


def _heat_colours(coldest: float, warmest: float) -> dict[str, Any]:
    """Return the colours of heat, none of which is black: the least can be seen on any ground."""
    from matplotlib import colormaps
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    seen = colormaps["inferno"](np.linspace(0.2, 1.0, 256))
    colours = LinearSegmentedColormap.from_list("heat", seen)
    return {"cmap": colours, "norm": LogNorm(coldest, warmest)}


def _time_unit(seconds: float) -> tuple[float, str]:
    """Return how many of a unit a second has, and the unit's name, for a time so long."""
    return (1.0, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "us")


def _byte_unit(size: float) -> tuple[int, str]:
    return (GIB, "GiB") if size >= GIB else (MIB, "MiB")


def _spread(edges: npt.NDArray[Any], at: npt.NDArray[Any], amount: npt.NDArray[Any]) -> Any:
    """Return how much falls between ``edges`` of what passes evenly between the times ``at``.

    ``amount`` has one value less than ``at``, which ascends.
    """
    return np.diff(np.interp(edges, at, np.concatenate([[0.0], np.cumsum(amount)])))


def draw_lifetimes(trace: TensorTrace, file: Path) -> None:
    """Draw the footprint over a step, and the lifetimes of its largest tensors with their names."""
    life = vitality(trace)
    second, unit = _time_unit(trace.ideal_seconds)
    byte, size_unit = _byte_unit(life.peak_bytes)
    start = np.concatenate([[0.0], np.cumsum(trace.kernel_seconds)]) * second
    with picture(file, 2, sharex=True, figsize=(9, 8)) as (figure, axes):
        axes[0].step(start[:-1], life.live_bytes / byte, where="post", label="alive")
        axes[0].step(
            start[:-1], life.working_bytes / byte, where="post", label="used by the kernel"
        )
        axes[0].set_ylabel(f"footprint ({size_unit})")
        axes[0].legend(loc="upper right")
        largest = np.argsort(-trace.tensor_bytes, kind="stable")[:_MAX_LIFETIMES]
        named = set(largest[:_MAX_NAMES].tolist())
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
        marked = [row for row, tensor in enumerate(largest.tolist()) if tensor in named]
        labels = [trace.tensor_name(int(largest[row])) for row in marked]
        axes[1].set_yticks(marked, labels, fontsize=6)
        axes[1].set(ylabel="tensors by birth", xlabel=f"time of the step ({unit})")
        axes[1].legend(loc="upper left")
        figure.suptitle(f"{trace.name}: peak {format_bytes(life.peak_bytes)}")


def draw_plan(problem: StepProblem, plan: MovePlan, result: StepResult, file: Path) -> None:
    """Draw residency by tier, use of the links, stalls, and when which tensors move."""
    names, trace = problem.system.names, problem.trace
    total = float(result.end[-1]) / result.ticks_per_second
    second, unit = _time_unit(total)
    tick = second / result.ticks_per_second
    byte, size_unit = _byte_unit(float(result.occupied.max()))
    begin, last = result.begin * tick, float(result.end[-1]) * tick
    with picture(file, 4, sharex=True, figsize=(9, 11)) as (figure, axes):
        for tier, name in enumerate(names):
            axes[0].step(begin, result.occupied[:, tier] / byte, where="post", label=name)
        axes[0].set_ylabel(f"residency ({size_unit})")
        edges = np.linspace(0.0, last, _TIME_BINS + 1)
        at, width = np.append(begin, last), edges[1] / second
        for tier, name in enumerate(names[1:], 1):
            for way, label in ((0, f"from {name}"), (1, f"to {name}")):
                rate = _spread(edges, at, result.moved[:, tier, way]) / width / 1e9
                axes[1].step(edges[:-1], rate, where="post", label=label)
        axes[1].set_ylabel("links (GB/s)")
        # A kernel waits before it computes.
        waits = np.stack([begin, begin + result.stall * tick], axis=1).ravel()
        stalled = np.stack([result.stall * tick, np.zeros(len(begin))], axis=1).ravel()
        share = _spread(edges, np.append(waits, last), stalled) / edges[1]
        axes[2].fill_between(edges[:-1], share * 100, step="post", color="tab:red")
        axes[2].set_ylabel("stall (%)")
        _draw_moved(axes[3], trace, plan, begin)
        axes[3].set_xlabel(f"time of the step ({unit})")
        for each in axes[:2]:
            each.legend(loc="upper right")
        ideal = trace.ideal_seconds / (total - float(begin[0]) / second)
        figure.suptitle(f"{trace.name}: {format_seconds(total)}, {ideal:.1%} of the ideal")


def _draw_moved(axes: Any, trace: TensorTrace, plan: MovePlan, begin: npt.NDArray[Any]) -> None:
    """Draw when the tensors with most bytes moved leave the fastest tier and return to it."""
    known = (plan.tensor < trace.tensors) & (plan.kernel < len(begin))
    size = np.minimum(plan.size, trace.tensor_bytes[np.where(known, plan.tensor, 0)])
    leaves = known & (plan.source == 0) & (plan.target > 0) & (plan.target < plan.target.max())
    moved = np.bincount(plan.tensor[leaves], size[leaves], trace.tensors)
    shown = [each for each in np.argsort(-moved, kind="stable")[:_MAX_NAMES] if moved[each] > 0]
    for row, tensor in enumerate(shown):
        of = known & (plan.tensor == tensor)
        for way, rows, mark in (("leaves", of & leaves, "v"), ("returns", of & ~leaves, "^")):
            color = "tab:red" if way == "leaves" else "tab:green"
            label = way if row == 0 else None
            height = np.full(int(rows.sum()), row)
            axes.plot(begin[plan.kernel[rows]], height, mark, ms=4, color=color, label=label)
    axes.set_yticks(range(len(shown)), [trace.tensor_name(int(each)) for each in shown], fontsize=6)
    axes.set_ylabel("most moved")
    if shown:
        axes.legend(loc="upper right")


def draw_sweep(prices: Sequence[StepPrice], tier: str, file: Path) -> None:
    """Draw the time of a step over the capacity of a tier."""
    byte, size_unit = _byte_unit(max(price.tiers[tier] or 0 for price in prices))
    second, unit = _time_unit(max(price.seconds for price in prices))
    with picture(file, figsize=(9, 5)) as (figure, axis):
        capacity = [(price.tiers[tier] or 0) / byte for price in prices]
        lines = {
            prices[0].planner: [price.seconds for price in prices],
            "lower bound": [price.bound_seconds for price in prices],
            "ideal": [price.ideal_seconds for price in prices],
        }
        for label, seconds in lines.items():
            axis.plot(capacity, np.array(seconds) * second, marker="o", label=label)
        axis.set(xlabel=f"capacity of {tier} ({size_unit})", ylabel=f"time of the step ({unit})")
        axis.set_ylim(0, 1.08 * second * max(price.seconds for price in prices))
        axis.margins(x=0.04)
        axis.legend()
        figure.suptitle(f"{prices[0].trace}, rules {prices[0].rules}")


def draw_simulation(
    runs: Mapping[str, Simulated], baselines: Mapping[str, float], file: Path, title: str
) -> None:
    """Draw the fast node's share of misses over time, and runtimes with those of ``baselines``."""
    with picture(file, 2, figsize=(8, 7)) as (_, (shares, times)):
        for name, run in runs.items():
            shares.plot(*fast_shares(run), label=name)
        shares.set(xlabel="time (s, modelled)", ylabel="misses served by the fast node (%)")
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
    with picture(file, figsize=(8, 5)) as (_, axes):
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
        axes.set(xlabel="fast memory for the hottest pages (MiB)", ylabel="predicted runtime (s)")
        axes.set_ylim(0, 1.1 * float(seconds.max()))
        axes.set_title(title or "runtime versus fast-tier capacity")


def count_samples(trace: Trace) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64], int]:
    """Return samples by address and time, the address of each row, and the nanoseconds of all.

    Pages without samples are left out. Raises TargetError without samples.
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
    return count, pages[::pages_per_row] * np.uint64(PAGE_BYTES), span_ns


def draw_trace(trace: Trace, file: Path) -> None:
    """Draw samples over time and address, as ``count_samples`` counts them."""
    count, addresses, span_ns = count_samples(trace)
    rows = len(addresses)
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
        _mark_addresses(axes, addresses)
        axes.set(
            ylabel="address (pages without samples left out)",
            xlabel="seconds" if trace.clock == "monotonic" else "seconds of modelled time",
        )
        command = " ".join(str(word) for word in trace.about.get("command", []))
        axes.set_title(command[:100] or ", ".join(p.name for p in trace.processes))
