"""Plots of planned steps.

Of one step: residency by tier, use of the links, and stalls over its time. Of a sweep: the step's
time over the capacity of a tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hmd.cli.plots.plotting import load_pyplot, save_plot
from hmd.tensors.planner import StepProblem
from hmd.tensors.step_prices import StepPrice
from hmd.tensors.step_simulator import StepResult
from hmd.units import GIB

_BINS = 200


def draw(problem: StepProblem, result: StepResult, file: Path) -> None:
    """Write the plot of a simulated step; raises what ``plotting`` raises."""
    pyplot = load_pyplot()
    names = problem.system.names
    begin = result.begin / result.ticks_per_second
    end = result.end / result.ticks_per_second
    figure, axes = pyplot.subplots(3, 1, figsize=(9, 8), sharex=True, layout="tight")
    for tier, name in enumerate(names):
        axes[0].step(begin, result.occupied[:, tier] / GIB, where="post", label=name)
    axes[0].set_ylabel("residency (GiB)")
    edges = np.linspace(0.0, end[-1], _BINS + 1)
    slot = np.clip(np.searchsorted(edges, begin, side="right") - 1, 0, _BINS - 1)
    width = edges[1] - edges[0]
    for tier, name in enumerate(names[1:], 1):
        for way, label in ((0, f"from {name}"), (1, f"to {name}")):
            moved = np.bincount(slot, result.moved[:, tier, way], _BINS)
            axes[1].step(edges[:-1], moved / width / 1e9, where="post", label=label)
    axes[1].set_ylabel("links (GB/s)")
    stalled = np.bincount(slot, result.stall / result.ticks_per_second, _BINS)
    axes[2].fill_between(edges[:-1], stalled / width * 100, step="post", color="tab:red")
    axes[2].set_ylabel("stall (%)")
    axes[2].set_xlabel("time of the step (s)")
    for each in axes[:2]:
        each.legend(loc="upper right")
    share = problem.trace.ideal_seconds / (end[-1] - begin[0])
    figure.suptitle(f"{problem.trace.name}: {end[-1]:.2f} s, {share:.1%} of the ideal")
    save_plot(figure, file)


def draw_sweep(prices: Sequence[StepPrice], tier: str, file: Path) -> None:
    """Write the plot of a sweep over the capacity of a tier; raises what ``plotting`` raises."""
    pyplot = load_pyplot()
    figure, axis = pyplot.subplots(figsize=(9, 5), layout="tight")
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
    save_plot(figure, file)
