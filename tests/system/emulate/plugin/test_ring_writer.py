# SPDX-License-Identifier: MIT
"""The emulated PMU's ring, written by the plugin's code and read by the daemon's."""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hmd.sample.access_batch import Kind
from hmd.sample.emulated_pebs import SAMPLE_TYPE
from hmd.sample.perf_ring import HEADER_BYTES, RecordColumns, Ring, sample_bytes

RECORD = sample_bytes(SAMPLE_TYPE)
LOST_RECORD = 24


class Pair:
    """A writer and a reader of one ring in ordinary memory."""

    def __init__(self, parts: Any, data_bytes: int):
        self.lib, self.ffi, self.data_bytes = parts.lib, parts.ffi, data_bytes
        words = np.zeros((HEADER_BYTES + data_bytes) // 8, np.uint64)
        self.memory = words.view(np.uint8)
        self.writer = self.ffi.new("struct pebs_ring *")
        page = self.ffi.cast("struct perf_ring_page *", words.ctypes.data)
        self.lib.pebs_ring_init(self.writer, page, data_bytes)
        self.page = page
        self.reader = Ring.over(self.memory, SAMPLE_TYPE)
        self.columns = RecordColumns(4096)

    def write(self, address: int, **fields: Any) -> bool:
        sample = self.ffi.new("struct pebs_sample *", {"address": address, **fields})
        return bool(self.lib.pebs_write(self.writer, sample))

    def read(self) -> list[int]:
        self.columns.clear()
        assert not self.reader.drain(self.columns)
        return [int(a) for a in self.columns.address[: self.columns.count]]


def test_ring_writer_sample_has_every_field(parts: Any) -> None:
    pair = Pair(parts, 4096)
    pair.write(
        0x7F00_1234,
        ip=0x401000,
        time_ns=55,
        period=101,
        instructions=1 << 40,
        latency_ns=305,
        physical=0x2345_6000,
        address_space=0xABCDE,
        cpu=3,
        event=parts.lib.PEBS_STORE,
    )
    assert pair.read() == [0x7F00_1234]
    row = {name: getattr(pair.columns, name)[0] for name in ("time_ns", "period", "latency")}
    assert row == {"time_ns": 55, "period": 101, "latency": 305}
    assert pair.columns.physical[0] == 0x2345_6000
    assert pair.columns.instructions[0] == 1 << 40
    assert (pair.columns.pid[0], pair.columns.thread[0]) == (0xABCDE, 0)
    assert (pair.columns.cpu[0], pair.columns.kind[0]) == (3, Kind.STORE)


def test_ring_writer_record_has_the_kernel_layout(parts: Any) -> None:
    pair = Pair(parts, 4096)
    numbers = {"ip": 1, "time_ns": 2, "period": 3, "instructions": 9, "latency_ns": 4}
    pair.write(7, **numbers, physical=5, address_space=6, cpu=8)
    written = bytes(pair.memory[HEADER_BYTES : HEADER_BYTES + RECORD])
    # PERF_RECORD_SAMPLE, PERF_RECORD_MISC_USER | PERF_RECORD_MISC_EXACT_IP; the fields by the
    # order of their bits in sample_type but for the late-comers, as perf_event_open(2) lists them.
    *head, source, physical = struct.unpack("<IHHQIIQQIIQQQQQ", written)
    assert head == [9, 0x4002, 88, 1, 6, 0, 2, 7, 8, 0, 3, 9, 4]
    assert physical == 5
    load, l3_miss, ram = 0x02, (0x04 | 0x40) << 5, 0x0D << 33
    assert source & (0x1F | 0x3FFF << 5 | 0xF << 33) == load | l3_miss | ram


def test_ring_writer_prefetched_line_is_a_fill_buffer_hit(parts: Any) -> None:
    pair = Pair(parts, 4096)
    pair.write(64, source=parts.lib.PEBS_FILL_BUFFER)
    (source,) = struct.unpack_from("<Q", pair.memory.data, HEADER_BYTES + 72)
    fill_buffer_hit = (0x02 | 0x10) << 5
    assert source & 0x3FFF << 5 == fill_buffer_hit


def test_ring_writer_cache_hit_is_counted_not_read(parts: Any) -> None:
    pair = Pair(parts, 4096)
    for source in (parts.lib.PEBS_L1_HIT, parts.lib.PEBS_L1_MISS, parts.lib.PEBS_L1_HIT):
        pair.write(64, event=parts.lib.PEBS_STORE, source=source)
    pair.write(128, event=parts.lib.PEBS_LOAD, source=parts.lib.PEBS_L1_HIT)
    assert pair.read() == [64]
    assert pair.columns.kind[0] == Kind.STORE
    counts = pair.reader.counts
    assert (counts.samples, counts.cached_stores, counts.cached_loads) == (1, 2, 1)


def test_ring_writer_with_full_ring_counts_lost_samples(parts: Any) -> None:
    pair = Pair(parts, 4096)
    fits = (4096 - 1) // RECORD
    assert [pair.write(i) for i in range(fits + 10)] == [True] * fits + [False] * 10
    assert pair.page.data_head == fits * RECORD
    assert pair.read() == list(range(fits))
    assert pair.reader.counts.lost == 0, "reported with the next sample that fits"
    assert pair.write(99)
    assert pair.read() == [99]
    assert pair.reader.counts.lost == 10


def test_ring_writer_ignores_corrupt_header_values(parts: Any) -> None:
    pair = Pair(parts, 4096)
    pair.page.data_size = 1 << 40
    pair.page.data_head = 1 << 41
    assert pair.write(1)
    assert pair.page.data_head == RECORD
    pair.page.data_tail = 1 << 50
    assert not pair.write(2), "a tail ahead of the head leaves no space"


ACTIONS = st.lists(st.one_of(st.integers(1, 60), st.just("read")), max_size=60)


@given(actions=ACTIONS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ring_bursts_and_reads_deliver_or_count_each_sample(
    parts: Any, actions: list[int | str]
) -> None:
    pair = Pair(parts, 4096)
    pending: deque[int] = deque()
    used = lost_pending = lost_reported = number = 0
    for action in [*actions, "read", 1, "read"]:
        if action == "read":
            assert pair.read() == list(pending)
            assert pair.reader.counts.lost == lost_reported
            pending.clear()
            used = 0
            continue
        for _ in range(int(action)):
            size = RECORD + (LOST_RECORD if lost_pending else 0)
            fits = used + size < 4096
            assert pair.write(number) is fits
            if fits:
                pending.append(number)
                used += size
                lost_reported, lost_pending = lost_reported + lost_pending, 0
            else:
                lost_pending += 1
            number += 1
    assert pair.reader.counts.corrupt == 0


def test_ring_concurrent_reader_sees_whole_samples_in_order(parts: Any) -> None:
    pair = Pair(parts, 1 << 14)
    total = 20_000
    written = []

    def write() -> None:
        for i in range(1, total + 1):
            written.append(pair.write(i, physical=~i & (1 << 64) - 1, time_ns=i))

    thread = threading.Thread(target=write)
    thread.start()
    seen: list[int] = []
    while thread.is_alive() or pair.page.data_head != pair.page.data_tail:
        seen += pair.read()
        filled = slice(pair.columns.count)
        assert (~pair.columns.physical[filled] == pair.columns.address[filled]).all()
        assert (pair.columns.time_ns[filled] == pair.columns.address[filled]).all()
    thread.join()
    assert seen == [i for i, arrived in enumerate(written, 1) if arrived]
    assert pair.reader.counts.lost + pair.writer.lost == written.count(False)
    assert pair.reader.counts.corrupt == 0


@given(period=st.integers(1, 50), events=st.integers(0, 500))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_overflow_samples_every_period_th_event(parts: Any, period: int, events: int) -> None:
    count = parts.ffi.new("uint64_t *")
    sampled = [parts.lib.pebs_overflow(count, period) for _ in range(events)]
    assert [i for i, one in enumerate(sampled, 1) if one] == [*range(period, events + 1, period)]


def test_overflow_with_period_0_never_fires_and_shorter_fires_at_once(parts: Any) -> None:
    count = parts.ffi.new("uint64_t *")
    assert not any(parts.lib.pebs_overflow(count, 0) for _ in range(100))
    assert not any(parts.lib.pebs_overflow(count, 1000) for _ in range(100))
    assert parts.lib.pebs_overflow(count, 50)


def test_ring_in_shared_memory_is_read_by_python(
    make_shared: Callable[[int], Any], parts: Any
) -> None:
    shared = make_shared(1 << 20)
    for vcpu in range(shared.memory.vcpus):
        sample = parts.ffi.new("struct pebs_sample *", {"address": 64 + vcpu, "cpu": vcpu})
        assert parts.lib.pebs_write(shared.ring(vcpu), sample)
    for vcpu in range(shared.memory.vcpus):
        columns = RecordColumns(8)
        Ring.over(shared.memory.ring(vcpu), SAMPLE_TYPE).drain(columns)
        assert columns.count == 1
        assert (columns.address[0], columns.cpu[0]) == (64 + vcpu, vcpu)
