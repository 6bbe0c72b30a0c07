# SPDX-License-Identifier: MIT
"""The planner ``lru``: no moves. Pages arrive on faults and leave in order of arrival.

The planner ``lru-free``: as ``lru``, but tensors are freed when they die.
"""

from __future__ import annotations

from hmd.tensors.move_plan import MovePlan, free_moves, plan_of
from hmd.tensors.planner import StepProblem


def plan_lru(problem: StepProblem) -> MovePlan:
    """Return the empty plan."""
    del problem
    return plan_of([])


def plan_lru_free(problem: StepProblem) -> MovePlan:
    """Return a free for each tensor that dies before the last kernel ends."""
    return plan_of(free_moves(problem.life, problem.none))
