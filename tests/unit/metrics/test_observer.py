# SPDX-License-Identifier: MIT
"""Counters summed over ticks, and the JSON of the status socket."""

import json
import mmap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hmd.control.status_json import status_answer
from hmd.heat.settings import HeatStats
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import NodeMemory, Topology
from hmd.metrics.counters import OTHER, Counters
from hmd.metrics.observer import ObservedConfig, Observer, ResidencyCounts
from hmd.metrics.status import HEAT_LOG2, MAX_TARGETS, Durations, NodeFlow, Stage
from hmd.metrics.tick_record import TickRecord
from hmd.migrate.status import MoveStatus
from tests.unit.metrics.conftest import BATCH, REDIS, QuietSampler, batch

PAGE = 4096


def places() -> ResidencyCounts:
    resident = np.array([[100, 0, 50, 0], [0, 0, 1, 2]], np.int64)
    return ResidencyCounts(resident, np.zeros((2, len(HEAT_LOG2)), np.int64), HeatStats(bytes=7))


def test_observer_accesses_counted_per_tier_times_period(
    observer: Observer, tick: TickRecord
) -> None:
    observer.observe(tick, places())
    redis, batch_job = observer.latest.targets
    assert redis.accesses == (30, 10, 0)
    assert batch_job.accesses == (0, 10, 10)
    assert redis.fast_share == 0.75
    assert batch_job.fast_share == 0
    assert (redis.samples, batch_job.samples) == (4, 2)


def test_observer_moves_counted_per_process_target_and_flow(
    observer: Observer, tick: TickRecord
) -> None:
    now = observer.observe(tick, places())
    redis, batch_job = now.processes
    assert (redis.promoted_bytes, redis.demoted_bytes) == (512 * PAGE, 0)
    assert (batch_job.promoted_bytes, batch_job.demoted_bytes) == (0, PAGE)
    assert (redis.failed_pages, batch_job.failed_pages) == (1, 0)
    assert now.moves.flows == (NodeFlow(0, 2, PAGE), NodeFlow(2, 0, 512 * PAGE))
    assert (now.moves.promoted_bytes, now.moves.demoted_bytes) == (512 * PAGE, PAGE)
    assert now.moves.failed_pages == now.moves.failures["busy"] == 1


