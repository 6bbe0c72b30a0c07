# SPDX-License-Identifier: MIT
"""Opening a PMU's events on a real kernel.

Where there is no PMU, a sysfs tree stands for one whose type is the kernel's software events: its
loads are page faults and its stores minor faults, so that everything but the hardware is real.
"""

from __future__ import annotations

import errno
import gc
import mmap
import os
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmd.base.errors import UnavailableError
from hmd.linux.procfs import ProcessId, identify
from hmd.sample import memory_events, perf_events, pmu
from hmd.sample.access_batch import Kind
from hmd.sample.cpu_models import RawEvent, RawEvents
from hmd.sample.perf_events import EventRing, PerfError, PerfEvent
from hmd.sample.periods import PRIME_PERIODS, STORE_PERIOD_RATIO, accesses_per_sample
from hmd.sample.pmu import open_pmu
from hmd.sample.sampler import SampleSettings
from tests.fakes.open_descriptors import open_descriptors
from tests.fakes.software_pmu import CLOCK, CPUS, FAULTS, MINOR_FAULTS, NONSENSE, SoftwarePmu
from tests.fakes.toucher import Toucher


@pytest.fixture
def counts_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the PMU an event of loads that miss, which two counters can count at once."""
    events = RawEvents(load_miss=RawEvent("faults", 0x2), stores=RawEvent("minor-faults", 0x5))
    monkeypatch.setattr(memory_events, "find_raw_events", lambda cpu, pmu: events)


ON_CPUS = f"in user and kernel mode on {CPUS} CPUs"


def descriptors() -> int:
    gc.collect()  # those of objects that tests before have left
    return open_descriptors()


def test_pmu_with_loads_and_stores_samples_both(
    software_pmu: SoftwarePmu, toucher: Toucher
) -> None:
    software_pmu.device(mem_loads=FAULTS, mem_stores=MINOR_FAULTS)
    sampler = open_pmu(SampleSettings(period=199), software_pmu.proc, software_pmu.sysfs)
    sampler.track([toucher.process])
    pages = toucher.touch(64)
    batch = sampler.read()
    sampler.close()
    for kind in (Kind.LOAD, Kind.STORE):
        rows = (batch.kind == kind) & np.isin(batch.address, list(pages))
        assert sorted(batch.address[rows].tolist()) == list(pages)
    assert sampler.name == "pmu"
    assert sampler.detail == f"cpu/mem-loads,ldlat=30/ and cpu/mem-stores/ {ON_CPUS}"
    assert sampler.periods == PRIME_PERIODS


def this_process() -> ProcessId:
    process = identify(os.getpid())
    assert process is not None
    return process


def read_into_new_buffer(pages: int) -> int:
    """Let the kernel write pages that this process has not touched; return where they begin."""
    buffer = mmap.mmap(-1, pages * mmap.PAGESIZE)
    buffer.madvise(mmap.MADV_NOHUGEPAGE)
    address = int(np.frombuffer(buffer, np.uint8).ctypes.data)
    with Path("/dev/zero").open("rb", buffering=0) as zero:
        assert zero.readinto(buffer) == len(buffer)
    return address


@pytest.mark.parametrize("kernel_mode", [True, False])
def test_pmu_samples_what_the_kernel_accesses_for_a_program(
    software_pmu: SoftwarePmu, kernel_mode: bool
) -> None:
    """read(2) faults in kernel mode, at addresses of the program."""
    software_pmu.device(mem_loads=FAULTS)
    choice = SampleSettings(period=199, stores=False, kernel_mode=kernel_mode)
    sampler = open_pmu(choice, software_pmu.proc, software_pmu.sysfs)
    sampler.track([this_process()])
    sampler.read()
    start = read_into_new_buffer(16)
    batch = sampler.read()
    sampler.close()
    seen = np.unique(batch.address // mmap.PAGESIZE * mmap.PAGESIZE)
    expected = start + mmap.PAGESIZE * np.arange(16, dtype=np.uint64)
    assert np.isin(expected, seen).all() == kernel_mode
    assert ("in user and kernel mode" in sampler.detail) == kernel_mode


def test_pmu_without_permission_for_kernel_mode_samples_user_mode(
    software_pmu: SoftwarePmu, toucher: Toucher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A security module may refuse kernel mode (security_perf_event_open)."""
    software_pmu.device(mem_loads=FAULTS)
    opened = perf_events.open_rings

    def refuse(event: PerfEvent, *args: Any, **options: Any) -> list[EventRing]:
        if not event.exclude_kernel:
            raise PerfError(errno.EACCES, "cannot open it")
        return opened(event, *args, **options)

    monkeypatch.setattr(pmu, "open_rings", refuse)
    choice = SampleSettings(period=199, stores=False)
    sampler = open_pmu(choice, software_pmu.proc, software_pmu.sysfs)
    sampler.track([toucher.process])
    pages = toucher.touch(16)
    batch = sampler.read()
    sampler.close()
    assert np.isin(list(pages), batch.address).all()
    assert "in user mode (kernel mode is not permitted) on" in sampler.detail


