# SPDX-License-Identifier: MIT
"""The emulated PMU: control words, fields of its samples, and release of its memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hmd.base.errors import MissingError, NotPermittedError
from hmd.sample.access_batch import Kind
from hmd.sample.emulated_pebs import PERIODS, open_emulated
from hmd.sample.periods import scaled_period
from hmd.sample.sampler import SampleSettings
from tests.fakes.open_descriptors import open_descriptors
from tests.fakes.plugin_memory import EmulatedMemory
from tests.fakes.toucher import Toucher

ROOT = 77
Physical = Callable[[int, int], int]


def test_emulated_pmu_controls_follow_tracking_and_period(
    emulated_memory: EmulatedMemory, toucher: Toucher
) -> None:
    sampler = open_emulated(sysfs=emulated_memory.sysfs)
    assert emulated_memory.control[3] == 0
    sampler.set_period(47)
    assert emulated_memory.control[3] == 0, "nothing is sampled while nothing is tracked"
    sampler.track([toucher.process])
    assert emulated_memory.control == (47, scaled_period(47, 64), 0, 1)
    sampler.set_period(PERIODS[0])
    assert emulated_memory.control == (7, scaled_period(7, 64), 0, 1)
    assert emulated_memory.prefetched_period == scaled_period(7, 32)
    sampler.track([])
    assert emulated_memory.control[3] == 0
    sampler.track([toucher.process])
    sampler.close()
    assert emulated_memory.control[3] == 0


def test_emulated_pmu_with_pairs_has_second_load_counter(
    emulated_memory: EmulatedMemory, toucher: Toucher, physical: Physical
) -> None:
    sampler = open_emulated(SampleSettings(period=199, pairs=True), sysfs=emulated_memory.sysfs)
    sampler.track([toucher.process])
    assert (emulated_memory.control, emulated_memory.pair_period) == (
        (199, scaled_period(199, 64), 0, 1),
        211,
    )
    load, store = toucher.touch(2)
    pid = toucher.process.pid
    emulated_memory.sample(0, ROOT, load, physical(pid, load))
    emulated_memory.sample(0, ROOT, store, physical(pid, store), store=True)
    assert sampler.read().period.tolist() == [102, scaled_period(199, 64)]
    sampler.set_period(47)
    assert (emulated_memory.control, emulated_memory.pair_period) == (
        (47, scaled_period(47, 64), 0, 1),
        53,
    )
    sampler.close()
    daemons = open_emulated(SampleSettings(period=199), sysfs=emulated_memory.sysfs)
    daemons.track([toucher.process])
    assert emulated_memory.pair_period == 0
    daemons.close()


def test_probing_samplers_keeps_emulated_sampling_on(
    emulated_memory: EmulatedMemory, toucher: Toucher
) -> None:
    sampler = open_emulated(sysfs=emulated_memory.sysfs)
    sampler.track([toucher.process])
    open_emulated(sysfs=emulated_memory.sysfs).close()
    assert emulated_memory.control[3] == 1
    sampler.close()


def test_emulated_sample_has_kind_latency_period_cpu_time(
    emulated_memory: EmulatedMemory, toucher: Toucher, physical: Physical
) -> None:
    sampler = open_emulated(SampleSettings(period=59), sysfs=emulated_memory.sysfs)
    sampler.track([toucher.process])
    load, store = toucher.touch(2)
    pid = toucher.process.pid
    emulated_memory.sample(0, ROOT, load, physical(pid, load))
    emulated_memory.sample(1, ROOT, store, physical(pid, store), store=True)
    batch = sampler.read()
    sampler.close()
    assert batch.address.tolist() == [load, store]
    assert batch.kind.tolist() == [Kind.LOAD, Kind.STORE]
    assert batch.cpu.tolist() == [0, 1]
    assert batch.latency_ns.tolist() == [305, 305]
    assert batch.period.tolist() == [59, scaled_period(59, 64)]
    assert batch.time_ns.tolist() == [12345, 12345]
    assert batch.instructions is not None
    assert batch.instructions.tolist() == [678, 678]
    assert batch.process.tolist() == [0, 0]


@pytest.mark.parametrize("timestamps", [True, False])
def test_emulated_pmu_with_timestamps_costs_an_interrupt_per_sample(
    emulated_memory: EmulatedMemory, toucher: Toucher, timestamps: bool
) -> None:
    sampler = open_emulated(SampleSettings(timestamps=timestamps), sysfs=emulated_memory.sysfs)
    sampler.track([toucher.process])
    assert emulated_memory.each_interrupts == timestamps
    sampler.close()


def test_emulated_pmu_counts_lost_samples(
    emulated_memory: EmulatedMemory, toucher: Toucher
) -> None:
    sampler = open_emulated(sysfs=emulated_memory.sysfs)
    sampler.track([toucher.process])
    emulated_memory.lost(0, 40)
    emulated_memory.lost(1, 2)
    sampler.read()
    assert sampler.stats.lost == 42
    sampler.close()
    assert sampler.stats.lost == 42


def test_emulated_pmu_skips_samples_before_opening(
    emulated_memory: EmulatedMemory, toucher: Toucher, physical: Physical
) -> None:
    (page,) = toucher.touch(1)
    emulated_memory.sample(0, ROOT, page, physical(toucher.process.pid, page))
    sampler = open_emulated(sysfs=emulated_memory.sysfs)
    sampler.track([toucher.process])
    assert emulated_memory.unread(0) == 0
    assert len(sampler.read()) == 0
    assert (sampler.stats.samples, sampler.stats.dropped) == (0, 0)
    sampler.close()


def test_emulated_pmu_reopened_leaks_no_mapping(emulated_memory: EmulatedMemory) -> None:
    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count("resource2")

    before = mappings(), open_descriptors()
    for _ in range(200):
        sampler = open_emulated(sysfs=emulated_memory.sysfs)
        assert mappings() > before[0]
        sampler.read()
        sampler.close()
    assert (mappings(), open_descriptors()) == before


def test_emulated_pmu_on_other_machine_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="start one with hmd emulate"):
        open_emulated(sysfs=tmp_path)


def test_emulated_pmu_without_capability_is_refused(
    emulated_memory: EmulatedMemory, tmp_path: Path
) -> None:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/status").write_text("CapEff:\t0000000000000000\n")
    with pytest.raises(NotPermittedError, match="run hmd as root"):
        open_emulated(sysfs=emulated_memory.sysfs, proc=proc)


def test_emulated_pmu_scales_tagged_loads_by_the_counter_of_misses(
    emulated_memory: EmulatedMemory, toucher: Toucher, physical: Physical
) -> None:
    """Two samples, while the CPU missed 300 times; the other CPU's do not count."""
    settings = SampleSettings(period=7, loads="latency")
    sampler = open_emulated(settings, sysfs=emulated_memory.sysfs)
    assert emulated_memory.tags_loads
    sampler.track([toucher.process])
    load, store = toucher.touch(2)
    pid = toucher.process.pid
    for _ in range(2):
        emulated_memory.sample(0, ROOT, load, physical(pid, load))
    emulated_memory.sample(0, ROOT, store, physical(pid, store), store=True)
    emulated_memory.miss(0, 200, node=0)
    emulated_memory.miss(0, 100, node=1)
    emulated_memory.miss(1, 7000, node=1)
    batch = sampler.read()
    assert batch.period[batch.kind == Kind.LOAD].tolist() == [150, 150]
    assert batch.period[batch.kind == Kind.STORE].tolist() == [scaled_period(7, 64)]
    sampler.close()
    counted = open_emulated(SampleSettings(loads="miss"), sysfs=emulated_memory.sysfs)
    assert not emulated_memory.tags_loads
    counted.close()
