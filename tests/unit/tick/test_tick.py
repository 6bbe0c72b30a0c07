# SPDX-License-Identifier: MIT
"""One tick over a synthetic machine: limits, record, failures, pause, pins and drains."""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from bench.synthetic.synthetic_run import BASE, PROCESS, SyntheticMemory, SyntheticRun, hot_blocks
from hmd.base.units import PAGE_BYTES
from hmd.heat.table import HeatTable
from hmd.heat.view import PageView
from hmd.linux.mappings import Mappings
from hmd.linux.page_calls import MoveFlags
from hmd.linux.procfs import ProcessId
from hmd.linux.resident_pages import PageSharing
from hmd.linux.topology import NodeMemory
from hmd.metrics.status import Stage
from hmd.metrics.tick_record import TickRecord
from hmd.migrate import FarLimits, Pageout
from hmd.migrate.status import MoveStatus
from hmd.policy.admin import Pin
from hmd.policy.builtin.histogram import Histogram, HistogramSettings
from hmd.policy.builtin.none import NonePolicy
from hmd.policy.fast_limits import UNLIMITED, share_limits
from hmd.policy.plan import MachineView, Plan, Policy
from hmd.residency.memory_reader import ModelledMemory
from hmd.residency.sweep import StepLimit
from hmd.sample.access_batch import AccessBatch
from hmd.tick.stage_runner import StageRunner
from hmd.tick.tick import TickLimits, Tracked, decide, decide_dry, unseen_guests
from tests.unit.tick.conftest import FAST, PAGES, synthetic_run

Column = npt.NDArray[np.generic]


class FailingPolicy:
    name = "failing"

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        raise KeyError("policy")


@pytest.fixture
def runner() -> StageRunner:
    return StageRunner(logging.getLogger("hmd"))


Tick = Callable[..., TickRecord]


@pytest.fixture
def tick(synthetic: SyntheticRun, runner: StageRunner) -> Tick:
    """A tick at a time of the synthetic run, without a runner's errors."""

    def run(now_s: float) -> TickRecord:
        runner.begin()
        return synthetic.ticks.tick(now_s, timer=runner)

    return run


def use_policy(synthetic: SyntheticRun, policy: Policy) -> None:
    synthetic.ticks.state = replace(synthetic.ticks.state, policy=policy)


def test_tick_counts_samples_that_were_looked_at_before_those_since(
    synthetic: SyntheticRun, tick: Tick
) -> None:
    looked_at = AccessBatch.of(np.full(3, BASE, np.uint64), process=0)
    inputs = synthetic.ticks.inputs
    synthetic.ticks.inputs = replace(inputs, held=(looked_at, looked_at))
    record = tick(1.0)
    assert len(record.batch) == 20_006
    assert (record.batch.address[:6] == BASE).all()


def test_tick_records_every_stage(tick: Tick) -> None:
    record = tick(1.0)
    assert len(record.batch) == len(record.node) == 20_000
    assert set(record.node.tolist()) == {1}
    assert record.outcome is not None
    assert record.outcome.moved == {(1, 0): int(record.plan.pages.sum())}
    assert (record.processes, record.targets) == ((PROCESS,), ("synthetic",))
    assert set(record.stage_s) == set(Stage) - {Stage.OBSERVE}
    assert record.planned
    assert record.memory
    assert not record.failed


def test_policy_fails_heat_is_counted_and_nothing_moves(
    synthetic: SyntheticRun, tick: Tick
) -> None:
    use_policy(synthetic, FailingPolicy())
    record = tick(1.0)
    assert record.failed == {Stage.DECIDE}
    assert len(record.batch) == 20_000
    assert synthetic.heat.stats.samples == 20_000
    assert (len(record.plan), record.outcome, record.paged_out_bytes) == (0, None, 0)


