# SPDX-License-Identifier: MIT
"""What all planners of a step share: the problem, and the plans made for it so far.

:mod:`hmd.tensors.planners` has the planners.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from hmd.tensors.lifetimes import Vitality, vitality
from hmd.tensors.lower_bound import lower_bound_seconds
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
    solver_s: float = 60.0
    """CPU time that a solver of integer programs takes at most, in seconds."""

    @cached_property
    def life(self) -> Vitality:
        """The lives of the trace's tensors."""
        return vitality(self.trace)

    @cached_property
    def bound_seconds(self) -> float:
        """A time that no plan undercuts."""
        return lower_bound_seconds(self.trace, self.system, self.rules)

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
