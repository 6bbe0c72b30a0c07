# SPDX-License-Identifier: MIT
"""The planner ``autotm``: an integer program with moves that overlap computing.

After AutoTM's asynchronous mode (Hildebrand et al., ASPLOS 2020). Its kernels were profiled per
placement; here a kernel costs its operands' bytes at the rates of their tiers. A tensor that was
written back is moved again when it next leaves, as the simulator does.
"""

from __future__ import annotations

from typing import Final

from bench.tensors.publications import ProgramPlan
from bench.tensors.publications.residency_model import (
    ResidencyModel,
    ResidencyOptions,
    residency_moves,
)
from hmd.tensors.move_plan import plan_of
from hmd.tensors.planner import StepProblem

SOLVER_S: Final = 60.0
"""CPU time that the solver takes at most, in seconds."""


def plan_step(problem: StepProblem) -> ProgramPlan:
    """Return the plan of the best residency that the solver finds in its time."""
    residency = ResidencyModel(problem, ResidencyOptions()).solve(SOLVER_S)
    plan = plan_of(residency_moves(residency, problem))
    columns = plan.kernel, plan.tensor, plan.source, plan.target, plan.size
    return ProgramPlan(*columns, residency.seconds, residency.gap)
