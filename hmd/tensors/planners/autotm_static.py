"""The planner ``autotm-static``: an integer program in which tensors stay where they are born.

After AutoTM's static mode (Hildebrand et al., ASPLOS 2020).
"""

from __future__ import annotations

from hmd.tensors.gap_windows import ResidencyOptions
from hmd.tensors.move_plan import MovePlan
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners.autotm import LIMIT_S, plan_of_model


def plan_step(problem: StepProblem) -> MovePlan:
    """Return the plan of the best static residency that the solver finds in its time."""
    return plan_of_model(problem, ResidencyOptions(static=True), LIMIT_S)
