# SPDX-License-Identifier: MIT
from __future__ import annotations

import numpy as np
import pytest

from bench.tensors.training_shapes import training_trace
from hmd.base.units import MIB
from hmd.tensors.dense_placement import dense_placement
from hmd.tensors.lifetimes import vitality
from hmd.tensors.memory_system import RULES, STRICT, load_system
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners import PLANNERS
from tests.unit.tensors.conftest import R, W, in_place_system, make_trace


def test_tensor_that_is_used_more_is_fast() -> None:
    often, once = [(1.0, [(0, W)]), (1.0, [(1, W)])], [(1.0, [(0, R), (1, R)])]
    trace = make_trace([8, 8], [*often, *([(1.0, [(1, R)])] * 4), *once])
    problem = StepProblem(trace, in_place_system(8), STRICT)
    plan = dense_placement(problem)
    assert (0, 0, 1) in set(
        zip(plan.kernel.tolist(), plan.tensor.tolist(), plan.target.tolist(), strict=True)
    )
    # The other tensor is written once and read once in persistent memory.
    slow = 8 * MIB * ((1 / 10e9 - 1 / 50e9) + (1 / 40e9 - 1 / 100e9))
    found = problem.price(plan)
    assert found.seconds == pytest.approx(trace.ideal_seconds + slow, rel=1e-6)


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
