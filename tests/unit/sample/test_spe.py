# SPDX-License-Identifier: MIT
"""Samples of ARM SPE: packets that the tests make, and events of fixture machines."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmd._native import ffi, lib
from hmd.base.errors import MissingError
from hmd.linux.procfs import ProcessId, identify
from hmd.sample.access_batch import Kind
from hmd.sample.memory_events import Words, read_device
from hmd.sample.perf_events import PerfError
from hmd.sample.perf_ring import RecordColumns, Ring, SampleType
from hmd.sample.ring_sampler import RingSampler
from hmd.sample.sampler import SampleSettings
from hmd.sample.spe import (
    Decoding,
    SpeControl,
    SwitchLog,
    TrackedThreads,
    choose_terms,
    intervals,
    ns_per_cycle,
    open_spe,
)
from tests.fakes import spe_packets as packets
from tests.fakes.spe_packets import SpeMemory

SYSFS = Path(__file__).parents[2] / "fixtures/sysfs"
NEOVERSE = SYSFS / "neoverse-n1/sys"
HEAP = 0xFFFF_8000_1000
OWN = os.getpid()


def drain(memory: SpeMemory, capacity: int = 100) -> RecordColumns:
    columns = RecordColumns(capacity, optional=("code_address",))
    memory.reader.drain(columns)
    assert memory.word(packets.AUX_TAIL)[0] == memory.word(packets.AUX_HEAD)[0]
    return columns


def addresses(columns: RecordColumns) -> list[int]:
    found: list[int] = columns.address[: columns.count].tolist()
    return found


def test_record_becomes_a_row() -> None:
    memory = SpeMemory(Decoding(4096, ns_per_cycle=0.5))
    memory.write(packets.access(HEAP, latency=300, thread=71, physical=0x8_0000_2000))
    memory.write(packets.access(HEAP + 64, kind=packets.STORE, latency=300))
    columns = drain(memory)
    assert addresses(columns) == [HEAP, HEAP + 64]
    assert columns.kind[:2].tolist() == [Kind.LOAD, Kind.STORE]
    assert columns.latency[:2].tolist() == [150, 0]  # a store's is not how long a program waits
    assert columns.period[:2].tolist() == [4096, 4096]
    assert columns.cpu[:2].tolist() == [3, 3]
    assert columns.thread[:2].tolist() == [71, 0]
    assert columns.physical[:2].tolist() == [0x8_0000_2000, 0]
    assert columns.code_address[:2].tolist() == [0x400000, 0x400000]
    assert not memory.reader.pending


def test_timestamps_are_of_the_monotonic_clock() -> None:
    memory = SpeMemory()
    for time in (5_000, 10_000, 12_500, 0, 2**63):
        memory.write(packets.access(HEAP, time=time))
    clock = memory.reader.clock
    clock.counter, clock.monotonic_ns, clock.frequency_hz = 10_000, 900_000, 25_000_000
    # Not drain(), which reads this machine's counter where there is one.
    columns, counts = RecordColumns(9), ffi.new("struct hmd_ring_counts *")
    lib.hmd_spe_drain(memory.reader._area, columns.c, counts)
    assert columns.time_ns[:5].tolist() == [700_000, 900_000, 1_000_000, 0, 0]


@pytest.mark.parametrize("tag", [0, 0x5A, 0xFF])
def test_tag_of_an_address_is_ignored(tag: int) -> None:
    memory = SpeMemory()
    memory.write(packets.access(HEAP, tag=tag))
    assert addresses(drain(memory)) == [HEAP]


def test_access_to_kernel_address_is_counted_alone() -> None:
    memory = SpeMemory()
    memory.write(packets.access(0xFF_8000_0000_1000, tag=0))
    assert addresses(drain(memory)) == []
    assert memory.reader.counts.kernel_loads == 1


@pytest.mark.parametrize(
    ("record", "counter"),
    [
        (packets.access(HEAP, kind=packets.BRANCH), "skipped"),
        (packets.address(0, 1) + packets.LOAD + packets.END, "skipped"),
        (packets.access(HEAP, latency=29), "cached_loads"),
        (packets.access(HEAP, kind=packets.STORE, bits=0x06), "cached_stores"),
    ],
)
def test_record_that_tells_nothing_of_memory_is_counted(record: bytes, counter: str) -> None:
    memory = SpeMemory(Decoding(4096, min_latency=30))
    memory.write(record)
    assert drain(memory).count == 0
    assert getattr(memory.reader.counts, counter) == 1


@pytest.mark.parametrize(
    ("bits", "taken"),
    [(0x06, False), (0x0E, True), (0x10E, False), (0x30E, True)],
    ids=["hit L1", "missed L1", "hit the last cache", "missed the last cache"],
)
def test_misses_alone(bits: int, taken: bool) -> None:
    memory = SpeMemory(Decoding(4096, misses=True))
    memory.write(packets.access(HEAP, latency=5, bits=bits))
    assert drain(memory).count == taken


def test_extended_headers_and_unknown_indices_are_read_over() -> None:
    memory = SpeMemory()
    memory.write(
        packets.extended(packets.counter(0, 9), 1)  # counter 8: not the total latency
        + packets.extended(packets.address(2, 77), 2)  # address 18: no data address
        + packets.counter(0, 400)
        + packets.virtual(HEAP)
        + packets.source(0x0D)
        + packets.LOAD
        + packets.END
    )
    columns = drain(memory)
    assert addresses(columns) == [HEAP]
    assert columns.latency[0] == 400


def padding(offset: int) -> st.SearchStrategy[bytes]:
    pads = st.integers(0, 20).map(bytes)
    return st.one_of(pads, st.integers(1, 4).map(lambda bits: packets.alignment(offset, bits)))


@given(data=st.data(), count=st.integers(0, 12), start=st.integers(0, 63).map(lambda n: n * 64))
def test_any_padding_between_packets_changes_no_row(
    data: st.DataObject, count: int, start: int
) -> None:
    memory = SpeMemory()
    memory.word(packets.AUX_HEAD)[0] = memory.word(packets.AUX_TAIL)[0] = start
    written = b""
    for i in range(count):
        for packet in (
            packets.address(0, 0x400000),
            packets.counter(0, 100 + i),
            packets.LOAD,
            packets.virtual(HEAP + i),
            packets.END,
        ):
            written += packet
            written += data.draw(padding(start + len(written)))
    if start + len(written) > memory.area_bytes:  # the kernel never lets a record wrap
        return
    memory.write(written)
    columns = drain(memory)
    assert addresses(columns) == [HEAP + i for i in range(count)]
    assert columns.latency[:count].tolist() == [100 + i for i in range(count)]
    assert memory.reader.counts.corrupt == 0


def test_records_go_on_at_the_begin_of_the_area() -> None:
    memory = SpeMemory(area_bytes=256)
    for i in range(20):
        memory.write(packets.access(HEAP + i))
        assert addresses(drain(memory)) == [HEAP + i]


@given(cut=st.integers(0, 5 * 64), alone=st.booleans())
def test_cut_off_area_gives_its_whole_records(cut: int, alone: bool) -> None:
    memory = SpeMemory()
    stream = b"".join(packets.access(HEAP + i) for i in range(5))
    memory.write(stream[:cut] if alone else stream[:cut] + packets.access(HEAP + 9))
    found = addresses(drain(memory))
    whole = [HEAP + i for i in range(cut // 64)]
    assert found[: len(whole)] == whole
    assert set(found) <= {HEAP + i for i in range(10)}
    if alone:
        assert found == whole
        assert memory.reader.counts.corrupt == (1 if cut % 64 else 0)


def test_decoding_goes_on_after_garbage() -> None:
    memory = SpeMemory()
    memory.write(packets.access(HEAP))
    memory.write(b"\xff" * 64)
    memory.write(packets.access(HEAP + 1))
    assert addresses(drain(memory)) == [HEAP, HEAP + 1]
    assert memory.reader.counts.corrupt == 1


class GuardedArea:
    """A page between pages without access: a read out of bounds ends the test run."""

    def __init__(self) -> None:
        page = mmap.PAGESIZE
        self._map = mmap.mmap(-1, 3 * page)
        whole = np.frombuffer(self._map, np.uint8)
        libc = ctypes.CDLL(None)
        for guard in (0, 2):
            start = ctypes.c_void_p(whole.ctypes.data + guard * page)
            assert libc.mprotect(start, page, 0) == 0
        self.bytes = whole[page : 2 * page]


GUARDED = GuardedArea()


@given(
    data=st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from([packets.access(HEAP), packets.LOAD, packets.END, b"\x23\0", b"\x21"]),
        ),
        max_size=40,
    ),
    size=st.sampled_from([64, 1024, mmap.PAGESIZE]),
    head=st.integers(0, 2**64 - 1),
    ahead=st.integers(0, 5000),
    capacity=st.integers(0, 8),
)
def test_any_bytes_stay_in_bounds(
    data: list[bytes], size: int, head: int, ahead: int, capacity: int
) -> None:
    memory = SpeMemory()
    area = GUARDED.bytes[-size:]
    garbage = b"".join(data)[:size]
    area[:] = 0
    area[: len(garbage)] = np.frombuffer(garbage, np.uint8)
    reader = memory.reader_of(area)
    memory.word(packets.AUX_HEAD)[0] = head
    memory.word(packets.AUX_TAIL)[0] = (head - ahead) % 2**64
    columns = RecordColumns(capacity)
    over = reader.drain(columns)
    counts = reader.counts
    assert columns.count == counts.samples <= capacity
    assert over == (counts.lost > 0)
    assert memory.word(packets.AUX_TAIL)[0] == head
    assert counts.corrupt or ahead <= size


def test_rows_beyond_the_columns_are_lost() -> None:
    memory = SpeMemory()
    memory.write(b"".join(packets.access(HEAP + i) for i in range(5)))
    columns = RecordColumns(2)
    assert memory.reader.drain(columns)
    assert addresses(columns) == [HEAP, HEAP + 1]
    assert memory.reader.counts.lost == 3


def test_full_area_is_counted_and_its_event_started_again() -> None:
    memory = SpeMemory()
    memory.write(packets.access(HEAP))
    memory.notice(packets.PERF_RECORD_AUX, 0, 64, packets.TRUNCATED | packets.PARTIAL)
    memory.notice(packets.PERF_RECORD_AUX, 64, 64, packets.COLLISION)
    memory.notice(packets.PERF_RECORD_LOST, 1, 5)
    columns = drain(memory)
    assert columns.count == 1
    assert memory.restarts == 1
    assert memory.reader.counts.throttled == 1
    assert memory.reader.counts.lost == 2 + 5
    drain(memory)
    assert memory.restarts == 1


def thread_of(pid: int) -> tuple[ProcessId, TrackedThreads]:
    process = identify(pid)
    assert process is not None
    threads = TrackedThreads(lambda: SwitchLog({}))
    threads.track([process])
    return process, threads


def test_sampler_attributes_by_context() -> None:
    process, threads = thread_of(OWN)
    memory = SpeMemory()
    sampler = RingSampler(
        "spe",
        "made packets",
        [memory.reader],
        SpeControl([], threads.close),
        threads,
        period=4096,
        periods=(4096, 8192),
    )
    sampler.track([process])
    memory.write(packets.access(HEAP, thread=OWN))
    memory.write(packets.access(HEAP + 8, thread=1))  # another process
    memory.write(packets.access(0xFF_8000_0000_1000, thread=OWN))  # a kernel address
    batch = sampler.read()
    assert batch.address.tolist() == [HEAP]
    assert batch.process.tolist() == [0]
    assert batch.thread.tolist() == [OWN]
    assert (sampler.stats.dropped, sampler.stats.kernel_addresses) == (2, 1)
    assert sampler.set_period(8192) == 8192
    sampler.close()
    assert len(sampler.read()) == 0


def switch_log(memory: SpeMemory, cpu: int) -> SwitchLog:
    return SwitchLog({cpu: Ring.over(memory.ring, SampleType.TID | SampleType.TIME, cpu=cpu)})


def test_records_without_context_have_the_thread_that_ran() -> None:
    process, _ = thread_of(OWN)
    log = SpeMemory()
    pair = OWN << 32 | OWN
    log.notice(packets.PERF_RECORD_SWITCH_CPU_WIDE, 0, 5 << 32 | 5, 100, misc=1 << 13)
    log.notice(packets.PERF_RECORD_SWITCH_CPU_WIDE, 0, pair, 1000)
    log.notice(packets.PERF_RECORD_SWITCH_CPU_WIDE, 0, 1 << 32 | 1, 2000)
    threads = TrackedThreads(lambda: switch_log(log, cpu=3))
    threads.track([process])
    columns = RecordColumns(9)
    columns.c.count = 4
    columns.time_ns[:4] = [999, 1000, 1999, 2500]
    columns.cpu[:4] = 3
    assert threads.find_processes(columns).tolist() == [-1, 0, 0, -1]
    assert columns.thread[:4].tolist() == [0, OWN, OWN, 1]
    columns.time_ns[:1], columns.thread[:1], columns.c.count = 1500, 0, 1
    assert threads.find_processes(columns).tolist() == [0]  # the log is remembered
    columns.cpu[:1], columns.thread[:1] = 7, 0
    assert threads.find_processes(columns).tolist() == [-1]


def test_refused_switch_events_drop_samples_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse() -> SwitchLog:
        raise PerfError(errno.EMFILE, "cannot record thread switches on CPU 0")

    threads = TrackedThreads(refuse)
    columns = RecordColumns(1)
    columns.c.count = 1
    assert threads.find_processes(columns).tolist() == [-1]
    assert "LimitNOFILE" in caplog.text


def test_terms_are_encoded_by_the_formats_of_sysfs() -> None:
    device = read_device("arm_spe_0", NEOVERSE)
    assert device is not None
    offers = choose_terms(SampleSettings(ldlat_cycles=30), device)
    assert [device.encode(terms) for terms in offers] == [
        Words(1 | 1 << 16 | 1 << 33 | 1 << 34, 0, 30),
        Words(1 | 1 << 16 | 1 << 33 | 1 << 34),
        Words(1 | 1 << 16),
    ]
    loads = choose_terms(SampleSettings(stores=False, ldlat_cycles=9999), device)[0]
    assert device.encode(loads) == Words(1 | 1 << 16 | 1 << 33, 0, 4095)
    misses = choose_terms(SampleSettings(loads="miss"), device)[0]
    assert device.encode(misses).config1 == 1 << 3


def test_intervals_begin_with_the_shortest_of_the_pmu() -> None:
    device = read_device("arm_spe_0", NEOVERSE)
    assert device is not None
    found = intervals([device])
    assert found[0] == 1024
    assert found[-1] >= 1 << 20
    assert list(found) == sorted(set(found))
    assert not any(interval % 256 for interval in found)


def test_cycle_is_that_of_acpi_then_of_cpufreq(tmp_path: Path) -> None:
    cpu = tmp_path / "devices/system/cpu/cpu0"
    assert ns_per_cycle(0, tmp_path) == 0.4
    (cpu / "cpufreq").mkdir(parents=True)
    (cpu / "cpufreq/cpuinfo_max_freq").write_text("2500000\n")
    assert ns_per_cycle(0, tmp_path) == 0.4
    (cpu / "acpi_cppc").mkdir()
    (cpu / "acpi_cppc/nominal_freq").write_text("2000\n")
    assert ns_per_cycle(0, tmp_path) == 0.5


def test_machine_without_spe_says_so() -> None:
    with pytest.raises(MissingError, match="no SPE"):
        open_spe(SampleSettings(), sysfs=SYSFS / "zen4/sys")


def test_refused_event_names_pmu_and_cpu(tmp_path: Path) -> None:
    shutil.copytree(NEOVERSE, tmp_path / "sys")
    # A type of PMU that no kernel has.
    (tmp_path / "sys/bus/event_source/devices/arm_spe_0/type").write_text("99999\n")
    with pytest.raises(PerfError, match="cannot open arm_spe_0 on CPU 0"):
        open_spe(SampleSettings(), sysfs=tmp_path / "sys")
