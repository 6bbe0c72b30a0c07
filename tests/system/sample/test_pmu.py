"""Opening a PMU's events on a real kernel.

Where there is no PMU, a sysfs tree stands for one whose type is the kernel's software events: its
loads are page faults and its stores minor faults, so that everything but the hardware is real.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmd.errors import UnavailableError
from hmd.machine.procfs import parse_ids
from hmd.sample.access_batch import Kind
from hmd.sample.memory_events import STORE_SCALE, EventChoice
from hmd.sample.period_control import PRIMES, stands_for
from hmd.sample.pmu import open_pmu

pytestmark = pytest.mark.root

ONLINE = Path("/sys/devices/system/cpu/online").read_text().strip()
CPUS = len(parse_ids(ONLINE))
"""The host's CPUs: a sampler opens an event on each, whatever the affinity of the tests."""
FAULTS, MINOR_FAULTS, CLOCK, NONSENSE = "event=0x2", "event=0x5", "event=0x0", "event=0xff"


class Machine:
    """A /sys and a /proc of an Intel CPU at 2 GHz."""

    def __init__(self, root: Path) -> None:
        self.sysfs, self.proc = root / "sys", root / "proc"
        self.proc.mkdir(parents=True)
        self._write(self.sysfs / "devices/system/cpu/online", ONLINE)
        cpuinfo = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\ncpu MHz\t\t: 2000.0\n"
        self._write(self.proc / "cpuinfo", cpuinfo)
        # The process table is the real one.
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                (self.proc / entry.name).symlink_to(entry)

    def pmu(self, name: str = "cpu", cpus: str | None = None, **events: str) -> None:
        device = self.sysfs / "bus/event_source/devices" / name
        self._write(device / "type", "1")
        self._write(device / "format/event", "config:0-7")
        self._write(device / "format/ldlat", "config1:0-15")
        self._write(device / "caps/max_precise", "3")
        if cpus is not None:
            self._write(device / "cpus", cpus)
        for event, terms in events.items():
            self._write(device / "events" / event.replace("_", "-"), terms)

    def amd(self) -> None:
        """An AMD CPU instead; its IBS is the CPU clock."""
        cpuinfo = (self.proc / "cpuinfo").read_text()
        self._write(self.proc / "cpuinfo", cpuinfo.replace("GenuineIntel", "AuthenticAMD"))
        device = self.sysfs / "bus/event_source/devices/ibs_op"
        self._write(device / "type", "1")
        self._write(device / "format/cnt_ctl", "config:1")

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


@pytest.fixture
def machine(tmp_path: Path, toucher: Any) -> Machine:
    return Machine(tmp_path)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_loads_and_stores_from_rings_of_their_own(machine: Machine, toucher: Any) -> None:
    machine.pmu(mem_loads=FAULTS, mem_stores=MINOR_FAULTS)
    sampler = open_pmu(EventChoice(), 199, machine.proc, machine.sysfs)
    sampler.track([toucher.process])
    pages = toucher.touch(64)
    batch = sampler.read()
    sampler.close()
    for kind in (Kind.LOAD, Kind.STORE):
        rows = (batch.kind == kind) & np.isin(batch.address, list(pages))
        assert sorted(batch.address[rows].tolist()) == list(pages)
    assert sampler.name == "pmu"
    assert sampler.detail == f"cpu/mem-loads,ldlat=30/ and cpu/mem-stores/ on {CPUS} CPUs"
    assert sampler.ladder == PRIMES


def test_pairs_are_loads_counted_twice(machine: Machine, toucher: Any) -> None:
    machine.pmu(mem_loads=FAULTS, mem_stores=MINOR_FAULTS)
    before = descriptors()
    sampler = open_pmu(EventChoice(), 199, machine.proc, machine.sysfs, pairs=True)
    assert descriptors() == before + 3 * CPUS
    assert (sampler.period, sampler.pair_period) == (199, 211)
    assert sampler.detail == f"cpu/mem-loads,ldlat=30/ twice and cpu/mem-stores/ on {CPUS} CPUs"
    sampler.track([toucher.process])
    pages = toucher.touch(64)
    batch = sampler.read()
    sampler.track([])
    sampler.close()
    assert descriptors() == before
    # Software events give every fault to each counter, whatever its period, where it is told too.
    rows = np.isin(batch.address, list(pages))
    loads, stores = rows & (batch.kind == Kind.LOAD), rows & (batch.kind == Kind.STORE)
    assert sorted(batch.address[loads].tolist()) == sorted([*pages, *pages])
    assert sorted(batch.address[stores].tolist()) == list(pages)
    assert set(batch.period[loads].tolist()) == {stands_for(199, 211)}
    assert set(batch.period[stores].tolist()) == {1}


def test_a_second_counter_counts_in_the_group_of_the_auxiliary_event(
    machine: Machine, toucher: Any
) -> None:
    machine.pmu(mem_loads=FAULTS, mem_loads_aux=CLOCK)
    before = descriptors()
    choice = EventChoice(stores=False)
    sampler = open_pmu(choice, 199, machine.proc, machine.sysfs, pairs=True)
    assert descriptors() == before + 3 * CPUS
    sampler.track([toucher.process])
    pages = toucher.touch(16)
    assert np.isin(sampler.read().address, list(pages)).sum() == 32
    sampler.track([])
    sampler.close()
    assert descriptors() == before