@pytest.mark.usefixtures("counts_misses")
def test_pmu_with_pairs_counts_loads_twice(software_pmu: SoftwarePmu, toucher: Toucher) -> None:
    software_pmu.device()
    before = descriptors()
    settings = SampleSettings(period=199, pairs=True)
    sampler = open_pmu(settings, software_pmu.proc, software_pmu.sysfs)
    assert descriptors() == before + 3 * CPUS
    assert (sampler.period, sampler.pair_period) == (199, 211)
    assert sampler.detail == f"cpu/faults/ twice and cpu/minor-faults/ {ON_CPUS}"
    sampler.track([toucher.process])
    pages = toucher.touch(64)
    batch = sampler.read()
    sampler.track([])
    sampler.close()
    assert descriptors() == before
    # Software events give every fault to each counter, whatever its period.
    rows = np.isin(batch.address, list(pages))
    loads, stores = rows & (batch.kind == Kind.LOAD), rows & (batch.kind == Kind.STORE)
    assert sorted(batch.address[loads].tolist()) == sorted([*pages, *pages])
    assert sorted(batch.address[stores].tolist()) == list(pages)
    assert set(batch.period[loads].tolist()) == {accesses_per_sample(199, 211)}
    assert set(batch.period[stores].tolist()) == {1}


def test_pmu_of_load_latency_has_no_pairs(software_pmu: SoftwarePmu) -> None:
    """The core tags one load at a time: a second counter would count what the first left."""
    software_pmu.device(mem_loads=FAULTS, mem_loads_aux=CLOCK)
    choice = SampleSettings(period=199, stores=False, pairs=True)
    sampler = open_pmu(choice, software_pmu.proc, software_pmu.sysfs)
    sampler.close()
    assert sampler.pair_period is None
    assert "without pairs: a CPU has one counter for cpu/mem-loads" in sampler.detail


@pytest.mark.usefixtures("counts_misses")
def test_pmu_without_descriptors_for_pairs_samples_with_one_counter(
    software_pmu: SoftwarePmu, toucher: Toucher
) -> None:
    """There are descriptors for one counter a CPU and not for the second."""
    software_pmu.device()
    choice = SampleSettings(period=199, stores=False, pairs=True)
    before = descriptors()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir()) + 1
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(free - before)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + CPUS, limits[1]))
    try:
        sampler = open_pmu(choice, software_pmu.proc, software_pmu.sysfs)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in held:
            os.close(fd)
    assert sampler.pair_period is None
    assert sampler.detail.startswith(f"cpu/faults/ {ON_CPUS}, without pairs: cannot open")
    assert "a second time on CPU" in sampler.detail
    assert "\n" not in sampler.detail
    sampler.track([toucher.process])
    pages = toucher.touch(64)
    batch = sampler.read()
    sampler.close()
    rows = np.isin(batch.address, list(pages))
    assert sorted(batch.address[rows].tolist()) == list(pages)
    assert set(batch.period[rows].tolist()) == {1}, "as the kernel reports it"
    assert descriptors() == before


def test_pmu_event_of_a_single_counter_has_no_pairs(software_pmu: SoftwarePmu) -> None:
    software_pmu.amd()
    sampler = open_pmu(SampleSettings(pairs=True), software_pmu.proc, software_pmu.sysfs)
    sampler.close()
    assert sampler.pair_period is None
    assert sampler.detail == (
        f"ibs_op/cnt_ctl/ {ON_CPUS}, without pairs: a CPU has one counter for ibs_op/cnt_ctl/"
    )