def test_sampler_fails_other_stages_run(
    synthetic: SyntheticRun, tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> AccessBatch:
        raise OSError("no ring")

    tick(1.0)
    monkeypatch.setattr(synthetic, "read", fail)
    record = tick(2.0)
    assert record.failed == {Stage.SAMPLE}
    assert len(record.batch) == len(record.node) == 0
    assert set(record.stage_s) == set(Stage) - {Stage.OBSERVE}


def test_mover_fails_the_plan_is_recorded_without_an_outcome(
    synthetic: SyntheticRun, tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(plan: Plan, now_s: float, *, dry_run: bool) -> None:
        raise OSError("no capability")

    monkeypatch.setattr(synthetic.ticks.state.mover, "apply", fail)
    record = tick(1.0)
    assert record.failed == {Stage.MIGRATE}
    assert len(record.plan) > 0
    assert record.outcome is None


def test_limits_set_length_period_and_sweep_of_a_tick(
    synthetic: SyntheticRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    periods: list[int] = []
    steps: list[StepLimit | None] = []

    def step(heat: HeatTable, limit: StepLimit | None = None) -> int:
        steps.append(limit)
        return 0

    monkeypatch.setattr(synthetic, "set_period", periods.append)
    monkeypatch.setattr(synthetic.ticks.state.sweep, "step", step)
    limit = StepLimit(pages=5, cpu_s=0.5)
    record = synthetic.ticks.tick(1.0, TickLimits(2.0, period=99, sweep=limit))
    assert (record.tick_s, periods, steps) == (2.0, [99], [limit])
    synthetic.ticks.tick(2.0, TickLimits(2.0, period=synthetic.period))
    assert (periods, steps) == ([99], [limit, None])


def test_tick_without_plan_moves_only_what_administrators_request(synthetic: SyntheticRun) -> None:
    record = synthetic.ticks.tick(1.0, TickLimits(1.0, plan=False))
    assert record.planned is False
    assert len(record.plan) == 0
    synthetic.ticks.state.admin.drain(frozenset({1}))
    record = synthetic.ticks.tick(2.0, TickLimits(1.0, plan=False))
    assert record.planned
    assert set(record.plan.from_node.tolist()) == {1}


def test_record_counts_processes_whose_samples_refute_their_heat(synthetic: SyntheticRun) -> None:
    """The test is that of the heat table: a hot set that has moved shows in a single tick."""
    for _ in range(8):
        synthetic.tick()
    assert synthetic.record is not None
    assert synthetic.record.heat_changes == 0
    synthetic.weights = hot_blocks(PAGES, 512, 16, seed=2)
    synthetic.tick()
    assert synthetic.record.heat_changes == 1


def test_refused_moves_of_shared_pages_are_not_tried_tick_after_tick(
    tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(
        _: SyntheticMemory, pid: int, addresses: Column, nodes: Column, flags: int
    ) -> tuple[int, Column]:
        return 0, np.full(len(addresses), -errno.EACCES, np.int32)

    def shared(_: ModelledMemory, process: ProcessId, addresses: Column) -> Column:
        return np.full(len(addresses), PageSharing.FORKED, np.uint8)

    monkeypatch.setattr(SyntheticMemory, "move_pages", refuse)
    monkeypatch.setattr(ModelledMemory, "sharing", shared)
    planned = [len(tick(float(number)).plan) for number in range(20)]
    assert planned[0] > 0
    assert sum(planned[2:]) == 0


def test_pages_that_only_the_kernel_takes_for_shared_wait_longer_each_time(
    synthetic: SyntheticRun, tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    """folio_maybe_mapped_shared() may be wrong of a large folio that more than two processes mapped
    at some time (include/linux/mm.h), while pagemap shows its pages as the process's own.
    """
    tried: Counter[int] = Counter()
    whole = SyntheticMemory.move_pages

    def refuse_odd(
        memory: SyntheticMemory,
        pid: int,
        addresses: npt.NDArray[np.uint64],
        nodes: npt.NDArray[np.int32],
        flags: MoveFlags,
        /,
    ) -> tuple[int, npt.NDArray[np.int32]]:
        odd = addresses // PAGE_BYTES % 2 == 1
        tried.update(addresses[odd].tolist())
        status = np.full(len(addresses), -errno.EACCES, np.int32)
        if not odd.all():
            _, status[~odd] = whole(memory, pid, addresses[~odd], nodes[~odd], flags)
        return 0, status

    monkeypatch.setattr(SyntheticMemory, "move_pages", refuse_odd)
    for number in range(200):
        tick(float(number))
    assert 0 < max(tried.values()) <= 8  # after 0, 2, 4, ... 128 s
    hottest = np.argsort(-synthetic.weights)[:512]
    even = hottest[(BASE // PAGE_BYTES + hottest) % 2 == 0]
    assert (synthetic.node[even] == 0).all()


def test_failed_decision_ends_no_requested_move(synthetic: SyntheticRun, tick: Tick) -> None:
    tick(1.0)
    requested, admin = Pin(1, 0), synthetic.ticks.state.admin
    admin.moves[PROCESS] = requested
    use_policy(synthetic, FailingPolicy())
    assert tick(2.0).failed == {Stage.DECIDE}
    assert admin.moves == {PROCESS: requested}
    use_policy(synthetic, synthetic.policy)
    for second in range(3, 7):
        tick(float(second))
    assert not admin.moves


def test_paused_heat_is_counted_and_nothing_moves(synthetic: SyntheticRun, tick: Tick) -> None:
    synthetic.ticks.state.admin.paused = True
    tracked = synthetic.ticks.inputs.tracked
    idle = replace(tracked, far_limits=FarLimits.alike(1, 1.0))
    synthetic.ticks.inputs = replace(synthetic.ticks.inputs, tracked=idle)
    record = tick(1.0)
    assert synthetic.heat.stats.samples == 20_000
    assert (len(record.plan), record.outcome, record.paged_out_bytes) == (0, None, 0)
    assert record.planned is None
    synthetic.ticks.state.admin.paused = False
    synthetic.ticks.inputs = replace(synthetic.ticks.inputs, tracked=tracked)
    assert len(tick(2.0).plan) > 0


def test_swap_that_fails_keeps_pages_in_memory_and_is_in_the_record(
    synthetic: SyntheticRun, tick: Tick
) -> None:
    calls: list[ProcessId] = []

    def page_out(process: ProcessId, start: Column, size: Column) -> int:
        calls.append(process)
        return int(size.sum())

    tracked = replace(synthetic.ticks.inputs.tracked, far_limits=FarLimits.alike(1, 1.0))
    synthetic.ticks.inputs = replace(synthetic.ticks.inputs, tracked=tracked)
    failures = ["no device"]
    pageout = Pageout(
        page_out=page_out,
        query_nodes=lambda pid, address: np.full(len(address), -2, np.int16),
        failure=lambda now_s: failures[0],
    )
    synthetic.ticks.state = replace(synthetic.ticks.state, pageout=pageout)
    for second in range(1, 8):
        assert tick(float(second)).far.stopped == "no device"
    assert not calls
    failures[0] = ""
    record = tick(8.0)
    assert calls
    assert (record.far.stopped, record.far.out_bytes) == ("", record.paged_out_bytes)
    assert record.paged_out_bytes > 0


def test_pinned_process_is_gathered_and_left_to_no_policy(
    synthetic: SyntheticRun, tick: Tick
) -> None:
    tick(1.0)
    fast = int((synthetic.node == 0).sum())
    assert fast > 400
    synthetic.ticks.state.admin.pins[PROCESS] = Pin(1, 0)
    assert tick(2.0).plan.to_node.tolist() == [1] * fast
    assert len(tick(3.0).plan) == 0


def test_drained_node_is_emptied_before_the_policy_plans(
    synthetic: SyntheticRun, tick: Tick
) -> None:
    tick(1.0)
    admin = synthetic.ticks.state.admin
    admin.drain(frozenset({0}))
    assert set(tick(2.0).plan.to_node.tolist()) == {1}
    assert (synthetic.node == 1).all()
    assert admin.stalled_ticks == 0


def test_drain_without_room_counts_stalled_ticks(synthetic: SyntheticRun, tick: Tick) -> None:
    full = tuple(replace(memory, free_bytes=0) for memory in synthetic.machine.memory)
    inputs = synthetic.ticks.inputs
    machine = replace(inputs.machine, node_memory=lambda topology, now_s: full)
    synthetic.ticks.inputs = replace(inputs, machine=machine)
    admin = synthetic.ticks.state.admin
    admin.drain(frozenset({1}))
    for now_s in (1.0, 2.0):
        assert len(tick(now_s).plan) == 0
    assert admin.stalled_ticks == 2


@pytest.mark.parametrize(("min_gain", "moves"), [(0.0, True), (0.01, True), (1.1, False)])
def test_tick_in_calm_times_promotions_of_too_few_accesses_wait(
    synthetic: SyntheticRun, min_gain: float, moves: bool
) -> None:
    record = synthetic.ticks.tick(1.0, TickLimits(1.0, min_gain=min_gain))
    assert (record.moved_bytes > 0) == moves
    assert (len(record.plan) > 0) == moves
    assert record.planned


def dry(synthetic: SyntheticRun, *, mask: list[bool]) -> None:
    """Put processes into a dry run of their own, with a policy for them."""
    ticks, policy = synthetic.ticks, Histogram(HistogramSettings(headroom=0.0, headroom_min=0))
    ticks.state = replace(ticks.state, dry_policy=policy)
    tracked = replace(ticks.inputs.tracked, dry=np.array(mask))
    ticks.inputs = replace(ticks.inputs, tracked=tracked)


def test_target_in_dry_run_is_planned_for_and_stays(synthetic: SyntheticRun, tick: Tick) -> None:
    before = synthetic.node.copy()
    dry(synthetic, mask=[True])
    record = tick(1.0)
    assert (len(record.plan), record.outcome) == (0, None)
    assert record.dry_plan is not None
    assert record.dry_outcome is not None
    assert record.dry_outcome.dry_run
    assert set(record.dry_outcome.status.tolist()) == {MoveStatus.WOULD_MOVE}
    assert 0 < record.dry_plan.pages.sum() <= FAST
    assert (synthetic.node == before).all()
    assert [len(plan) for plan, _ in record.moves(dry_run=True)] == [len(record.dry_plan)]
    assert not list(record.moves(dry_run=False))
    # While hmd is paused, or may not plan, neither does the dry run.
    synthetic.ticks.state.admin.paused = True
    assert tick(2.0).dry_plan is None


def test_targets_in_dry_run_and_others_are_planned_apart(synthetic: SyntheticRun) -> None:
    """What would move of one target makes no room at the cost of another."""
    other, heat = ProcessId(1001, 1), synthetic.heat
    ticks = synthetic.ticks
    heat.track_processes([PROCESS, other])
    start = np.array([1 << 40], np.uint64)
    heat.record_nodes(1, start, np.ones((1, 512), np.int8))
    address = np.repeat(start + np.arange(64, dtype=np.uint64) * np.uint64(4096), 20)
    ticks.inputs = replace(ticks.inputs, tracked=Tracked((PROCESS, other), ("synthetic", "other")))
    dry(synthetic, mask=[False, True])
    batches = (synthetic.read(), AccessBatch.of(address, process=1, period=synthetic.period))
    heat.update(AccessBatch.concatenated(batches), 1.0)
    memory = ticks.inputs.machine.node_memory(ticks.inputs.machine.topology, 0.0)
    state, limits = replace(ticks.state, memory=memory), TickLimits(1.0)
    plan = decide(state, ticks.inputs, limits, may_plan=True)
    would = decide_dry(state, ticks.inputs, limits, plan)
    assert set(plan.process.tolist()) == {0}
    assert would is not None
    assert set(would.process.tolist()) <= {1}
    # The first plan fills the fast node; with room left, the other's pages would follow.
    empty = Plan.empty(heat.processes)
    alone = decide_dry(state, ticks.inputs, limits, empty)
    assert alone is not None
    assert set(alone.process.tolist()) == {1}
    assert alone.pages.sum() > would.pages.sum()


def keep_fast(synthetic: SyntheticRun, processes: int = 1) -> None:
    """Never slow is the first process; as of the daemon, there are limits then."""
    inputs, never_slow = synthetic.ticks.inputs, np.zeros(processes, np.bool_)
    never_slow[0] = True
    limits = share_limits([UNLIMITED], [0] * processes, always=True)
    tracked = replace(inputs.tracked, never_slow=never_slow, fast_limits=limits)
    synthetic.ticks.inputs = replace(inputs, tracked=tracked)


def test_never_slow_pages_go_to_the_fastest_tier_sampled_or_not(
    synthetic: SyntheticRun, tick: Tick
) -> None:
    use_policy(synthetic, NonePolicy())
    keep_fast(synthetic)
    synthetic.weights = np.zeros_like(synthetic.weights)
    synthetic.weights[0] = 1.0
    record = tick(1.0)
    assert record.outcome is not None
    assert record.outcome.moved == {(1, 0): FAST}
    # It is full: nothing of it comes down, and no more goes up.
    assert (synthetic.node == 0).sum() == FAST
    assert tick(2.0).outcome is None
    assert record.plan.requested == 0


def test_never_slow_pages_get_the_room_of_others(synthetic: SyntheticRun) -> None:
    """Room is made of others' pages, though these are hot and it is not."""
    other, heat, ticks = ProcessId(1001, 1), synthetic.heat, synthetic.ticks
    heat.track_processes([PROCESS, other])
    start = np.array([1 << 40], np.uint64)
    node = np.full((1, 512), -1, np.int8)
    node[0, : FAST - 100] = 0
    heat.record_nodes(1, start, node)
    ticks.inputs = replace(ticks.inputs, tracked=Tracked((PROCESS, other), ("a", "b")))
    keep_fast(synthetic, 2)
    address = np.repeat(start + np.arange(FAST - 100, dtype=np.uint64) * np.uint64(4096), 20)
    batches = (synthetic.read(), AccessBatch.of(address, process=1, period=synthetic.period))
    heat.update(AccessBatch.concatenated(batches), 1.0)
    topology = ticks.inputs.machine.topology
    memory = (
        NodeMemory(0, FAST * PAGE_BYTES, 100 * PAGE_BYTES),
        NodeMemory(1, 4 * PAGES * PAGE_BYTES, 2 * PAGES * PAGE_BYTES),
    )
    state = replace(ticks.state, memory=memory)
    plan = decide(state, ticks.inputs, TickLimits(1.0), may_plan=True)
    up, down = plan.to_node == 0, plan.to_node == 1
    assert plan.pages[up].sum() == 100
    assert set(plan.process[up].tolist()) == {0}
    assert plan.pages[down].sum() == FAST - 100
    assert set(plan.process[down].tolist()) == {1}
    assert topology.tiers == ((0,), (1,))


@pytest.mark.parametrize("why", ["pinned", "resting", "dry"])
def test_never_slow_pages_stay_where_nothing_of_them_may_move(
    synthetic: SyntheticRun, tick: Tick, why: str
) -> None:
    keep_fast(synthetic)
    if why == "pinned":
        synthetic.ticks.state.admin.target_pins["synthetic"] = Pin(None, 0)
    elif why == "resting":
        synthetic.ticks.inputs = replace(synthetic.ticks.inputs, resting=frozenset({"synthetic"}))
    else:
        dry(synthetic, mask=[True])
    record = tick(1.0)
    assert not len(record.plan)
    assert (record.dry_plan is not None and len(record.dry_plan) > 0) == (why == "dry")


def test_target_within_its_hours_moves(synthetic: SyntheticRun, tick: Tick) -> None:
    synthetic.ticks.inputs = replace(synthetic.ticks.inputs, resting=frozenset({"other"}))
    assert len(tick(1.0).plan) > 0


def test_target_outside_of_its_hours_is_observed_and_moves_by_request_only(
    synthetic: SyntheticRun, tick: Tick
) -> None:
    ticks = synthetic.ticks
    ticks.inputs = replace(ticks.inputs, resting=frozenset({"synthetic"}))
    record = tick(1.0)
    assert len(record.batch) == 20_000
    assert not len(record.plan)
    ticks.state.admin.moves[PROCESS] = Pin(0, 0)
    assert len(tick(2.0).plan) > 0


@pytest.mark.parametrize(
    ("sees_guests", "move_guests"), [(False, False), (True, False), (False, True)]
)
def test_pages_of_virtual_machine_stay_unless_the_sampler_sees_guests(
    monkeypatch: pytest.MonkeyPatch, sees_guests: bool, move_guests: bool
) -> None:
    whole = SyntheticMemory.mappings

    def with_guest_cpu(memory: SyntheticMemory, pid: int) -> Mappings | None:
        found = whole(memory, pid)
        return None if found is None else replace(found, path=("anon_inode:kvm-vcpu:0",))

    monkeypatch.setattr(SyntheticMemory, "mappings", with_guest_cpu)
    able = replace(SyntheticRun.capabilities, sees_guests=sees_guests)
    monkeypatch.setattr(SyntheticRun, "capabilities", able)
    run = synthetic_run()
    run.ticks.inputs = replace(run.ticks.inputs, move_guests=move_guests)
    record = run.ticks.tick(1.0)
    assert (len(record.plan) > 0) == (sees_guests or move_guests)
    unseen = unseen_guests(run.ticks.state, run.ticks.inputs)
    assert unseen.tolist() == [not (sees_guests or move_guests)]
