# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest

from bench.tensors.publications import COMPARED
from bench.tensors.training_shapes import SHAPES, scaled_system, training_trace
from hmd.base.units import PAGE_BYTES
from hmd.tensors.lifetimes import vitality
from hmd.tensors.memory_system import RULES, STRICT, load_system
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners import PLANNERS, portfolio

OTHERS = ("lru", "lru-free", "g10", "sentinel", "autotm", "deeptm")
"""Planners that suit tensors without a kind, unlike myelin."""


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("shape", SHAPES)
def test_portfolio_of_made_step_is_as_fast_as_every_planner(shape: str, rules: str) -> None:
    trace = training_trace(shape, 6, seed=2)
    system = scaled_system(trace, fast=0.1, host=0.3, links=0.7)
    problem = StepProblem(trace, system, RULES[rules])
    found = problem.price(PLANNERS["portfolio"].plan(problem)).seconds
    for name in OTHERS:
        assert found <= 1.001 * problem.price(COMPARED[name].plan(problem)).seconds


@pytest.mark.parametrize("shape", SHAPES)
def test_portfolio_of_long_step_is_as_fast_as_quick_planners(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = training_trace(shape, 24, seed=4)
    # As if it were a step of thousands of kernels: only the plans that take seconds are tried.
    monkeypatch.setattr(portfolio, "_PROGRAM_ROWS", 0)
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
    for name in ("lru", "lru-free", "sentinel", "autotm"):
        assert found <= problem.price(COMPARED[name].plan(problem)).seconds


def test_search_simulates_many_pages_in_larger_ones_and_ends_with_its_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = training_trace("chain", 24, seed=4)
    problem = StepProblem(trace, scaled_system(trace, fast=0.1, host=0.3, links=1.0), STRICT)
    monkeypatch.setattr(portfolio, "_COARSE_PAGES", 1 << 15)
    coarse = portfolio._in_coarse_pages(problem)
    page = coarse.system.granularity_bytes
    assert page > 4096
    assert vitality(trace).peak_bytes / page <= 1 << 15
    plan = PLANNERS["g10"].plan(problem)
    rough, exact = coarse.price(plan).seconds, problem.price(plan).seconds
    assert rough == pytest.approx(exact, rel=0.02)
    monkeypatch.setattr(portfolio, "BUDGET_S", 0.0)
    assert len(portfolio.plan_step(problem)) == 0
