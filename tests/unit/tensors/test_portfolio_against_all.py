# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest

from bench.tensors.training_shapes import SHAPES, scaled_system, training_trace
from hmd.base.units import PAGE_BYTES
from hmd.tensors.lifetimes import vitality
from hmd.tensors.memory_system import RULES, STRICT, load_system
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners import PLANNERS, portfolio

OTHERS = ("lru", "lru-free", "g10", "sentinel", "autotm", "deeptm")
"""Planners without recomputation, and without the kinds of tensors that myelin streams."""


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("shape", SHAPES)
def test_portfolio_of_made_step_is_as_fast_as_every_planner(shape: str, rules: str) -> None:
    trace = training_trace(shape, 6, seed=2)
    system = scaled_system(trace, fast=0.1, host=0.3, links=0.7)
    problem = StepProblem(trace, system, RULES[rules])
    found = problem.price(PLANNERS["portfolio"].plan(problem)).seconds
    for name in OTHERS:
        assert found <= 1.001 * problem.price(PLANNERS[name].plan(problem)).seconds


@pytest.mark.parametrize("shape", SHAPES)
def test_portfolio_of_long_step_is_as_fast_as_quick_planners(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = training_trace(shape, 24, seed=4)
    # As if it were a step of thousands of kernels: only the plans that take seconds are tried.
    for name in ("_PROGRAM_KERNELS", "_SHORT_KERNELS", "_LONG_KERNELS"):
        monkeypatch.setattr(portfolio, name, 0)
    monkeypatch.setattr(portfolio, "_LONG_PRICED", 5 * trace.kernels)
    problem = StepProblem(trace, scaled_system(trace, fast=0.1, host=0.0, links=1.0), STRICT)
    found = problem.price(PLANNERS["portfolio"].plan(problem)).seconds
    for name in ("lru", "lru-free", "g10"):
        assert found <= problem.price(PLANNERS[name].plan(problem)).seconds


@pytest.mark.parametrize("shape", ["recurrent", "nested", "experts"])
def test_portfolio_in_place_is_as_fast_as_quick_planners(shape: str) -> None:
    trace = training_trace(shape, 6, seed=6)
    room = int(vitality(trace).peak_bytes * 0.3) // PAGE_BYTES * PAGE_BYTES
    problem = StepProblem(trace, load_system("dram-pm").changed({"dram": room}), STRICT)
    found = problem.price(PLANNERS["portfolio"].plan(problem)).seconds
    for name in ("lru", "lru-free", "sentinel", "autotm-static", "autotm-sync", "autotm"):
        assert found <= problem.price(PLANNERS[name].plan(problem)).seconds
