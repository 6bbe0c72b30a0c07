# SPDX-License-Identifier: MIT
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hmd.tensors.lifetimes import vitality
from hmd.tensors.memory_system import STRICT
from hmd.tensors.move_plan import MovePlanError, plan_document, plan_of, read_plan
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners import planner_named
from hmd.tensors.recomputation import producers, recomputed_step
from hmd.tensors.trace import TensorTrace
from tests.unit.tensors.conftest import RW, R, W, make_trace, small_system

INPUT, CHEAP, CHANGED, LARGE = range(4)


def step() -> TensorTrace:
    """Return a step that needs 18 MiB in its middle, 8 of which are cheap to compute."""
    return make_trace(
        [1, 8, 1, 8],
        [
            (0.1, [(INPUT, R), (CHEAP, W)]),
            (0.1, [(CHEAP, R), (CHANGED, W)]),
            (0.1, [(CHANGED, RW)]),
            (1, [(LARGE, W)]),
            (1, [(LARGE, R)]),
            (1, [(CHEAP, R), (CHANGED, R)]),
        ],
        persistent=[INPUT],
    )


def test_producers_leave_out_persistent_and_changed_tensors() -> None:
    assert producers(step()).tolist() == [-1, 0, -1, 3]


def test_producers_leave_out_random_kernels() -> None:
    trace = replace(step(), kernel_names=("native_dropout",))
    assert producers(trace).tolist() == [-1, -1, -1, -1]


def test_recomputed_step_runs_producer_again_and_splits_the_tensor() -> None:
    trace = recomputed_step(step(), [(5, CHEAP)])
    assert trace.kernels == 7
    assert trace.kernel_ticks[5] == trace.kernel_ticks[0]
    assert trace.uses(5).tolist() == [INPUT, 4]
    assert trace.uses(6).tolist() == [4, CHANGED]
    assert vitality(trace).death[CHEAP] == 2
    assert vitality(trace).peak_bytes == vitality(step()).peak_bytes - int(trace.tensor_bytes[1])


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ((5, CHANGED), "kernel 5, tensor 2: no kernel can compute it again"),
        ((0, CHEAP), "kernel 0, tensor 1: computed again before kernel 0 computes it"),
        ((9, CHEAP), "kernel 9, tensor 1: no such kernel or tensor"),
    ],
)
def test_recomputation_that_cannot_be_carried_out_refused(
    chosen: tuple[int, int], message: str
) -> None:
    with pytest.raises(MovePlanError, match=message):
        recomputed_step(step(), [chosen])


def test_capuchin_computes_again_what_takes_longer_to_move() -> None:
    problem = StepProblem(step(), small_system(12), STRICT)
    plan = planner_named("capuchin").plan(problem)
    assert plan.recompute == ((5, CHEAP),)
    found = problem.price(plan)
    moving = problem.price(planner_named("g10").plan(problem))
    assert len(found.begin) == 7
    assert found.seconds == pytest.approx(step().ideal_seconds + 0.1e-3, abs=0.1e-3)
    assert found.seconds < moving.seconds


def test_plan_with_recomputations_written_and_read_is_same(tmp_path: Path) -> None:
    plan = replace(plan_of([(0, 0, 3, 0, 4096)]), recompute=((5, 1),))
    names = small_system(12).names
    (tmp_path / "plan.json").write_text(json.dumps(plan_document(plan, names)))
    found = read_plan(tmp_path / "plan.json", names)
    assert found.recompute == plan.recompute
    assert np.array_equal(found.size, plan.size)


def test_plan_with_wrong_recomputation_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"moves": [], "recompute": [[5]]}')
    with pytest.raises(MovePlanError, match=r"recompute 0: write \[kernel, tensor\]"):
        read_plan(tmp_path / "plan.json", ("gpu", "host"))
