# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest

from bench.tensors.publications import COMPARED
from hmd.base.errors import UsageError
from hmd.tensors.lower_bound import lower_bound_seconds
from hmd.tensors.memory_system import RULES, STRICT, MemorySystem
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners import planner_named
from hmd.tensors.planners.g10 import TARGET, G10Planner
from tests.unit.tensors.conftest import R, W, in_place_system, make_trace, small_system
from tests.unit.tensors.test_residency_model import chain


@pytest.mark.parametrize("system", [small_system(44), in_place_system(30)], ids=["gpu", "in-place"])
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", COMPARED)
def test_planner_makes_a_plan_that_the_simulator_accepts(
    name: str, rules: str, system: MemorySystem
) -> None:
    problem = StepProblem(chain(), system, RULES[rules])
    if not COMPARED[name].suits(system):
        with pytest.raises(UsageError, match=f"planner {name} does not plan for"):
            COMPARED[name].plan(problem)
        return
    price = problem.price(COMPARED[name].plan(problem))
    assert price.seconds >= lower_bound_seconds(problem.trace, system, problem.rules) * 0.9999


@pytest.mark.parametrize("name", ["sentinel", "autotm"])
def test_planner_with_moves_beats_faults(name: str) -> None:
    problem = StepProblem(chain(), small_system(44), STRICT)
    lru = problem.price(planner_named("lru-free").plan(problem)).seconds
    assert problem.price(COMPARED[name].plan(problem)).seconds < lru


def test_planner_of_unknown_name_is_refused_with_the_names() -> None:
    with pytest.raises(UsageError, match="no planner 'best': take lru, "):
        planner_named("best")


def test_g10_with_higher_target_evicts_less() -> None:
    problem = StepProblem(chain(), small_system(30), STRICT)
    plans = [G10Planner(problem, TARGET * factor).plan() for factor in (1.0, 1.3, 5.0)]
    evicted = [int(((each.target > 0) & (each.target < problem.none)).sum()) for each in plans]
    assert evicted[0] > evicted[1] > evicted[2] == 0


@pytest.mark.parametrize("system", [small_system(44), in_place_system(30)], ids=["gpu", "in-place"])
def test_autotm_of_step_without_gaps_evicts_nothing(system: MemorySystem) -> None:
    problem = StepProblem(make_trace([8], [(1, [(0, W)]), (1, [(0, R)])]), system, STRICT)
    plan = COMPARED["autotm"].plan(problem)
    assert not (plan.target == 1).any()
