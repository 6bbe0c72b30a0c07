"""The plot of a trace: time on x, address on y, coloured by the number of samples.

Parts of the address space without samples are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hmd.cli.plots.plotting import load_pyplot, save_plot
from hmd.errors import TargetError
from hmd.machine.clock import ClockKind
from hmd.trace.trace import Trace
from hmd.units import PAGE_BYTES

COLUMNS, MAX_ROWS = 400, 400


@dataclass(frozen=True, slots=True)
class SampleGrid:
    """Samples by address and time, shape ``(rows, columns)``; rows begin at ``address``."""

    address: npt.NDArray[np.uint64]
    count: npt.NDArray[np.int64]
    seconds: float
    clock: ClockKind


def grid(trace: Trace) -> SampleGrid:
    """Return the samples of all processes on a grid; TargetError where there are none."""
    samples = trace.samples
    if not len(samples):
        raise TargetError("the trace has no samples to draw: record with a shorter --period")
    page = samples.address // np.uint64(PAGE_BYTES)
    pages, place = np.unique(page, return_inverse=True)
    step = -(-len(pages) // MAX_ROWS)
    rows = -(-len(pages) // step)
    begin = min(trace.begin_ns, int(samples.time_ns[0]))
    span = max(int(samples.time_ns[-1]) - begin + 1, trace.runtime_ns, 1)
    column = (samples.time_ns - np.uint64(begin)).astype(np.float64) * (COLUMNS / span)
    cell = place // step * COLUMNS + np.minimum(column.astype(np.int64), COLUMNS - 1)
    count = np.bincount(cell, minlength=rows * COLUMNS).reshape(rows, COLUMNS)
    return SampleGrid(pages[::step] * np.uint64(PAGE_BYTES), count, span / 1e9, trace.clock)


def draw(trace: Trace, file: Path) -> None:
    """Write the plot; raises TargetError without samples, and what ``plotting`` raises."""
    seen = grid(trace)
    pyplot = load_pyplot()
    from matplotlib.colors import LogNorm

    figure, axes = pyplot.subplots(figsize=(12, 6), layout="tight")
    rows = len(seen.address)
    shown = axes.imshow(
        np.ma.masked_equal(seen.count, 0),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        extent=(0, seen.seconds, 0, rows),
        cmap="inferno",
        norm=LogNorm(1, max(2, int(seen.count.max()))),
    )
    axes.set_facecolor("black")
    figure.colorbar(shown, ax=axes, label="samples")
    marks = np.linspace(0, rows - 1, min(9, rows)).astype(int).tolist()
    axes.set_yticks([m + 0.5 for m in marks], [f"{int(seen.address[m]):x}" for m in marks])
    axes.set_ylabel("address (pages without samples left out)")
    axes.set_xlabel("seconds" if seen.clock == "monotonic" else "seconds of modelled time")
    command = " ".join(str(word) for word in trace.about.get("command", []))
    axes.set_title(command[:100] or ", ".join(p.name for p in trace.processes))
    save_plot(figure, file)
