"""The plot of a capacity sweep: predicted runtime versus fast memory, with the knee marked."""

from __future__ import annotations

from pathlib import Path

from hmd.cli.plots.plotting import load_pyplot, save_plot
from hmd.estimate.capacity_sweep import CapacitySweep
from hmd.units import MIB


def draw(sweep: CapacitySweep, file: Path, title: str | None = None) -> None:
    """Write the plot of a sweep; raises what ``plotting`` raises."""
    pyplot = load_pyplot("or use --json")

    mib, seconds = sweep.fast_bytes / MIB, sweep.runtime_ns / 1e9
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="tight")
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
    save_plot(figure, file)
