"""Simulated runs as a picture: what the fast node served over time, and how long each run took.

matplotlib is imported here only, and only when a picture is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hmd.errors import os_error
from hmd.extras import missing_extra
from hmd.simulate.simulation import Simulated


def draw(
    runs: Mapping[str, Simulated], baselines: Mapping[str, float], file: Path, title: str
) -> None:
    """Write the picture as a PNG, or whatever matplotlib knows by the suffix.

    Raises MissingError without matplotlib, or where the file cannot be written.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        raise missing_extra("a picture", "matplotlib", "plot", "or use --json") from None
    mpl.use("agg")
    from matplotlib import pyplot

    figure, (shares, times) = pyplot.subplots(2, 1, figsize=(8, 7), layout="tight")
    for name, run in runs.items():
        shares.plot(
            [tick.end_s for tick in run.ticks],
            [100 * tick.fast_share for tick in run.ticks],
            label=name,
        )
    shares.set_xlabel("time (s, modelled)")
    shares.set_ylabel("misses that the fast node served (%)")
    shares.set_ylim(0, 100)
    shares.legend(loc="lower right")
    shares.set_title(title)
    rows = {**baselines, **{name: run.runtime_s for name, run in runs.items()}}
    colors = ["tab:gray"] * len(baselines) + [f"C{number}" for number in range(len(runs))]
    times.barh(list(rows), list(rows.values()), color=colors)
    times.invert_yaxis()
    times.set_xlabel("runtime (s, modelled)")
    try:
        figure.savefig(file, dpi=120)
    except (OSError, ValueError) as error:
        raise os_error(error, f"cannot write the picture {file}: {error}") from None
    finally:
        pyplot.close(figure)
