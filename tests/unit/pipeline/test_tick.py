"""One tick over a synthetic machine: order of stages, failures, pause, pins and drains."""

from __future__ import annotations

import errno
import logging
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from bench.synthetic.synthetic_memory import PROCESS, SyntheticMemory
from bench.synthetic.synthetic_run import SyntheticRun
from hmd.control.admin_state import Pin
from hmd.decide.plan import MachineView, Plan
from hmd.heat.view.page_view import PageView
from hmd.machine.pages.page_sharing import PageSharing
from hmd.machine.process_id import ProcessId
from hmd.observe.tick_record import Stage
from hmd.pipeline.stage_guard import StageGuard
from hmd.pipeline.tick import run_tick
from hmd.pipeline.tick_stages import TickStages
from hmd.residency.swept_memory import ModelledMemory
from hmd.sample.access_batch import AccessBatch

Column = npt.NDArray[np.generic]


class FailingPolicy:
    name = "failing"

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        raise KeyError("policy")


@pytest.fixture
def stages(synthetic: SyntheticRun) -> TickStages:
    return synthetic._stages


@pytest.fixture
def guard() -> StageGuard:
    return StageGuard(logging.getLogger("hmd"))


def test_tick_records_every_stage(stages: TickStages, guard: StageGuard) -> None:
    guard.begin()
    tick = run_tick(stages, guard, 1.0)
    assert len(tick.batch) == len(tick.node) == 20_000
    assert set(tick.node.tolist()) == {1}
    assert tick.outcome is not None
    assert tick.outcome.moved == {(1, 0): int(tick.plan.pages.sum())}
    assert (tick.processes, tick.targets) == ((PROCESS,), ("synthetic",))
    assert set(tick.stage_s) == set(Stage) - {Stage.OBSERVE}
    assert not tick.failed


def test_policy_fails_heat_is_counted_and_nothing_moves(
    stages: TickStages, guard: StageGuard
) -> None:
    stages.policy = FailingPolicy()
    guard.begin()
    tick = run_tick(stages, guard, 1.0)
    assert tick.failed == {Stage.DECIDE}
    assert len(tick.batch) == 20_000
    assert stages.heat.stats.samples == 20_000
    assert (len(tick.plan), tick.outcome, tick.paged_out_bytes) == (0, None, 0)


def test_sampler_fails_other_stages_run(
    stages: TickStages, guard: StageGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> AccessBatch:
        raise OSError("no ring")

    run_tick(stages, guard, 1.0)
    monkeypatch.setattr(stages.sampler, "read", fail)
    guard.begin()
    tick = run_tick(stages, guard, 2.0)
    assert tick.failed == {Stage.SAMPLE}
    assert len(tick.batch) == len(tick.node) == 0
    assert set(tick.stage_s) == set(Stage) - {Stage.OBSERVE}


def test_mover_fails_the_plan_is_recorded_without_an_outcome(
    stages: TickStages, guard: StageGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(plan: Plan, now_s: float) -> None:
        raise OSError("no capability")

    monkeypatch.setattr(stages.mover, "apply", fail)
    guard.begin()
    tick = run_tick(stages, guard, 1.0)
    assert tick.failed == {Stage.MIGRATE}
    assert len(tick.plan) > 0
    assert tick.outcome is None


def test_refused_moves_of_shared_pages_are_not_tried_tick_after_tick(
    stages: TickStages, guard: StageGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(
        _: SyntheticMemory, pid: int, addresses: Column, nodes: Column, flags: int
    ) -> tuple[int, Column]:
        return 0, np.full(len(addresses), -errno.EACCES, np.int32)

    def shared(_: ModelledMemory, process: ProcessId, addresses: Column) -> Column:
        return np.full(len(addresses), PageSharing.FORKED, np.uint8)

    monkeypatch.setattr(SyntheticMemory, "move_pages", refuse)
    monkeypatch.setattr(ModelledMemory, "sharing", shared)
    planned = []
    for number in range(20):
        guard.begin()
        planned.append(len(run_tick(stages, guard, float(number)).plan))
    assert planned[0] > 0
    assert sum(planned[2:]) == 0


def test_failed_decision_ends_no_requested_move(stages: TickStages, guard: StageGuard) -> None:
    guard.begin()
    run_tick(stages, guard, 1.0)
    requested = Pin(1, 0)
    stages.admin.moves[PROCESS] = requested
    policy, stages.policy = stages.policy, FailingPolicy()
    guard.begin()
    assert run_tick(stages, guard, 2.0).failed == {Stage.DECIDE}
    assert stages.admin.moves == {PROCESS: requested}
    stages.policy = policy
    for second in range(3, 7):
        guard.begin()
        run_tick(stages, guard, float(second))
    assert not stages.admin.moves


def test_paused_heat_is_counted_and_nothing_moves(stages: TickStages, guard: StageGuard) -> None:
    stages.admin.paused = True
    stages.pageout_s = 1.0
    guard.begin()
    tick = run_tick(stages, guard, 1.0)
    assert stages.heat.stats.samples == 20_000
    assert (len(tick.plan), tick.outcome, tick.paged_out_bytes) == (0, None, 0)
    stages.admin.paused = False
    stages.pageout_s = None
    assert len(run_tick(stages, guard, 2.0).plan) > 0


def test_pinned_process_is_gathered_and_left_to_no_policy(
    synthetic: SyntheticRun, stages: TickStages, guard: StageGuard
) -> None:
    run_tick(stages, guard, 1.0)
    fast = int((synthetic.node == 0).sum())
    assert fast > 400
    stages.admin.pins[PROCESS] = Pin(1, 0)
    tick = run_tick(stages, guard, 2.0)
    assert tick.plan.to_node.tolist() == [1] * fast
    assert len(run_tick(stages, guard, 3.0).plan) == 0


def test_drained_node_is_emptied_before_the_policy_plans(
    synthetic: SyntheticRun, stages: TickStages, guard: StageGuard
) -> None:
    run_tick(stages, guard, 1.0)
    stages.admin.drain(frozenset({0}))
    tick = run_tick(stages, guard, 2.0)
    assert set(tick.plan.to_node.tolist()) == {1}
    assert (synthetic.node == 1).all()
    assert stages.admin.stalled_ticks == 0


def test_drain_without_room_counts_stalled_ticks(
    synthetic: SyntheticRun, stages: TickStages, guard: StageGuard
) -> None:
    stages.node_memory = lambda topology, now_s: tuple(
        replace(memory, free_bytes=0) for memory in synthetic.machine.memory
    )
    stages.admin.drain(frozenset({1}))
    for now_s in (1.0, 2.0):
        assert len(run_tick(stages, guard, now_s).plan) == 0
    assert stages.admin.stalled_ticks == 2
