# SPDX-License-Identifier: MIT
"""Planners that repeat publications, for comparisons; names of all planners that are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from hmd.tensors.move_plan import MovePlan
from hmd.tensors.planners import PLANNERS, PlannerEntry


@dataclass(frozen=True)
class ProgramPlan(MovePlan):
    """A plan of an integer program, with the program's own price of the step.

    ``gap`` is by how much of it a better solution could be cheaper.
    """

    objective_seconds: float
    gap: float


_HERE: Final = "bench.tensors.publications"

COMPARED: Final = PLANNERS | {
    entry.name: entry
    for entry in (
        PlannerEntry("g10@1.394", f"{_HERE}.published_g10:plan_bert_512", False),
        PlannerEntry("autotm", f"{_HERE}.autotm:plan_step"),
        PlannerEntry("deeptm", f"{_HERE}.deeptm:plan_step"),
    )
}
"""All planners that are compared, by name."""


def planner_entry(name: str) -> PlannerEntry:
    """Return a planner by name: ``g10`` is the one with the ties of the original."""
    if name == "g10":
        return replace(COMPARED[name], plan_step=f"{_HERE}.published_g10:plan_step")
    return COMPARED[name]
