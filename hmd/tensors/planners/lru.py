# SPDX-License-Identifier: MIT
"""The planner ``lru``: no moves. Pages arrive on faults and leave in order of arrival.

The planner ``lru-free``: as ``lru``, but tensors are freed when they die.
"""

from __future__ import annotations

from hmd.tensors.move_plan import ANY, WHOLE, MovePlan, plan_of
from hmd.tensors.planner import StepProblem


def plan_lru(problem: StepProblem) -> MovePlan:
    """Return the empty plan."""
    del problem
    return plan_of([])


def plan_lru_free(problem: StepProblem) -> MovePlan:
    """Return a free for each tensor that dies before the last kernel ends."""
    none, kernels = problem.none, problem.trace.kernels
    deaths = enumerate(problem.life.death.tolist())
    return plan_of(
        (death, tensor, ANY, none, WHOLE) for tensor, death in deaths if 0 <= death < kernels
    )
