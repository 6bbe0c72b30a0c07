# SPDX-License-Identifier: MIT
"""Planners of a training step's memory, one per file, and their names.

A planner is a file with a function ``plan_step``, which takes a
:class:`hmd.tensors.planner.StepProblem` and returns a :class:`hmd.tensors.move_plan.MovePlan`, and
a line of ``PLANNERS``. Planners choose, the simulator prices; a planner calls the simulator only to
search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Final

from hmd.base.errors import UsageError

if TYPE_CHECKING:
    from hmd.tensors.memory_system import MemorySystem
    from hmd.tensors.move_plan import MovePlan
    from hmd.tensors.planner import StepProblem

PlanStep = Callable[["StepProblem"], "MovePlan"]


@dataclass(frozen=True, slots=True)
class PlannerEntry:
    """A planner by name; ``plan_step`` is ``MODULE:FUNCTION``, imported when it plans.

    A module without a package is one of this package.
    """

    name: str
    plan_step: str
    in_place: bool | None = None
    """Whether kernels must be able (True) or unable (False) to compute from every tier."""

    def suits(self, system: MemorySystem) -> bool:
        """Return whether the planner can plan for a memory system."""
        return self.in_place is None or self.in_place == system.in_place

    def plan(self, problem: StepProblem) -> MovePlan:
        """Return this planner's plan; UsageError where it does not suit the system."""
        if not self.suits(problem.system):
            raise UsageError(f"planner {self.name} does not plan for {problem.system.name}")
        inside = "" if "." in self.plan_step else f"{__name__}."
        plan_step: PlanStep = resolve_name(inside + self.plan_step)
        return plan_step(problem)


PLANNERS: Final = {
    entry.name: entry
    for entry in (
        PlannerEntry("lru", "lru:plan_lru"),
        PlannerEntry("lru-free", "lru:plan_lru_free"),
        PlannerEntry("g10", "g10:plan_step", False),
        PlannerEntry("myelin", "myelin:plan_step", False),
        PlannerEntry("sentinel", "sentinel:plan_step"),
        PlannerEntry("portfolio", "portfolio:plan_step"),
    )
}
"""All planners, by name."""


def planner_named(name: str) -> PlannerEntry:
    """Return a planner; raises UsageError for a name that there is not."""
    if name not in PLANNERS:
        raise UsageError(f"no planner {name!r}: take {', '.join(PLANNERS)}")
    return PLANNERS[name]
