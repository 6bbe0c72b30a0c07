"""Plans in which tensors are split between tiers, where kernels compute from every tier.

The residency model without integers: a tensor's pages are in part fast and in part slow, and each
kernel of a window carries what the solver likes. The relaxation of AutoTM's program is thus a plan
itself, solved to its optimum in about a second. Some margins are tried, because pages and slots are
whole and links carry moves in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hmd.tensors.gap_windows import ResidencyOptions
from hmd.tensors.move_plan import MovePlan
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners.autotm import plan_of_model

_MARGINS: Final = ((1.0, 1.0), (0.99, 0.9), (0.97, 0.8))
"""Shares of the fastest tier and of the links that plans use."""

_WINDOW: Final = 60
"""Kernels next to a use in which a tensor may move; AutoTM has 15."""

_LIMIT_S: Final = 20.0


def split_plans(problem: StepProblem) -> Iterator[MovePlan]:
    """Yield a plan per margin; ArithmeticError where the solver does not finish in time."""
    for capacity, bandwidth in _MARGINS:
        options = ResidencyOptions(
            window=_WINDOW, whole=False, capacity=capacity, bandwidth=bandwidth
        )
        yield plan_of_model(problem, options, _LIMIT_S)
