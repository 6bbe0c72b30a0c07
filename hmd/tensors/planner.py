# SPDX-License-Identifier: MIT
"""What all planners of a step share: the problem, the protocol, and the planners by name.

A planner is one file of hmd/tensors/planners with a function ``plan_step``, which takes a
:class:`StepProblem` and returns a :class:`hmd.tensors.move_plan.MovePlan`. Planners choose, the
simulator prices; a planner calls the simulator only to search.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pkgutil import resolve_name
from typing import Final

from hmd.base.errors import UsageError
from hmd.tensors.lifetimes import Vitality, vitality
from hmd.tensors.memory_system import MemorySystem, PricingRules
from hmd.tensors.move_plan import MovePlan
from hmd.tensors.simulator import StepResult, simulate_step
from hmd.tensors.step_state import planning_time
from hmd.tensors.trace import TensorTrace


@dataclass
class MadePlans:
    """The plans made for a problem so far, with the CPU time that each took, compiling apart.

    ``reused_s`` sums the times of plans that were taken from here instead of being made again.
    """

    plans: dict[str, tuple[MovePlan, float]] = field(default_factory=dict)
    reused_s: float = 0.0

    def plan(self, name: str, make: Callable[[], MovePlan]) -> MovePlan:
        """Return the plan of a planner, made once."""
        if name in self.plans:
            self.reused_s += self.plans[name][1]
        else:
            reused = self.reused_s
            with planning_time() as spent:
                plan = make()
            self.plans[name] = plan, spent.seconds + self.reused_s - reused
        return self.plans[name][0]

    def seconds(self, name: str) -> float:
        """Return the CPU time of a plan, that of the plans which it tried included."""
        return self.plans[name][1]


@dataclass(frozen=True)
class StepProblem:
    """A step to plan: its trace, the memory system, and the rules of its price."""

    trace: TensorTrace
    system: MemorySystem
    rules: PricingRules
    made: MadePlans = field(default_factory=MadePlans, compare=False, repr=False)

    @cached_property
    def life(self) -> Vitality:
        """The lives of the trace's tensors."""
        return vitality(self.trace)

    @property
    def none(self) -> int:
        """The number that stands for "not allocated" in moves."""
        return len(self.system.tiers)

    def price(
        self, plan: MovePlan, *, steps: int = 2, limit_seconds: float = math.inf
    ) -> StepResult:
        """Simulate a plan; raises MovePlanError for one that cannot be carried out.

        With ``limit_seconds`` also for one that takes longer, without simulating it to its end.
        """
        return simulate_step(
            self.trace, self.system, self.rules, plan, steps=steps, limit_seconds=limit_seconds
        )


PlanStep = Callable[..., MovePlan]
"""Takes a :class:`StepProblem`, and ``factor`` where the entry has one."""


@dataclass(frozen=True, slots=True)
class PlannerEntry:
    """A planner by name; ``plan_step`` is ``MODULE:FUNCTION``, imported when it plans."""

    name: str
    plan_step: str
    summary: str
    in_place: bool | None = None
    """Whether kernels must be able (True) or unable (False) to compute from every tier."""

    factor: float | None = None
    """Factor of the target that ``g10`` fills."""

    def suits(self, system: MemorySystem) -> bool:
        """Return whether the planner can plan for a memory system."""
        return self.in_place is None or self.in_place == system.in_place

    def plan(self, problem: StepProblem) -> MovePlan:
        """Return this planner's plan, made once; UsageError where it does not suit the system."""
        if not self.suits(problem.system):
            raise UsageError(f"planner {self.name} does not plan for {problem.system.name}")
        plan_step: PlanStep = resolve_name(self.plan_step)
        options = {} if self.factor is None else {"factor": self.factor}
        return problem.made.plan(self.name, lambda: plan_step(problem, **options))


_HERE: Final = "hmd.tensors.planners"

PLANNERS: Final = {
    entry.name: entry
    for entry in (
        PlannerEntry("lru", f"{_HERE}.lru:plan_lru", "no moves: pages come on faults"),
        PlannerEntry("lru-free", f"{_HERE}.lru:plan_lru_free", "dead tensors are freed, no moves"),
        PlannerEntry("g10", f"{_HERE}.g10:plan_step", "G10 (MICRO 2023): evict by relief", False),
        PlannerEntry("autotm", f"{_HERE}.autotm:plan_step", "an integer program; moves overlap"),
        PlannerEntry("autotm-static", f"{_HERE}.autotm:plan_static", "the same, no moves", True),
        PlannerEntry("autotm-sync", f"{_HERE}.autotm:plan_sync", "the same; kernels wait", True),
        PlannerEntry("capuchin", f"{_HERE}.capuchin:plan_step", "computes tensors again", False),
        PlannerEntry("deeptm", f"{_HERE}.deeptm:plan_step", "groups, weighted heat, learning"),
        PlannerEntry("myelin", f"{_HERE}.myelin:plan_step", "streams optimizer state", False),
        PlannerEntry("sentinel", f"{_HERE}.sentinel:plan_step", "moves by intervals of kernels"),
        PlannerEntry("portfolio", f"{_HERE}.portfolio:plan_step", "the fastest of many plans"),
    )
}
"""All planners, by name."""


def planner_named(name: str) -> PlannerEntry:
    """Return a planner; raises UsageError for a name that there is not.

    ``g10@FACTOR`` is G10's planner with another target.
    """
    if name.startswith("g10@"):
        try:
            factor = float(name.removeprefix("g10@"))
        except ValueError:
            factor = 0.0
        if not 0.1 <= factor <= 10:
            raise UsageError(f"planner {name!r}: the factor is a number from 0.1 to 10")
        return replace(PLANNERS["g10"], name=name, factor=factor)
    if name not in PLANNERS:
        raise UsageError(f"no planner {name!r}: take {', '.join(PLANNERS)}, or g10@FACTOR")
    return PLANNERS[name]
