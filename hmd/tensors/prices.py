# SPDX-License-Identifier: MIT
"""Prices of planners on a step: one row per planner, memory system and set of rules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hmd.tensors.lower_bound import lower_bound_seconds
from hmd.tensors.memory_system import UNLIMITED
from hmd.tensors.move_plan import MovePlan
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners import PlannerEntry
from hmd.tensors.simulator import StepResult


@dataclass(frozen=True, slots=True)
class StepPrice:
    """A planned step: times in seconds; ``tiers`` has capacities in bytes, None for unlimited.

    ``plan_seconds`` is CPU time. Plans of integer programs have the program's own price and the
    relative gap to the best that there may be.
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
    objective_seconds: float | None
    gap: float | None
    recomputed: int
    """Tensors that the plan computes again; the bound is for plans without."""


def price_planner(
    problem: StepProblem, planner: PlannerEntry
) -> tuple[StepPrice, MovePlan, StepResult]:
    """Plan, simulate and return the row, the plan and its simulation.

    Raises UsageError for a planner that does not suit the system, and MovePlanError where the step
    cannot run on the system.
    """
    plan = planner.plan(problem)
    seconds = problem.made.seconds(planner.name)
    price, result = price_plan(problem, plan, planner.name, seconds)
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
        bound_seconds=lower_bound_seconds(problem.trace, system, problem.rules),
        plan_seconds=plan_seconds,
        moved_bytes=result.moved_bytes,
        objective_seconds=plan.objective_seconds,
        gap=plan.gap,
        recomputed=len(plan.recompute),
    )
    return price, result


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
