# SPDX-License-Identifier: MIT
"""The moves of the last ticks: target, nodes, heat and outcome."""

import json
from dataclasses import replace

import numpy as np
import pytest

from hmd.control.status_json import status_answer
from hmd.metrics.observer import Observer
from hmd.metrics.status import MAX_FLOWS, MAX_TICKS_KEPT, MoveFlow
from hmd.metrics.tick_record import TickRecord
from hmd.migrate.status import MoveOutcome, MoveStatus
from hmd.policy.plan import Plan
from tests.unit.metrics.conftest import REDIS


def test_recent_moves_flows_ordered_by_pages(observer: Observer, tick: TickRecord) -> None:
    recent = observer.observe(tick, None).recent_moves
    assert [(each.tick, each.dry_run, each.planned_pages) for each in recent] == [(1, False, 514)]
    assert recent[0].flows == (
        MoveFlow("redis", 2, 0, 512, 512, 9.0, {}),
        MoveFlow("redis", 3, 0, 1, 0, 8.0, {"busy": 1}),
        MoveFlow("batch", 0, 2, 1, 1, 0.0, {}),
    )


def test_recent_moves_heat_is_mean_over_pages(observer: Observer, tick: TickRecord) -> None:
    one_flow = replace(tick.plan, from_node=np.array([0, 2, 2], np.int16))
    flow = observer.observe(replace(tick, plan=one_flow), None).recent_moves[0].flows[0]
    assert (flow.planned_pages, flow.moved_pages, flow.left) == (513, 512, {"busy": 1})
    assert flow.heat == pytest.approx((512 * 9 + 8) / 513)


def test_recent_moves_dry_run_no_moved_pages(observer: Observer, tick: TickRecord) -> None:
    assert tick.outcome is not None
    would = np.full(3, MoveStatus.WOULD_MOVE, np.int16)
    dry = replace(tick.outcome, dry_run=True, status=would, moved_pages=tick.plan.pages)
    recent = observer.observe(replace(tick, outcome=dry), None).recent_moves[0]
    assert recent.dry_run
    assert (recent.flows[0].moved_pages, recent.flows[0].left) == (0, {"would_move": 512})


def test_recent_moves_failed_stage_all_pending(observer: Observer, tick: TickRecord) -> None:
    recent = observer.observe(replace(tick, outcome=None), None).recent_moves[0]
    assert [f.left for f in recent.flows] == [{"pending": 512}, {"pending": 1}, {"pending": 1}]


def test_recent_moves_empty_plan_not_listed(observer: Observer, tick: TickRecord) -> None:
    idle = replace(tick, plan=Plan.empty(tick.plan.processes), outcome=None)
    assert observer.observe(idle, None).recent_moves == ()
    assert [each.tick for each in observer.observe(tick, None).recent_moves] == [2]


def test_recent_moves_ticks_and_flows_bounded(observer: Observer, tick: TickRecord) -> None:
    n = 50
    nodes = np.arange(n, dtype=np.int16)
    plan = Plan(
        (REDIS,),
        np.zeros(n, np.int32),
        np.arange(n, dtype=np.uint64) * np.uint64(4096),
        np.ones(n, np.uint32),
        nodes,
        nodes + np.int16(1),
        np.zeros(n, np.float32),
        np.zeros(n, np.int32),
    )
    moved = np.full(n, MoveStatus.MOVED, np.int16)
    outcome = MoveOutcome(moved, nodes, plan.pages, {}, {MoveStatus.MOVED: n}, 1, 0.1)
    for _ in range(3 * MAX_TICKS_KEPT):
        observer.observe(replace(tick, plan=plan, outcome=outcome), None)
        observer.observe(replace(tick, plan=Plan.empty(), outcome=None), None)
    recent = observer.latest.recent_moves
    assert [each.tick for each in recent] == list(
        range(4 * MAX_TICKS_KEPT + 1, 6 * MAX_TICKS_KEPT + 1, 2)
    )
    assert {len(each.flows) for each in recent} == {MAX_FLOWS}
    assert recent[0].planned_pages == n


def test_status_json_recent_moves_listed(observer: Observer, tick: TickRecord) -> None:
    observer.observe(tick, None)
    status = json.loads(status_answer(observer.latest))
    assert status["rounds"][0]["flows"][1] == {
        "target": "redis",
        "from_node": 3,
        "to_node": 0,
        "planned_pages": 1,
        "moved_pages": 0,
        "heat": 8.0,
        "left": {"busy": 1},
    }
    assert status["tier_bytes"] == [1 << 30, 8 << 30]
    assert status["heat"] == {"first_log2": -8, "pages": [[], []]}
