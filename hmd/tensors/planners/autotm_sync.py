"""The planner ``autotm-sync``: an integer program in which kernels wait for moves.

After AutoTM's synchronous mode (Hildebrand et al., ASPLOS 2020).
"""

from __future__ import annotations

from hmd.tensors.gap_windows import ResidencyOptions
from hmd.tensors.move_plan import MovePlan, plan_of
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners.autotm import LIMIT_S
from hmd.tensors.residency_model import ResidencyModel
from hmd.tensors.residency_moves import residency_moves


def plan_step(problem: StepProblem) -> MovePlan:
    """Return the plan of the best residency that the solver finds in its time."""
    residency = ResidencyModel(problem, ResidencyOptions(synchronous=True)).solve(LIMIT_S)
    return plan_of(residency_moves(residency, problem), synchronous=True)
