"""Stages on this host: the CPU time that counts against the quota, page cache as room."""

from __future__ import annotations

import errno
import time
from dataclasses import replace

import pytest

from hmd.config.load import loads
from hmd.control.admin_state import Pin
from hmd.daemon.stages import Stages, build
from hmd.machine.process_id import ProcessId
from hmd.observe.budget_numbers import Work
from hmd.pipeline.quota_control import QuotaControl
from hmd.sample.access_batch import AccessBatch
from hmd.sample.capabilities import CAPABILITIES
from hmd.sample.period_control import PeriodControl, PeriodSettings
from hmd.sample.record_cost import RecordTime
from hmd.sample.sampler import SamplerStats

TEXT = "targets: [{name: a, pid: 1}]\nsample: {sampler: faults}\n"


class Outside:
    """A sampler whose work is done by a thread of the kernel."""

    name = detail = "outside"
    capabilities = CAPABILITIES["damon"]
    ladder: tuple[int, ...] = (1, 2, 4, 8, 16)
    pair_period: int | None = None

    def __init__(self) -> None:
        self.stats = SamplerStats()
        self.period = 1
        self.outside_cpu_s = 0.0
        self.record_time = RecordTime()

    def set_period(self, period: int) -> int:
        self.period = period
        return period

    def track(self, processes: object) -> None: ...

    def read(self) -> AccessBatch:
        return AccessBatch.empty()

    def close(self) -> None: ...


@pytest.fixture
def stages() -> Stages:
    built = build(loads(TEXT, "test"))
    built.sampler.close()
    return built


@pytest.mark.parametrize(("share", "most"), [(0.0, 1), (0.5, 16)])
def test_cpu_quota_includes_kernel_thread_time(stages: Stages, share: float, most: int) -> None:
    sampler = Outside()
    control = PeriodControl(PeriodSettings(), sampler.ladder, sampler.period)
    ours = replace(stages, sampler=sampler, quota=QuotaControl(stages.budget, control))
    for second in range(1, 60):
        sampler.outside_cpu_s += share
        ours.begin_tick(float(second))
        ours.hold_quota(float(second), {}, changing=False)
    assert sampler.period == most
    stages.exits.close()


def test_overhead_of_records_lengthens_the_period_and_is_published(stages: Stages) -> None:
    sampler = Outside()
    sampler.capabilities = CAPABILITIES["pmu"]
    control = PeriodControl(PeriodSettings(overhead=0.01), sampler.ladder, sampler.period)
    taken_s = 0.0
    ours = replace(stages, sampler=sampler, quota=QuotaControl(stages.budget, control))
    for second in range(1, 10):
        sampler.stats.samples += 1000
        taken_s += 40_000 // sampler.period * 1e-6
        sampler.record_time = RecordTime(taken_s, float(second))
        ours.begin_tick(float(second))
        ours.hold_quota(float(second), {}, changing=False)
    assert sampler.period == 4
    assert ours.quota.overhead == pytest.approx(0.01)
    stages.exits.close()


@pytest.mark.parametrize(("share", "counts"), [("0%", False), ("100%", True)])
def test_page_cache_setting_decides_whether_cache_is_room(share: str, counts: bool) -> None:
    built = build(loads(f"{TEXT}\nmigrate: {{page_cache: {share}}}", "test"))
    memory = built.node_memory(built.topology, 0.0)
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
    ours = replace(stages, sampler=sampler)
    with pytest.raises(OSError, match="no memory"):
        ours.follow(1.0)
    assert ours.follow(1.1)
    assert ours.processes == ours.heat.processes
    assert sampler.tracked == [ours.processes] * 2
    assert not ours.follow(1.2)
    stages.exits.close()


@pytest.mark.parametrize("text", [TEXT, f"{TEXT}\nheat: {{store_weight: 2}}"])
def test_stages_after_reload_have_the_processes_of_heat(stages: Stages, text: str) -> None:
    stages.follow(1.0)
    after = build(loads(text, "test"), stages)
    after.admin.target_pins["a"] = Pin(None, 0)
    mask = after.admin.pinned_mask(after.heat.processes, after.targets)
    assert mask.tolist() == [True] * len(after.heat.processes)
    assert after.processes == after.heat.processes
    assert after.follow(1.1)
    assert after.processes == after.heat.processes == stages.processes
    assert not after.follow(1.2)
    stages.exits.close()
    after.exits.close()


def test_mask_of_pins_is_refused_without_a_target_for_each_process(stages: Stages) -> None:
    stages.admin.target_pins["a"] = Pin(None, 0)
    with pytest.raises(ValueError, match="shorter"):
        stages.admin.pinned_mask((ProcessId(1, 1),), ())
    stages.exits.close()


def test_reload_charges_no_cache_demotion_of_the_past(stages: Stages) -> None:
    stages.demotion_cpu_s = 600.0
    after = build(loads(TEXT, "test"), stages)
    after.follow(1.0)
    after.demotion_cpu_s = 600.5
    after.begin_tick(1.0)
    after.hold_quota(2.0, {}, changing=False)
    assert after.budget.spent_s[Work.MIGRATE] == 0.5
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
    credit_s = stages.budget.owed_s
    stages.follow(1.0)
    burn(0.05)
    stages.quota.exclude(0.05)
    stages.begin_tick(1.0)
    stages.hold_quota(1.0, {}, changing=True)
    assert 0.05 <= stages.budget.owed_s - credit_s < 0.1
    stages.exits.close()