def test_observer_own_cpu_time_and_memory_of_this_process(
    observer: Observer, tick: TickRecord
) -> None:
    before = observer.observe(tick, places())
    until_s = time.process_time() + 0.05
    while time.process_time() < until_s:
        pass
    # Not of the heap, which may hold 64 MiB that earlier tests touched and freed.
    with mmap.mmap(-1, 64 << 20) as mapped:
        mapped[::PAGE] = b"1" * (len(mapped) // PAGE)
        after = observer.observe(tick, places())
    assert 0.05 <= after.cpu_s - before.cpu_s < 1.0
    assert after.resident_bytes - before.resident_bytes > 48 << 20


def test_observer_own_stage_time_and_failures_counted(observer: Observer, tick: TickRecord) -> None:
    observer.observe(tick, places())
    observer.record_observe_time(0.003, failed=True)
    now = observer.observe(tick, places())
    assert now.stages[Stage.OBSERVE].seconds.sum_s == pytest.approx(0.003)
    assert now.stage_failures == {stage: 2 * (stage is Stage.DECIDE) for stage in Stage} | {
        Stage.OBSERVE: 1
    }


def test_observer_stage_items_in_and_out_counted(observer: Observer, tick: TickRecord) -> None:
    observer.observe(tick, places())
    observer.record_observe_time(0.003, failed=False)
    now = observer.observe(tick, places())
    flow = {stage: (items.items_in, items.items_out) for stage, items in now.stages.items()}
    assert flow == {
        Stage.SAMPLE: (5, 5),
        Stage.HEAT: (12, 10),
        Stage.DECIDE: (2 * 153, 2 * 514),
        Stage.MIGRATE: (2 * 514, 2 * 513),
        Stage.OBSERVE: (2, 1),
    }


def test_observer_stage_success_time_recorded(topology: Topology, tick: TickRecord) -> None:
    now_s = 1000.0
    setting = ObservedConfig("hmd.yaml", False, 1.0, 0.01, 0.01, "histogram", ())
    observer = Observer(setting, topology, QuietSampler(), now=lambda: now_s)
    now_s = 1001.0
    observer.observe(tick, None)
    observer.record_observe_time(0.0, failed=True)
    now_s = 1002.0
    now = observer.observe(replace(tick, stage_s={Stage.SAMPLE: 0.1}), None)
    assert now.ticked_s == 1002
    assert {stage: each.succeeded_s for stage, each in now.stages.items()} == {
        Stage.SAMPLE: 1002,
        Stage.HEAT: 1000,
        Stage.DECIDE: 1000,
        Stage.MIGRATE: 1001,
        Stage.OBSERVE: 1000,
    }


def test_observer_planned_pages_equal_sum_of_statuses(observer: Observer, tick: TickRecord) -> None:
    now = observer.observe(tick, places())
    assert now.moves.planned_by_direction == {"up": 513, "down": 1, "level": 0}
    assert now.moves.planned_pages == sum(now.moves.pages_by_status.values())


def test_observer_nodes_show_page_cache_of_last_tick(observer: Observer, tick: TickRecord) -> None:
    memory = (NodeMemory(0, 1 << 30, 1 << 20, cache_bytes=5 << 20), NodeMemory(2, 4 << 30, 0))
    observer.observe(replace(tick, memory=memory), places())
    assert {n.id: n.cache_bytes for n in observer.latest.nodes} == {0: 5 << 20, 2: 0, 3: 0}


def test_observer_dry_run_no_moved_bytes(observer: Observer, tick: TickRecord) -> None:
    assert tick.outcome is not None
    now = observer.observe(replace(tick, outcome=replace(tick.outcome, dry_run=True)), None)
    assert now.moves.promoted_bytes == now.targets[0].promoted_bytes == 0
    assert now.moves.planned_pages == 514


def test_observer_dry_run_names_each_page_once_per_target(
    topology: Topology, tick: TickRecord
) -> None:
    """Ticks that name the same pages: would-move pages do not grow, dry time does."""
    setting = ObservedConfig(
        "hmd.yaml", True, 1.0, 0.01, 0.01, "histogram", ("redis", "batch"), frozenset({"redis"})
    )
    observer = Observer(setting, topology, QuietSampler())
    assert tick.outcome is not None
    status = np.where(
        tick.outcome.status == MoveStatus.MOVED, MoveStatus.WOULD_MOVE, MoveStatus.BUSY
    )
    dry = replace(tick, outcome=replace(tick.outcome, dry_run=True, status=status))
    for _ in range(5):
        now = observer.observe(dry, places())
    redis, other = now.targets
    assert (redis.dry_run, other.dry_run) == (True, False)
    assert redis.would.promoted_bytes == 512 * PAGE
    assert (other.would.demoted_bytes, other.would.promoted_bytes) == (PAGE, 0)
    assert (redis.would.seconds, other.would.seconds) == (5.0, 0.0)
    assert now.moves.would_move_pages == 513
    assert redis.saved_s == now.savings.realised_saved_s == 0
    assert redis.promoted_bytes == 0


def test_observer_mean_latency_of_measured_loads(observer: Observer, tick: TickRecord) -> None:
    latency = np.array([100, 0, 300, 0, 500, 0], np.uint32)
    now = observer.observe(replace(tick, batch=replace(tick.batch, latency_ns=latency)), places())
    assert [t.measured_loads for t in now.targets] == [2, 1]
    assert [t.measured_s for t in now.targets] == pytest.approx([4e-7, 5e-7])


def test_observer_resident_bytes_per_tier(observer: Observer, tick: TickRecord) -> None:
    now = observer.observe(tick, places())
    assert [p.resident_bytes for p in now.processes] == [
        (100 * PAGE, 50 * PAGE),
        (0, 3 * PAGE),
    ]
    assert [t.resident_bytes[0] for t in now.targets] == [100 * PAGE, 0]


def test_observer_fast_share_old_ticks_decay(observer: Observer, tick: TickRecord) -> None:
    observer.observe(tick, places())
    for _ in range(20):
        moved = replace(tick, node=np.full(6, 0, np.int16), batch=batch([0] * 6))
        observer.observe(moved, places())
    share = observer.latest.targets[0].fast_share
    assert share is not None
    assert share > 0.99
    for _ in range(200):
        observer.observe(replace(tick, batch=batch([]), node=np.empty(0, np.int16)), places())
    assert observer.latest.targets[0].fast_share is None


def test_observer_ended_process_target_sums_kept(observer: Observer, tick: TickRecord) -> None:
    observer.observe(tick, places())
    one = ResidencyCounts(places().resident_pages[1:], places().heat_pages, HeatStats())
    gone = replace(
        tick, processes=(BATCH,), targets=("batch",), batch=batch([0]), node=np.array([3], np.int16)
    )
    now = observer.observe(gone, one)
    assert [(p.pid, p.start_ticks) for p in now.processes] == [BATCH]
    redis = now.targets[0]
    assert (redis.name, redis.process_count) == ("redis", 0)
    assert redis.accesses == (30, 10, 0)
    assert redis.promoted_bytes == 512 * PAGE


def test_observer_removed_target_dropped_after_last_process_ends(
    observer: Observer, topology: Topology, tick: TickRecord
) -> None:
    """Jobs of a batch system are targets for as long as they run."""
    observer.observe(tick, places())
    setting = ObservedConfig(
        "/etc/hmd/hmd.yaml", False, 1.0, 0.01, 0.01, "histogram", ("job", "batch")
    )
    observer.reconfigure(setting, topology, QuietSampler())
    # The process is followed until the next tick says otherwise.
    names = {t.name: t.process_count for t in observer.latest.targets}
    assert names == {"job": 0, "batch": 1, "redis": 1}
    sums = {t.name: t.accesses for t in observer.latest.targets}
    assert sums == {"job": (0, 0, 0), "batch": (0, 10, 10), "redis": (30, 10, 0)}
    one = ResidencyCounts(places().resident_pages[1:], places().heat_pages, HeatStats())
    gone = replace(
        tick, processes=(BATCH,), targets=("batch",), batch=batch([0]), node=np.array([3], np.int16)
    )
    observer.observe(gone, one)
    observer.reconfigure(setting, topology, QuietSampler())
    assert [t.name for t in observer.latest.targets] == ["job", "batch"]
    assert observer.latest.targets[1].accesses == (0, 20, 10)


def test_counters_unused_target_names_replaced(topology: Topology, tick: TickRecord) -> None:
    counters = Counters(topology)
    counters.retain_targets(f"t{i}" for i in range(MAX_TARGETS + 5))
    assert OTHER in counters.names
    counters.retain_targets(["redis"])
    counters.add(tick)
    assert counters.names == ("redis", OTHER, "batch")


def test_counters_unknown_node_counted_as_no_tier(topology: Topology, tick: TickRecord) -> None:
    counters = Counters(topology)
    counters.add(replace(tick, node=np.array([1, 7, 300, -3, 0, 3], np.int16)))
    assert counters.targets.accesses.tolist() == [[0, 0, 40], [10, 10, 0]]
    nodes = np.array([-1, 0, 1, 2, 3, 4], np.int16)
    assert counters.tier(nodes).tolist() == [2, 0, 2, 1, 1, 2]


def test_counters_loads_count_for_the_share_of_latency_that_they_waited(
    topology: Topology, tick: TickRecord
) -> None:
    counters = Counters(topology)
    counters.add(tick)
    use = counters.target_uses()["redis"]
    # Without a latency, a load is one that missed.
    assert use.loads.tolist() == use.accesses.tolist()
    idle_ns = topology.latency_ns[tick.node[0]]
    latency_ns = np.array([idle_ns / 2, 0, 0, 0, 0, 0], np.uint32)
    counters = Counters(topology)
    counters.add(replace(tick, batch=replace(tick.batch, latency_ns=latency_ns)))
    use = counters.target_uses()["redis"]
    assert use.loads.sum() * tick.tick_s == pytest.approx(tick.batch.period[0] / 2)
    assert use.accesses.sum() > use.loads.sum()


def test_counters_targets_over_limit_counted_as_other(topology: Topology, tick: TickRecord) -> None:
    counters = Counters(topology)
    counters.add_targets(f"t{i}" for i in range(MAX_TARGETS))
    counters.add(tick)
    assert "redis" not in counters.names
    assert counters.names[MAX_TARGETS:] == (OTHER,)
    assert counters.targets.samples[-1] == 6


def test_observer_targets_over_limit_shown_under_other(
    observer: Observer, tick: TickRecord
) -> None:
    processes = tuple(ProcessId(1000 + i, i) for i in range(MAX_TARGETS + 5))
    targets = tuple(f"t{i}" for i in range(len(processes)))
    many = replace(
        tick, processes=processes, targets=targets, batch=batch([]), node=np.empty(0, np.int16)
    )
    resident = np.ones((len(processes), 4), np.int64)
    now = observer.observe(many, ResidencyCounts(resident, places().heat_pages, HeatStats()))
    other = next(t for t in now.targets if t.name == OTHER)
    assert other.process_count == 7  # redis and batch came first
    assert other.resident_bytes == (7 * PAGE, 14 * PAGE)


def test_observer_reload_state_error_then_success(observer: Observer) -> None:
    first = observer.latest.reload
    observer.record_reload("f:1: tick: wrong")
    assert not observer.latest.reload.successful
    assert observer.latest.reload.success_s == first.success_s
    assert observer.latest.reload.error == "f:1: tick: wrong"
    observer.record_reload()
    assert observer.latest.reload.successful
    assert observer.latest.reload.success_s >= first.success_s


def test_observer_tiers_changed_counters_reset(
    observer: Observer, topology: Topology, tick: TickRecord
) -> None:
    observer.observe(tick, places())
    setting = replace(observer._setting, targets=("redis",))
    observer.reconfigure(setting, topology, QuietSampler())
    assert observer.latest.ticks == 1
    one_tier = Topology(tuple(replace(node, tier=0) for node in topology.nodes))
    observer.reconfigure(setting, one_tier, QuietSampler())
    assert observer.latest.ticks == 0
    assert observer.latest.tiers == ((0, 2, 3),)


def test_status_json_after_tick_expected_fields(observer: Observer, tick: TickRecord) -> None:
    observer.observe(tick, places())
    status = json.loads(status_answer(observer.latest))
    assert status["tiers"] == [[0], [2, 3]]
    assert status["moves"]["failures"] == {"busy": 1}
    assert status["moves"]["flows"] == [
        {"from_node": 0, "to_node": 2, "bytes": PAGE},
        {"from_node": 2, "to_node": 0, "bytes": 512 * PAGE},
    ]
    assert status["processes"][0]["pid"] == REDIS.pid
    assert status["sampler"]["lost"] == 1
    assert status["resident_bytes"] > 0


def test_observer_process_names_from_proc(
    topology: Topology, tick: TickRecord, tmp_path: Path
) -> None:
    (tmp_path / "101").mkdir()
    fields = " ".join(["0"] * 18)
    (tmp_path / "101/stat").write_text(f"101 (redis-server) S {fields} 1 0 0 {fields}")
    setting = Observer(_setting(), topology, QuietSampler(), proc=tmp_path)
    now = setting.observe(tick, places())
    assert [p.name for p in now.processes] == ["redis-server", "?"]


def _setting() -> ObservedConfig:
    return ObservedConfig("f", False, 1.0, 0.01, 0.01, "histogram", ())


@pytest.mark.parametrize(("seconds", "bin_index"), [(0.0, 0), (0.001, 0), (0.0011, 1), (99.0, 11)])
def test_durations_value_counted_in_its_bin(seconds: float, bin_index: int) -> None:
    durations = Durations()
    durations.add(seconds)
    assert durations.counts[bin_index] == sum(durations.counts) == 1