def test_pmu_with_timestamps_records_monotonic_time(
    software_pmu: SoftwarePmu, toucher: Toucher
) -> None:
    software_pmu.device(mem_loads=FAULTS)
    for timestamps in (False, True):
        choice = SampleSettings(period=199, stores=False, timestamps=timestamps)
        sampler = open_pmu(choice, software_pmu.proc, software_pmu.sysfs)
        sampler.track([toucher.process])
        before_ns = time.monotonic_ns()
        pages = toucher.touch(8)
        after_ns = time.monotonic_ns()
        batch = sampler.read()
        sampler.close()
        time_ns = batch.time_ns[np.isin(batch.address, list(pages))]
        assert len(time_ns) == 8
        if timestamps:
            assert (time_ns >= before_ns).all() and (time_ns <= after_ns).all()
        else:
            assert not time_ns.any()


def test_pmu_with_auxiliary_event_samples_loads(
    software_pmu: SoftwarePmu, toucher: Toucher
) -> None:
    software_pmu.device(mem_loads=FAULTS, mem_loads_aux=CLOCK)
    before = descriptors()
    choice = SampleSettings(stores=False)
    sampler = open_pmu(choice, software_pmu.proc, software_pmu.sysfs)
    assert descriptors() == before + 2 * CPUS
    sampler.track([toucher.process])
    pages = toucher.touch(16)
    batch = sampler.read()
    assert np.isin(list(pages), batch.address).all()
    sampler.track([])
    sampler.close()
    assert descriptors() == before


def test_pmu_of_hybrid_cpu_opens_events_of_each_core_type(
    software_pmu: SoftwarePmu, toucher: Toucher
) -> None:
    software_pmu.device("cpu_core", "0", mem_loads=FAULTS, mem_stores=MINOR_FAULTS)
    software_pmu.device("cpu_atom", "1", mem_loads=MINOR_FAULTS, mem_stores=MINOR_FAULTS)
    before = descriptors()
    sampler = open_pmu(SampleSettings(), software_pmu.proc, software_pmu.sysfs)
    assert descriptors() == before + 4
    assert "cpu_core/mem-loads" in sampler.detail
    assert "cpu_atom/mem-stores" in sampler.detail
    sampler.close()


def test_pmu_without_store_event_samples_loads(software_pmu: SoftwarePmu) -> None:
    software_pmu.device(mem_loads=FAULTS, mem_stores=NONSENSE)
    sampler = open_pmu(SampleSettings(), software_pmu.proc, software_pmu.sysfs)
    sampler.close()
    assert sampler.detail == f"cpu/mem-loads,ldlat=30/ {ON_CPUS}"


def test_pmu_without_load_event_is_refused_and_closes_descriptors(
    software_pmu: SoftwarePmu,
) -> None:
    software_pmu.device(mem_loads=NONSENSE, mem_stores=FAULTS)
    before = descriptors()
    with pytest.raises(UnavailableError, match="no such event"):
        open_pmu(SampleSettings(), software_pmu.proc, software_pmu.sysfs)
    assert descriptors() == before


def test_pmu_latency_is_scaled_to_nanoseconds(software_pmu: SoftwarePmu) -> None:
    software_pmu.device(mem_loads=FAULTS)
    sampler = open_pmu(SampleSettings(stores=False), software_pmu.proc, software_pmu.sysfs)
    (ring, *_) = sampler._rings
    assert isinstance(ring, EventRing)
    known = ring.times.ns_per_tsc  # the kernel of this host may say how fast its counter runs
    assert sampler._ns_per_latency_unit == pytest.approx(known or 0.5)
    assert not known or 0.1 < known < 2
    sampler.close()


@pytest.mark.parametrize(("asked", "given"), [(1, 199), (1009, 1009), (10**7, PRIME_PERIODS[-1])])
def test_pmu_period_is_rounded_to_the_ladder(
    software_pmu: SoftwarePmu, asked: int, given: int
) -> None:
    software_pmu.device(mem_loads=FAULTS, mem_stores=MINOR_FAULTS)
    sampler = open_pmu(SampleSettings(period=asked), software_pmu.proc, software_pmu.sysfs)
    assert sampler.period == given
    assert sampler.set_period(211) == 211
    sampler.close()
    assert STORE_PERIOD_RATIO > 1
