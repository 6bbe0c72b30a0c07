# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest

from bench.tensors.training_shapes import IDLE_WEIGHTS, SHAPES, scaled_system, training_trace
from hmd.tensors.lifetimes import vitality
from hmd.tensors.lower_bound import lower_bound_seconds
from hmd.tensors.memory_system import RULES
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners import PLANNERS
from hmd.tensors.trace import READ


@pytest.mark.parametrize("shape", SHAPES)
def test_trace_of_shape_writes_before_it_reads(shape: str) -> None:
    trace = training_trace(shape, 30, seed=3)
    assert trace.kernels == 90
    written = set(trace.tensor_persistent.nonzero()[0].tolist())
    for use, tensor in enumerate(trace.use_tensor.tolist()):
        if trace.use_mode[use] == READ:
            assert tensor in written
        written.add(tensor)
    assert (vitality(trace).first < 0).sum() == IDLE_WEIGHTS.get(shape, 0) * 30


@pytest.mark.parametrize("links", [0.7, 2.0])
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("shape", SHAPES)
def test_portfolio_on_unseen_shape_is_not_slower_than_g10_or_sentinel(
    shape: str, rules: str, links: float
) -> None:
    trace = training_trace(shape, 20, seed=1)
    system = scaled_system(trace, fast=0.3, host=0.6, links=links)
    problem = StepProblem(trace, system, RULES[rules])
    portfolio = problem.price(PLANNERS["portfolio"].plan(problem)).seconds
    for name in ("lru-free", "g10", "sentinel"):
        assert portfolio <= problem.price(PLANNERS[name].plan(problem)).seconds
    assert portfolio >= lower_bound_seconds(trace, system, RULES[rules]) * (1 - 1e-9)
