# SPDX-License-Identifier: MIT
"""perf_event_open and its errors, on this host's kernel; descriptors and mappings are freed."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from hmd._native import lib
from hmd.base.errors import Exit, UnavailableError
from hmd.sample.access_batch import Kind
from hmd.sample.page_faults import open_faults
from hmd.sample.perf_events import EventRing, PerfError, PerfEvent, open_event, open_rings
from hmd.sample.perf_ring import RecordColumns, SampleType
from hmd.sample.pmu import PerfControl
from tests.fakes.open_descriptors import open_descriptors
from tests.fakes.toucher import Toucher

SOFTWARE, PAGE_FAULTS = 1, 2
TYPE = SampleType.TID | SampleType.ADDR
FAULTS = PerfEvent(SOFTWARE, PAGE_FAULTS, sample_type=TYPE, period=1)


def perf_mappings() -> int:
    return Path("/proc/self/maps").read_text().count("anon_inode:[perf_event]")


def in_child(check: Callable[[], None]) -> int:
    """Run ``check`` in a fork; 0 where it passes."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            check()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_perf_events_reopened_leak_nothing() -> None:
    open_faults().close()
    before = open_descriptors(), perf_mappings()
    for _ in range(200):
        sampler = open_faults(ring_pages=1)
        assert perf_mappings() > before[1]
        sampler.close()
    assert (open_descriptors(), perf_mappings()) == before


def test_perf_descriptors_are_closed_on_exec() -> None:
    fd = open_event(FAULTS, -1, 0)
    try:
        assert not os.get_inheritable(fd)
    finally:
        lib.hmd_perf_close(fd)


def test_inherited_event_without_ring_leaks_no_descriptor() -> None:
    before = open_descriptors()
    event = PerfEvent(SOFTWARE, PAGE_FAULTS, sample_type=TYPE, period=1, inherit=True)
    fd = open_event(event, 0, -1)
    with pytest.raises(PerfError, match="refused the event's encoding"):
        EventRing(fd, event, Kind.FAULT, 4)
    assert open_descriptors() == before


def test_perf_events_with_one_refused_are_all_closed(tmp_path: Path) -> None:
    before = open_descriptors(), perf_mappings()
    with pytest.raises(PerfError):
        open_rings(FAULTS, Kind.FAULT, [0, 1 << 20], 4, what="page faults")
    assert (open_descriptors(), perf_mappings()) == before


def test_group_leader_closes_with_its_event() -> None:
    before = open_descriptors()
    clock = PerfEvent(SOFTWARE, 0)
    rings = open_rings(FAULTS, Kind.FAULT, [0], 4, leader=clock)
    assert open_descriptors() == before + 2
    for ring in rings:
        ring.enable()
        ring.disable()
        ring.close()
        ring.close()
        assert not ring.drain(RecordColumns(1))
    assert open_descriptors() == before


def test_perf_pair_counts_with_two_periods(toucher: Toucher) -> None:
    before = open_descriptors()
    event = PerfEvent(SOFTWARE, PAGE_FAULTS, sample_type=TYPE, period=199)
    cpu = min(os.sched_getaffinity(0))  # the toucher's
    (first,) = open_rings(event, Kind.FAULT, [cpu], 16)
    second = first.open_second(211)
    control = PerfControl([first], None, [second])
    assert open_descriptors() == before + 2

    def samples(ring: EventRing) -> int:
        columns = RecordColumns(1 << 14)
        assert not ring.drain(columns)
        return columns.count

    for periods in ((199, 211), (47, 53)):
        control.set_period(periods[0])
        control.start()
        toucher.touch(8000)
        control.stop()
        # Both count the same faults, those of other programs on that CPU too.
        counted = [
            samples(ring) * period for ring, period in zip((first, second), periods, strict=True)
        ]
        assert min(counted) > 8000 - 2 * 211
        assert abs(counted[0] - counted[1]) < 2 * sum(periods)
        toucher.touch(1000)
        assert samples(first) == samples(second) == 0
    control.close()
    assert open_descriptors() == before


def test_perf_pair_refused_reports_the_second_counter() -> None:
    (ring,) = open_rings(FAULTS, Kind.FAULT, [0], 4)
    before = open_descriptors()
    with pytest.raises(PerfError, match="cannot open page faults a second time on CPU 0: "):
        ring.open_second(1 << 63, "page faults")  # a period that the kernel refuses
    assert open_descriptors() == before
    ring.close()


def test_group_leader_of_refused_event_is_closed() -> None:
    before = open_descriptors()
    nonsense = PerfEvent(0xFFFF, 0, sample_type=TYPE, period=1)
    with pytest.raises(PerfError):
        open_rings(nonsense, Kind.LOAD, [0], 4, leader=PerfEvent(SOFTWARE, 0))
    assert open_descriptors() == before


def test_perf_event_of_unknown_pmu_reports_what_to_do() -> None:
    with pytest.raises(PerfError, match="no such event: set sampler to faults") as raised:
        open_event(PerfEvent(0xFFFF, 0), -1, 0, what="cpu/mem-loads/")
    assert str(raised.value).startswith("cannot open cpu/mem-loads/ on CPU 0: ")
    assert isinstance(raised.value, UnavailableError)
    assert raised.value.exit_code is Exit.MISSING


def test_perf_event_beyond_file_limit_names_it() -> None:
    def check() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_descriptors(), open_descriptors()))
        with pytest.raises(PerfError, match="LimitNOFILE"):
            open_rings(FAULTS, Kind.FAULT, [0] * 100, 1)

    assert in_child(check) == 0


def test_perf_event_without_privilege_reports_what_to_do() -> None:
    paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    if paranoid < 1:
        pytest.skip(f"perf_event_paranoid is {paranoid}: everyone may")

    def check() -> None:
        os.setresuid(65534, 65534, 65534)
        with pytest.raises(PerfError, match=r"CAP_PERFMON.*perf_event_paranoid"):
            open_faults()

    assert in_child(check) == 0


def test_perf_ring_shrinks_to_the_mlock_limit() -> None:
    limit_kib = int(Path("/proc/sys/kernel/perf_event_mlock_kb").read_text())
    pages = 1
    while pages * 4 <= limit_kib * (os.cpu_count() or 1):
        pages *= 2
    pages *= 4

    def check() -> None:
        # CAP_IPC_LOCK lifts the limit, so that it must go; the event stays open.
        fd = open_event(FAULTS, 0, -1)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
        os.setresuid(65534, 65534, 65534)
        with closing(EventRing(fd, FAULTS, Kind.FAULT, pages)) as ring:
            assert 4 <= ring.pages < pages

    if int(Path("/proc/sys/kernel/perf_event_paranoid").read_text()) < 0:
        pytest.skip("perf_event_paranoid lifts the limit for everyone")
    assert in_child(check) == 0
