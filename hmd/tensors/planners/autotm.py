# SPDX-License-Identifier: MIT
"""The planner ``autotm``: an integer program with moves that overlap computing.

After AutoTM's asynchronous mode (Hildebrand et al., ASPLOS 2020). Its kernels were profiled per
placement; here a kernel costs its operands' bytes at the rates of their tiers. A tensor that was
written back is moved again when it next leaves, as the simulator does.

The planner ``autotm-static``: an integer program in which tensors stay where they are born.

After AutoTM's static mode (Hildebrand et al., ASPLOS 2020).

The planner ``autotm-sync``: an integer program in which kernels wait for moves.

After AutoTM's synchronous mode (Hildebrand et al., ASPLOS 2020).

Plans in which tensors are split between tiers, where kernels compute from every tier.

The residency model without integers: a tensor's pages are in part fast and in part slow, and each
kernel of a window carries what the solver likes. The relaxation of AutoTM's program is thus a plan
itself, solved to its optimum in about a second. Some margins are tried, because pages and slots are
whole and links carry moves in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from hmd.tensors.eviction import ResidencyOptions
from hmd.tensors.move_plan import MovePlan, plan_of
from hmd.tensors.planner import StepProblem
from hmd.tensors.residency_model import ResidencyModel, residency_moves

LIMIT_S: Final = 60.0
"""CPU time that the solver takes at most."""


def plan_step(problem: StepProblem) -> MovePlan:
    """Return the plan of the best residency that the solver finds in its time."""
    return plan_of_model(problem, ResidencyOptions(), LIMIT_S)


def plan_of_model(problem: StepProblem, options: ResidencyOptions, limit_s: float) -> MovePlan:
    """Return the plan of a residency model, with the program's price and optimality gap."""
    residency = ResidencyModel(problem, options).solve(limit_s)
    moves = residency_moves(residency, problem)
    plan = plan_of(moves, synchronous=options.synchronous)
    return replace(plan, objective_seconds=residency.seconds, gap=residency.gap)


def plan_static(problem: StepProblem) -> MovePlan:
    """Return the plan of the best static residency that the solver finds in its time."""
    return plan_of_model(problem, ResidencyOptions(static=True), LIMIT_S)


def plan_sync(problem: StepProblem) -> MovePlan:
    """Return the plan of the best residency that the solver finds in its time."""
    return plan_of_model(problem, ResidencyOptions(synchronous=True), LIMIT_S)


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
