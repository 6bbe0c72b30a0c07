"""The plot of simulated runs: the fast node's share of misses over time, and all runtimes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hmd.cli.plots.plotting import load_pyplot, save_plot
from hmd.simulate.simulation import Simulated


def draw(
    runs: Mapping[str, Simulated], baselines: Mapping[str, float], file: Path, title: str
) -> None:
    """Write the plot of ``runs`` and the runtimes of ``baselines`` in seconds, both by name.

    Raises what ``plotting`` raises.
    """
    pyplot = load_pyplot("or use --json")

    figure, (shares, times) = pyplot.subplots(2, 1, figsize=(8, 7), layout="tight")
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
    save_plot(figure, file)


def fast_shares(run: Simulated) -> tuple[list[float], list[float]]:
    """Return the ends of ticks in seconds and the fast node's share of misses in per cent.

    A tick without misses, such as the last one when the program ends early in it, has no share.
    """
    ticks = [tick for tick in run.ticks if tick.fast_misses + tick.slow_misses]
    return [tick.end_s for tick in ticks], [100 * tick.fast_share for tick in ticks]
