# SPDX-License-Identifier: MIT
"""Stages on this host: the CPU time that counts against the quota, page cache as room."""

from __future__ import annotations

import errno
import logging
import math
import time
from dataclasses import replace

import numpy as np
import pytest

from hmd.config.load import loads
from hmd.daemon.stages import Stages, build
from hmd.daemon.supervisors import EmptyTargets
from hmd.linux.procfs import ProcessId
from hmd.metrics.status import Stage, Work
from hmd.policy.admin import Pin
from hmd.sample.access_batch import AccessBatch
from hmd.sample.periods import PeriodControl, PeriodSettings, RecordTime
from hmd.sample.sampler import CAPABILITIES, SamplerStats
from hmd.sample.selection import OpenedSampler
from hmd.tick.cpu_budget import AccessSums, CostMeter, CpuBudget, TickGain
from hmd.tick.stage_runner import StageTimer

TEXT = "targets: [{name: a, pid: 1, follow_children: false}]\nsample: {sampler: faults}\n"


class Outside:
    """A sampler whose work is done by a thread of the kernel."""

    name = detail = "outside"
    capabilities = CAPABILITIES["damon"]
    periods: tuple[int, ...] = (1, 2, 4, 8, 16)
    pair_period: int | None = None

    def __init__(self) -> None:
        self.stats = SamplerStats()
        self.period = 1
        self.outside_cpu_s = 0.0
        self.record_time = RecordTime()
        self.batch = AccessBatch.empty()

    def set_period(self, period: int) -> int:
        self.period = period
        return period

    def track(self, processes: object) -> None: ...

    def read(self) -> AccessBatch:
        return self.batch

    def close(self) -> None: ...


@pytest.fixture
def stages() -> Stages:
    built = build(loads(TEXT, "test"))
    built.sampler.close()
    return built


def with_sampler(stages: Stages, sampler: Outside, settings: PeriodSettings) -> Stages:
    """The stages with another sampler, whose period the budget sets."""
    period = PeriodControl(settings, sampler.periods, sampler.period)
    return replace(
        stages,
        machine=replace(stages.machine, sampler=sampler),
        opened=OpenedSampler(sampler, "a test"),
        budget=CpuBudget(stages.budget.settings, period),
        meter=CostMeter(sampler),
    )


def run_tick(stages: Stages, begin_s: float, end_s: float, demotion_cpu_s: float = 0.0) -> None:
    """Run a tick, and add what it cost to the budget."""
    runner = StageTimer()
    stages.meter.start(begin_s)
    record = stages.tick(begin_s, runner)
    costs = stages.meter.measure(end_s, runner.cpu_s, demotion_cpu_s)
    stages.budget.update(costs, record, load_changed=False)


@pytest.mark.parametrize(("share", "most"), [(0.0, 1), (0.5, 16)])
def test_cpu_quota_includes_kernel_thread_time(stages: Stages, share: float, most: int) -> None:
    sampler = Outside()
    ours = with_sampler(stages, sampler, PeriodSettings())
    for second in range(1, 60):
        sampler.outside_cpu_s += share
        run_tick(ours, float(second), float(second))
    assert sampler.period == most
    stages.exits.close()


def test_overhead_of_records_lengthens_the_period_and_is_published(stages: Stages) -> None:
    sampler = Outside()
    sampler.capabilities = CAPABILITIES["pmu"]
    taken_s = 0.0
    ours = with_sampler(stages, sampler, PeriodSettings(overhead=0.01))
    for second in range(1, 12):
        sampler.stats.samples += 1000
        taken_s += 40_000 // sampler.period * 1e-6
        sampler.record_time = RecordTime(taken_s, float(second))
        run_tick(ours, float(second), float(second))
    assert sampler.period == 4
    assert ours.budget.overhead == pytest.approx(0.01)
    stages.exits.close()


@pytest.mark.parametrize(("share", "counts"), [("0%", False), ("100%", True)])
def test_page_cache_setting_decides_whether_cache_is_room(share: str, counts: bool) -> None:
    built = build(loads(f"{TEXT}\nmigrate: {{page_cache: {share}}}", "test"))
    memory = built.machine.node_memory(built.topology, 0.0)
    built.close()
    assert (sum(node.cache_bytes for node in memory) > 0) == counts


class FailsOnce(Outside):
    """A sampler that cannot follow its processes at first."""

    def __init__(self) -> None:
        super().__init__()
        self.tracked: list[object] = []

    def track(self, processes: object) -> None:
        self.tracked.append(processes)
        if len(self.tracked) == 1:
            raise OSError(errno.ENOMEM, "no memory")


def test_processes_that_could_not_be_tracked_are_tracked_in_the_next_tick(stages: Stages) -> None:
    sampler = FailsOnce()
    ours = with_sampler(stages, sampler, PeriodSettings())
    with pytest.raises(OSError, match="no memory"):
        ours.track_processes(1.0)
    assert ours.track_processes(1.1)
    assert ours.tracked.processes == ours.state.heat.processes
    assert sampler.tracked == [ours.tracked.processes] * 2
    assert not ours.track_processes(1.2)
    stages.exits.close()


