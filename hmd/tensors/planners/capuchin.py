# SPDX-License-Identifier: MIT
"""The planner ``capuchin``: computes again what costs less time than its transfers, moves the rest.

After Capuchin (Peng et al., ASPLOS 2020), which orders tensors by the memory saved per second of
recomputation. Several lengths of that list are tried, each with the moves of ``lru-free`` and, in a
system of three tiers, with those of ``g10``. The bound without recomputation does not hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from hmd.tensors.move_plan import MovePlan, MovePlanError
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners import g10, lru
from hmd.tensors.recomputation import Recomputation, producers, recomputed_step
from hmd.tensors.trace import READ

SHARES: Final = (0.0, 0.125, 0.25, 0.5, 1.0)
"""Shares of the list that are tried."""


def plan_step(problem: StepProblem) -> MovePlan:
    """Return the cheapest of the plans tried."""
    order = recomputations(problem)
    best: tuple[float, MovePlan] | None = None
    for count in sorted({round(share * len(order)) for share in SHARES}):
        chosen = tuple(sorted(order[:count]))
        for plan in _plans(problem, chosen):
            try:
                price = problem.price(plan).seconds
            except MovePlanError:
                # What runs again may need more at once than the fastest tier has.
                continue
            if best is None or price < best[0]:
                best = price, plan
    if best is None:
        return lru.plan_lru(problem)
    return best[1]


def _plans(problem: StepProblem, chosen: tuple[Recomputation, ...]) -> Iterator[MovePlan]:
    """Yield plans of a step with recomputations."""
    step = StepProblem(recomputed_step(problem.trace, chosen), problem.system, problem.rules)
    yield replace(lru.plan_lru(step), recompute=chosen)
    if len(problem.system.tiers) > 2:
        yield replace(g10.plan_step(step), recompute=chosen)


def recomputations(problem: StepProblem) -> list[Recomputation]:
    """Return what takes less time to compute again than to move, most bytes per second first.

    A tensor is computed again at the end of its longest inactive period that covers the peak.
    """
    trace, periods = problem.trace, problem.life.periods
    able = producers(trace)
    over = problem.life.live_bytes > problem.system.tiers[0].capacity
    crowded = np.concatenate([[0], np.cumsum(over)])
    rate = problem.system.bandwidth(1, inwards=True)
    latency = problem.system.latency_seconds(1)
    found: dict[int, tuple[float, float, int]] = {}
    for tensor, start, end, seconds in zip(
        periods.tensor.tolist(),
        periods.start.tolist(),
        periods.end.tolist(),
        periods.seconds.tolist(),
        strict=True,
    ):
        producer = int(able[tensor])
        if producer < 0 or end <= start or crowded[end] == crowded[start]:
            continue
        again, size = float(trace.kernel_seconds[producer]), int(trace.tensor_bytes[tensor])
        if again < 2 * (latency + size / rate) and _inputs_live(problem, producer, end):
            found[tensor] = max(
                found.get(tensor, (0.0, 0.0, 0)), (seconds, size / max(again, 1e-9), end)
            )
    ranked = sorted(found.items(), key=lambda item: -item[1][1])
    return [(end, tensor) for tensor, (_, _, end) in ranked]


def _inputs_live(problem: StepProblem, producer: int, kernel: int) -> bool:
    """Return whether what a kernel read still exists when another begins."""
    trace, death = problem.trace, problem.life.death
    part = slice(int(trace.use_start[producer]), int(trace.use_start[producer + 1]))
    read = trace.use_tensor[part][(trace.use_mode[part] & READ) > 0]
    return bool(((death[read] < 0) | (death[read] > kernel)).all())
