# SPDX-License-Identifier: MIT
"""Runs of uses: what of a tensor a plan has in fast memory, from move to move."""

from __future__ import annotations

from hmd.base.units import MIB
from hmd.tensors.move_plan import ANY, WHOLE, UseRun, plan_of, use_runs
from tests.unit.tensors.conftest import RW, R, W, make_trace

STEP = make_trace(
    [4, 2],
    [(1.0, [(0, R), (1, W)]), (1.0, [(1, R)]), (1.0, [(1, RW)]), (1.0, [(0, RW), (1, R)])],
    persistent=[0],
)


def test_use_runs_without_moves_what_persists_is_slow() -> None:
    assert use_runs(STEP, plan_of([])) == [
        UseRun(0, 0, [(0, 1), (3, 2)]),
        UseRun(1, 2 * MIB, [(0, 1), (1, 1), (2, 2), (3, 1)]),
    ]


def test_use_runs_end_at_moves_and_go_on_from_step_to_step() -> None:
    plan = plan_of([(1, 0, 0, 1, WHOLE), (2, 1, 0, 1, MIB), (3, 0, ANY, 0, 3 * MIB)])
    assert use_runs(STEP, plan) == [
        UseRun(0, 3 * MIB, [(0, 1)]),
        UseRun(1, 2 * MIB, [(0, 1), (1, 1)]),
        UseRun(1, MIB, [(2, 2), (3, 1)]),
        UseRun(0, 3 * MIB, [(3, 2)]),
    ]
