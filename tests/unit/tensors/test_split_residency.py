# SPDX-License-Identifier: MIT
from __future__ import annotations

import numpy as np
import pytest

from bench.tensors.training_shapes import training_trace
from hmd.base.units import MIB
from hmd.tensors.lifetimes import vitality
from hmd.tensors.memory_system import RULES, STRICT, load_system
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners import PLANNERS
from hmd.tensors.split_program import SplitProgram
from tests.unit.tensors.conftest import R, W, in_place_system, make_trace
from tests.unit.tensors.test_residency_model import chain


def problem_of(share: float, rules: str = "strict") -> StepProblem:
    """Return a chain of layers with fast memory of a share of its peak."""
    trace = chain(kernel_ms=0.5)
    fast_mib = int(vitality(trace).peak_bytes * share / MIB)
    return StepProblem(trace, in_place_system(fast_mib), RULES[rules])


def program_of(
    problem: StepProblem, capacity: float = 1.0, *, repeats: bool = True
) -> SplitProgram:
    return SplitProgram(
        problem.trace, problem.life, problem.system, repeats=repeats, capacity=capacity
    )


@pytest.mark.parametrize("share", [0.15, 0.3, 0.5, 0.8])
def test_split_plan_costs_what_the_simulator_says(share: float) -> None:
    problem = problem_of(share)
    plan, priced = program_of(problem).plan(10.0), program_of(problem).bound_seconds(10.0)
    assert problem.price(plan, steps=3).seconds == pytest.approx(priced, rel=0.07)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("share", [0.15, 0.3, 0.5, 0.8])
def test_bound_in_place_is_above_the_ideal_and_below_every_plan(share: float, rules: str) -> None:
    problem = problem_of(share, rules)
    assert problem.bound_seconds >= problem.trace.ideal_seconds
    for capacity in (0.9, 1.0):
        assert (
            problem.bound_seconds <= problem.price(program_of(problem, capacity).plan(10.0)).seconds
        )


def test_bound_in_place_counts_the_way_out_and_back() -> None:
    # Two tensors of the fast tier's size: one leaves while the other is written, and what has not
    # returned when it is read is read from the slow tier.
    kernels = [(0.1, [(0, W)]), (0.1, [(1, W)]), (0.1, [(1, R)]), (0.1, [(0, R)])]
    problem = StepProblem(make_trace([8, 8], kernels), in_place_system(8), STRICT)
    assert 1.1 < problem.bound_seconds / problem.trace.ideal_seconds < 2.0
    fits = StepProblem(problem.trace, in_place_system(16), STRICT)
    assert fits.bound_seconds == fits.trace.ideal_seconds


def test_split_plan_divides_a_tensor_that_does_not_fit() -> None:
    problem = problem_of(0.15)
    plan = program_of(problem).plan(10.0)
    assert (plan.size[plan.target == 1] < problem.trace.tensor_bytes[plan.tensor[0]]).any()


def test_split_plan_fetches_weights_that_stay() -> None:
    trace = make_trace(
        [8, 4], [(2.0, [(0, R), (1, W)]), (2.0, [(1, R)]), (2.0, []), (2.0, [(0, R)])], [0]
    )
    problem = StepProblem(trace, in_place_system(16), STRICT)
    plan = program_of(problem).plan(10.0)
    assert problem.price(plan).seconds == pytest.approx(trace.ideal_seconds, rel=1e-6)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("share", [0.15, 0.3, 0.5])
def test_portfolio_in_place_is_as_fast_as_every_planner(share: float, rules: str) -> None:
    problem = problem_of(share, rules)
    seconds = {
        name: problem.price(entry.plan(problem)).seconds
        for name, entry in PLANNERS.items()
        if entry.suits(problem.system)
    }
    # A plan within 0.01 % of the bound is not improved further.
    assert seconds["portfolio"] <= min(seconds.values()) * 1.0001


@pytest.mark.parametrize("rules", RULES)
def test_portfolio_of_long_step_in_place_is_faster_than_first_touch(rules: str) -> None:
    trace = training_trace("residual", 900, seed=2)
    system = load_system("dram-pm")
    page = system.granularity_bytes
    room = int(vitality(trace).peak_bytes * 0.2) // page * page
    problem = StepProblem(trace, system.changed({system.names[0]: room}), RULES[rules])
    portfolio = problem.price(PLANNERS["portfolio"].plan(problem))
    assert portfolio.seconds < problem.price(PLANNERS["lru-free"].plan(problem)).seconds
    assert np.all(portfolio.occupied[:, 0] <= room)
