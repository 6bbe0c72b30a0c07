from __future__ import annotations

import pytest

from bench.training_shapes import SHAPES, scaled_system, training_trace
from hmd.tensors.planner import PLANNERS, StepProblem
from hmd.tensors.pricing_rules import RULES

OTHERS = ("lru", "lru-free", "g10", "sentinel", "autotm", "deeptm")
"""Planners without recomputation, and without the kinds of tensors that myelin streams."""


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("shape", SHAPES)
def test_ours_of_made_step_is_as_fast_as_every_planner(shape: str, rules: str) -> None:
    trace = training_trace(shape, 6, seed=2)
    system = scaled_system(trace, fast=0.1, host=0.3, links=0.7)
    problem = StepProblem(trace, system, RULES[rules])
    ours = problem.price(PLANNERS["ours"].plan(problem)).seconds
    for name in OTHERS:
        assert ours <= 1.001 * problem.price(PLANNERS[name].plan(problem)).seconds
