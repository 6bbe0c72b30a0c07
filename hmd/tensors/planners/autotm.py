# SPDX-License-Identifier: MIT
"""The planner ``autotm``: an integer program with moves that overlap computing.

After AutoTM's asynchronous mode (Hildebrand et al., ASPLOS 2020). Its kernels were profiled per
placement; here a kernel costs its operands' bytes at the rates of their tiers. A tensor that was
written back is moved again when it next leaves, as the simulator does.

The planner ``autotm-static``: an integer program in which tensors stay where they are born.

After AutoTM's static mode (Hildebrand et al., ASPLOS 2020).

The planner ``autotm-sync``: an integer program in which kernels wait for moves.

After AutoTM's synchronous mode (Hildebrand et al., ASPLOS 2020).
"""

from __future__ import annotations

from dataclasses import replace

from hmd.tensors.eviction import ResidencyOptions
from hmd.tensors.move_plan import MovePlan, plan_of
from hmd.tensors.planner import StepProblem
from hmd.tensors.residency_model import ResidencyModel, residency_moves


def plan_step(problem: StepProblem) -> MovePlan:
    """Return the plan of the best residency that the solver finds in its time."""
    return plan_of_model(problem, ResidencyOptions(), problem.solver_s)


def plan_of_model(problem: StepProblem, options: ResidencyOptions, limit_s: float) -> MovePlan:
    """Return the plan of a residency model, with the program's price and optimality gap."""
    residency = ResidencyModel(problem, options).solve(limit_s)
    moves = residency_moves(residency, problem)
    plan = plan_of(moves, synchronous=options.synchronous)
    return replace(plan, objective_seconds=residency.seconds, gap=residency.gap)


def plan_static(problem: StepProblem) -> MovePlan:
    """Return the plan of the best static residency that the solver finds in its time."""
    return plan_of_model(problem, ResidencyOptions(static=True), problem.solver_s)


def plan_sync(problem: StepProblem) -> MovePlan:
    """Return the plan of the best residency that the solver finds in its time."""
    return plan_of_model(problem, ResidencyOptions(synchronous=True), problem.solver_s)
