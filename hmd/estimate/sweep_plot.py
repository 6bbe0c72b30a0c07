"""A sweep as a picture: runtime against the capacity of the fast tier, the knee marked.

matplotlib is imported here only, and only when a picture is made.
"""

from __future__ import annotations

from pathlib import Path

from hmd.errors import os_error
from hmd.estimate.capacity_sweep import CapacitySweep
from hmd.extras import missing_extra

_MIB = 2.0**20


def draw(sweep: CapacitySweep, file: Path, title: str | None = None) -> None:
    """Write the picture of a sweep as a PNG, or whatever matplotlib knows by the suffix.

    Raises MissingError without matplotlib, or where the file cannot be written.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        raise missing_extra("a picture", "matplotlib", "plot", "or use --json") from None
    mpl.use("agg")
    from matplotlib import pyplot

    mib, seconds = sweep.fast_bytes / _MIB, sweep.runtime_ns / 1e9
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="tight")
    axes.plot(mib, seconds, color="tab:blue")
    marks = [("all slow", 0, "black", "left"), ("all fast", -1, "black", "right")]
    if sweep.knee is not None:
        marks.append(("knee", sweep.knee, "tab:red", "left"))
    for name, step, color, side in marks:
        at = float(mib[step]), float(seconds[step])
        axes.plot(*at, "o", color=color)
        told = f"{name}: {at[0]:,.1f} MiB, {at[1]:.3f} s"
        beside = (8, 8) if side == "left" else (-8, -16)
        axes.annotate(told, at, beside, textcoords="offset points", color=color, ha=side)
    axes.set_xlabel("fast memory for the hottest pages (MiB)")
    axes.set_ylabel("predicted runtime (s)")
    axes.set_ylim(0, 1.1 * float(seconds.max()))
    axes.set_title(title or "runtime against fast-tier capacity")
    try:
        figure.savefig(file, dpi=120)
    except (OSError, ValueError) as error:
        raise os_error(error, f"cannot write the picture {file}: {error}") from None
    finally:
        pyplot.close(figure)