@pytest.mark.parametrize("text", [TEXT, f"{TEXT}\nheat: {{store_weight: 2}}"])
def test_stages_after_reload_have_the_processes_of_heat(stages: Stages, text: str) -> None:
    stages.track_processes(1.0)
    after = build(loads(text, "test"), stages)
    after.admin.target_pins["a"] = Pin(None, 0)
    mask = after.admin.pinned_mask(after.state.heat.processes, after.tracked.targets)
    assert mask.tolist() == [True] * len(after.state.heat.processes)
    assert after.tracked.processes == after.state.heat.processes
    assert after.track_processes(1.1)
    assert after.tracked.processes == after.state.heat.processes == stages.tracked.processes
    assert not after.track_processes(1.2)
    stages.exits.close()
    after.exits.close()


@pytest.mark.parametrize(
    ("text", "active"),
    [("", True), ("decide: {policy: none}", False), ("decide: {locality: false}", False)],
)
def test_pages_change_nodes_of_a_tier_unless_configured_otherwise(text: str, active: bool) -> None:
    first = build(loads(TEXT, "test"))
    try:
        again = build(loads(f"{TEXT}{text}", "test"), first)
        assert again.state.locality is first.state.locality
        assert again.state.places_within_tiers is active
        assert first.state.places_within_tiers
    finally:
        first.sampler.close()


def test_mask_of_pins_is_refused_without_a_target_for_each_process(stages: Stages) -> None:
    stages.admin.target_pins["a"] = Pin(None, 0)
    with pytest.raises(ValueError, match="shorter"):
        stages.admin.pinned_mask((ProcessId(1, 1),), ())
    stages.exits.close()


def test_reload_charges_no_cache_demotion_of_the_past(stages: Stages) -> None:
    after = build(loads(TEXT, "test"), stages)
    after.meter.start(1.0, 600.0)
    costs = after.meter.measure(2.0, {}, 600.5)
    assert costs.cpu_s[Work.MIGRATE] == 0.5
    stages.exits.close()
    after.exits.close()


def burn(cpu_s: float) -> None:
    end_s = time.thread_time() + cpu_s
    while time.thread_time() < end_s:
        pass


def test_first_scan_is_owed_and_loading_of_kernels_is_not(stages: Stages) -> None:
    def scan(between: object, runs: object) -> dict[str, tuple[ProcessId, ...]]:
        burn(0.05)
        return {}

    stages.watcher.scan = scan  # type: ignore[assignment]
    credit_s, runner = stages.budget.cpu_debt_s, StageTimer()
    stages.meter.start(1.0)
    runner.run(Stage.SAMPLE, lambda: stages.track_processes(1.0), False, Work.DISCOVERY)
    burn(0.05)
    stages.meter.exclude(0.05)
    record = stages.tick(1.0, runner)
    stages.budget.update(stages.meter.measure(1.0, runner.cpu_s), record, load_changed=True)
    assert stages.budget.spent_s[Work.DISCOVERY] >= 0.05
    assert 0.05 <= stages.budget.cpu_debt_s - credit_s < 0.1
    stages.exits.close()


def test_calm_stages_look_at_samples_and_a_change_ends_the_wait_for_the_tick() -> None:
    built = build(loads(TEXT, "test"))
    built.sampler.close()
    sampler, process = Outside(), ProcessId(1, 1)
    built.machine = replace(built.machine, sampler=sampler)
    heat, allowance = built.state.heat, built.budget.allowance
    assert allowance is not None
    assert built.next_look_s == math.inf
    heat.track_processes([process])
    start = np.zeros(1, np.uint64)
    for at, node in enumerate((built.topology.tiers[0][0], len(built.topology.nodes))):
        heat.record_nodes(0, start + np.uint64(at << 21), np.full((1, 512), node, np.int8))
    fast = AccessSums(1000, 1e6, 1e6, 1.0)
    built.tick(0.0, StageTimer())
    while not allowance.is_calm:
        allowance.update(TickGain(fast), 10.0, hot_set_changed=False, planned=True)
    assert built.next_look_s < math.inf
    sampler.batch = AccessBatch.of(np.zeros(1000, np.uint64), process=0)
    assert not built.sees_change(1.0)
    sampler.batch = AccessBatch.of(np.full(1000, 1 << 21, np.uint64), process=0)
    assert built.sees_change(3.0)
    assert not allowance.is_calm
    sampler.batch = AccessBatch.empty()
    built.budget.tick_s = 10.0
    record = built.tick(3.5, StageTimer())
    assert record.tick_s == 3.5
    assert len(record.batch) == 2000
    built.exits.close()


def test_late_tick_lasts_since_the_one_before(stages: Stages) -> None:
    ours = with_sampler(stages, Outside(), PeriodSettings())
    # One comes late, one early, and before the last the daemon was stopped.
    times_s = (0.0, 4.0, 4.5, 1004.5)
    assert [ours.tick(each, StageTimer()).tick_s for each in times_s] == [1.0, 4.0, 1.0, 1.0]
    stages.exits.close()


def test_empty_targets_explained_one_by_one_and_as_rarely_as_their_cost_asks() -> None:
    text = "targets: [{name: a, exe: no-a}, {name: b, exe: no-b}]\nsample: {sampler: faults}\n"
    built = build(loads(text, "test"))
    try:
        empty = EmptyTargets(logging.getLogger("test"))
        assert set(empty.explain(built, 0.0, changed=True)) == {"a"}
        # Reading the processes of this host took CPU time: the other one waits for a hundredfold.
        assert set(empty.explain(built, 0.0, changed=True)) == {"a"}
        assert set(empty.explain(built, 500.0, changed=False)) == {"a", "b"}
        assert "no-b" in empty.explain(built, 500.0, changed=True)["b"]
    finally:
        built.close()
