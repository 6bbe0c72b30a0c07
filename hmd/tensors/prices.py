# SPDX-License-Identifier: MIT
"""Prices of planners on a step: one row per planner, memory system and set of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np

from hmd.tensors.memory_system import UNLIMITED, MemorySystem
from hmd.tensors.move_plan import MovePlan, MovePlanError
from hmd.tensors.planner import StepProblem, planning_time
from hmd.tensors.planners import PlannerEntry
from hmd.tensors.simulator import StepResult
from hmd.tensors.trace import TensorTrace


@dataclass(frozen=True, slots=True)
class StepPrice:
    """A planned step: times in seconds; ``tiers`` has capacities in bytes, None for unlimited.

    ``plan_seconds`` is CPU time.
    """

    trace: str
    rules: str
    system: str
    tiers: dict[str, int | None]
    planner: str
    seconds: float
    ideal_seconds: float
    bound_seconds: float
    plan_seconds: float
    moved_bytes: int
    kernel_times: str
    """The device that the kernels' times are of, empty where that is not known."""


def price_planner(
    problem: StepProblem, planner: PlannerEntry
) -> tuple[StepPrice, MovePlan, StepResult]:
    """Plan, simulate and return the row, the plan and its simulation.

    Raises UsageError for a planner that does not suit the system, and MovePlanError where the step
    cannot run on the system.
    """
    with planning_time() as spent:
        plan = planner.plan(problem)
    price, result = price_plan(problem, plan, planner.name, spent.seconds)
    return price, plan, result


def price_plan(
    problem: StepProblem, plan: MovePlan, name: str, plan_seconds: float = 0.0
) -> tuple[StepPrice, StepResult]:
    """Simulate a plan from anywhere and return the row that is named so, and its simulation."""
    result = problem.price(plan)
    system = problem.system
    price = StepPrice(
        trace=problem.trace.name,
        rules=problem.rules.name,
        system=system.name,
        tiers={
            tier.name: tier.capacity if tier.capacity < UNLIMITED else None for tier in system.tiers
        },
        planner=name,
        seconds=result.seconds,
        ideal_seconds=problem.trace.ideal_seconds,
        bound_seconds=problem.bound_seconds,
        plan_seconds=plan_seconds,
        moved_bytes=result.moved_bytes,
        kernel_times=problem.trace.device,
    )
    return price, result


def planned_for(trace: TensorTrace, system: MemorySystem) -> TensorTrace:
    """Return the trace with the kernel times of the device that is planned for, as far as known.

    Times that a CPU took are replaced where the memory system has another processor, with its peak
    rates; those of an accelerator or of a graph stay.
    """
    if trace.device != "cpu" or system.processor is None or not trace.kernel_work.size:
        return trace
    return system.processor.times_of(trace)


_HALVINGS: Final = 8


@dataclass(frozen=True, slots=True)
class CapacityFound:
    """The least capacity of a tier with at most so much loss, in bytes, of those tried.

    ``bound_bytes`` is what every plan needs for that, by the lower bound; None where kernels
    compute in place.
    """

    tier: str
    share: float
    price: StepPrice
    capacity_bytes: int
    bound_bytes: int | None


def capacity_within(
    problem: StepProblem,
    tier: str,
    share: float,
    planner: PlannerEntry,
    track: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> tuple[CapacityFound, list[StepPrice]]:
    """Return the least capacity of a tier with which a step takes at most 1 + ``share`` ideals.

    By halving the interval of :func:`sweep_capacities`: what plans reach rises with the capacity,
    but for their search. The prices are those of all capacities tried, in ascending order.
    ``track`` shows progress over the plans.
    """
    system, page = problem.system, problem.system.granularity_bytes
    number = system.names.index(tier)
    low, high = (each.system.tiers[number].capacity for each in sweep_capacities(problem, tier, 2))
    limit = (1 + share) * problem.trace.ideal_seconds
    prices: dict[int, StepPrice] = {}
    plans = iter(track(range(_HALVINGS + 1)))

    def at(capacity: int) -> StepProblem:
        return StepProblem(problem.trace, system.changed({tier: capacity}), problem.rules)

    def fits(capacity: int) -> bool:
        next(plans, None)
        if capacity not in prices:
            with suppress(MovePlanError):
                prices[capacity] = price_planner(at(capacity), planner)[0]
        return capacity in prices and prices[capacity].seconds <= limit

    def bound_fits(capacity: int) -> bool:
        return at(capacity).bound_seconds <= limit

    if not fits(high):
        raise MovePlanError(
            f"{problem.trace.name}: {tier} of {high} bytes, the step's peak, does not suffice"
            f" for {share:.1%}: other tiers limit the step"
        )
    bound = None
    if not system.in_place:
        bound = low if bound_fits(low) else halved(low, high, page, 2 * _HALVINGS, bound_fits)
        low = bound
    least = low if fits(low) else halved(low, high, page, _HALVINGS - 1, fits)
    for _ in plans:
        pass  # the progress ends
    best = prices[least]
    found = CapacityFound(tier, share, best, best.tiers[tier] or least, bound)
    return found, [prices[each] for each in sorted(prices)]


def halved(low: int, high: int, step: int, times: int, fits: Callable[[int], bool]) -> int:
    """Return the least that fits of the numbers tried between ``low`` and ``high``, which fits.

    Numbers are multiples of ``step``.
    """
    for _ in range(times):
        middle = (low + high) // 2 // step * step
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def sweep_capacities(problem: StepProblem, tier: str, steps: int) -> list[StepProblem]:
    """Return problems with capacities of a tier, evenly spaced.

    Those of the first tier are from what the largest kernel needs to the peak, of others from zero
    to the peak.
    """
    life, system = problem.life, problem.system
    first = system.names[0] == tier and not system.in_place
    low = int(life.working_bytes.max() * 1.05) if first else 0
    sizes = np.linspace(low, max(life.peak_bytes, low), steps)
    page = system.granularity_bytes
    return [
        StepProblem(
            problem.trace, system.changed({tier: -(-int(size) // page) * page}), problem.rules
        )
        for size in sizes
    ]