def test_where_the_second_counter_is_refused_one_is_enough(machine: Machine, toucher: Any) -> None:
    """There are descriptors for one counter a CPU and not for the second."""
    machine.pmu(mem_loads=FAULTS)
    choice = EventChoice(stores=False)
    before = descriptors()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir()) + 1
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(free - before)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + CPUS, limits[1]))
    try:
        sampler = open_pmu(choice, 199, machine.proc, machine.sysfs, pairs=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in held:
            os.close(fd)
    assert sampler.pair_period is None
    assert sampler.detail.startswith(
        f"cpu/mem-loads,ldlat=30/ on {CPUS} CPUs, without pairs: cannot open"
    )
    assert "a second time on CPU" in sampler.detail
    assert "\n" not in sampler.detail
    sampler.track([toucher.process])
    pages = toucher.touch(64)
    batch = sampler.read()
    sampler.close()
    rows = np.isin(batch.address, list(pages))
    assert sorted(batch.address[rows].tolist()) == list(pages)
    assert set(batch.period[rows].tolist()) == {1}, "as the kernel tells it"
    assert descriptors() == before


def test_an_event_that_only_one_counter_can_count_has_no_pairs(machine: Machine) -> None:
    machine.amd()
    sampler = open_pmu(EventChoice(), None, machine.proc, machine.sysfs, pairs=True)
    sampler.close()
    assert sampler.pair_period is None
    assert sampler.detail == (
        f"ibs_op/cnt_ctl/ on {CPUS} CPUs, without pairs: a CPU has one counter for ibs_op/cnt_ctl/"
    )


def test_samples_have_a_time_where_it_is_asked_for(machine: Machine, toucher: Any) -> None:
    machine.pmu(mem_loads=FAULTS)
    choice = EventChoice(stores=False)
    for timestamps in (False, True):
        sampler = open_pmu(choice, 199, machine.proc, machine.sysfs, timestamps=timestamps)
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


def test_an_auxiliary_event_leads_its_group(machine: Machine, toucher: Any) -> None:
    machine.pmu(mem_loads=FAULTS, mem_loads_aux=CLOCK)
    before = descriptors()
    choice = EventChoice(stores=False)
    sampler = open_pmu(choice, None, machine.proc, machine.sysfs)
    assert descriptors() == before + 2 * CPUS
    sampler.track([toucher.process])
    pages = toucher.touch(16)
    batch = sampler.read()
    assert np.isin(list(pages), batch.address).all()
    sampler.track([])
    sampler.close()
    assert descriptors() == before


def test_cores_of_two_kinds_have_their_own_events(machine: Machine, toucher: Any) -> None:
    machine.pmu("cpu_core", "0", mem_loads=FAULTS, mem_stores=MINOR_FAULTS)
    machine.pmu("cpu_atom", "1", mem_loads=MINOR_FAULTS, mem_stores=MINOR_FAULTS)
    before = descriptors()
    sampler = open_pmu(EventChoice(), None, machine.proc, machine.sysfs)
    assert descriptors() == before + 4
    assert "cpu_core/mem-loads" in sampler.detail
    assert "cpu_atom/mem-stores" in sampler.detail
    sampler.close()


def test_without_stores_loads_are_sampled_alone(machine: Machine) -> None:
    machine.pmu(mem_loads=FAULTS, mem_stores=NONSENSE)
    sampler = open_pmu(EventChoice(), None, machine.proc, machine.sysfs)
    sampler.close()
    assert sampler.detail == f"cpu/mem-loads,ldlat=30/ on {CPUS} CPUs"


def test_without_loads_there_is_no_sampler_and_nothing_stays_open(machine: Machine) -> None:
    machine.pmu(mem_loads=NONSENSE, mem_stores=FAULTS)
    before = descriptors()
    with pytest.raises(UnavailableError, match="no such event"):
        open_pmu(EventChoice(), None, machine.proc, machine.sysfs)
    assert descriptors() == before


def test_a_latency_is_in_nanoseconds(machine: Machine) -> None:
    machine.pmu(mem_loads=FAULTS)
    sampler = open_pmu(EventChoice(stores=False), None, machine.proc, machine.sysfs)
    assert sampler._ns_per_weight == pytest.approx(0.5)
    sampler.close()


@pytest.mark.parametrize(("asked", "given"), [(1, 199), (1009, 1009), (10**7, 19997)])
def test_periods_stay_on_the_ladder(machine: Machine, asked: int, given: int) -> None:
    machine.pmu(mem_loads=FAULTS, mem_stores=MINOR_FAULTS)
    sampler = open_pmu(EventChoice(), asked, machine.proc, machine.sysfs)
    assert sampler.period == given
    assert sampler.set_period(211) == 211
    sampler.close()
    assert STORE_SCALE > 1
