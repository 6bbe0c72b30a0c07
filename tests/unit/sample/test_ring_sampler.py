# SPDX-License-Identifier: MIT
"""Samples that a read keeps, drops and leaves, in rings written by the test."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from hmd.linux.procfs import ProcessId, identify, read_int
from hmd.sample.access_batch import Kind
from hmd.sample.attribution import TrackedPids
from hmd.sample.perf_events import limit_ring_pages
from hmd.sample.perf_ring import RecordColumns, Ring, SampleType
from hmd.sample.periods import RecordTime
from hmd.sample.ring_sampler import RingSampler

FIXTURE = Path(__file__).parents[2] / "fixtures/machines/xeon6-cxl/proc"
TYPE = SampleType.TID | SampleType.ADDR | SampleType.CPU | SampleType.WEIGHT | SampleType.DATA_SRC
LOAD_HIT = 2 | (2 | 8) << 5
STORE_HIT = 4 | (2 | 8) << 5
"""PERF_MEM_OP_STORE, PERF_MEM_LVL_HIT | PERF_MEM_LVL_L1 (perf_event_open(2))."""


class Memory:
    """A ring's memory, and its writer."""

    def __init__(self, cpu: int, kind: Kind = Kind.LOAD) -> None:
        self.cpu = cpu
        self.bytes: npt.NDArray[np.uint8] = np.zeros(4096 + 4096, np.uint8)
        self.ring = Ring.over(self.bytes, TYPE, kind, cpu)

    def sample(
        self, pid: int, address: int, weight: int = 0, source: int = 0, misc: int = 0
    ) -> None:
        fields = (pid, pid, address, self.cpu, 0, weight, source)
        record = struct.pack("<IHHIIQIIQQ", 9, misc, 48, *fields)
        (head,) = words = self.bytes[1024:1032].view(np.uint64)
        for i, byte in enumerate(record):
            self.bytes[4096 + (int(head) + i) % 4096] = byte
        words[0] = int(head) + len(record)


@dataclass
class Switch:
    """Records its calls, as a control that has nothing to switch."""

    record_s: float = 0.0
    now_s: float = 17.0
    time_offset_ns: int = 0
    running_share: float = 1.0
    adapts_store_period: bool = True
    has_buffer: bool = False
    active: bool = True
    delay_s: float = 0.0
    calls: list[str] = field(default_factory=list)

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def publish(self) -> None: ...

    def set_period(self, period: int, store_multiplier: int) -> None:
        self.calls.append(
            f"period {period}" + (f", stores x {store_multiplier}" * (store_multiplier > 1))
        )

    def close(self) -> None:
        self.calls.append("close")


def us() -> ProcessId:
    process = identify(os.getpid())
    assert process is not None
    return process


def sampler_over(
    memories: Sequence[Memory],
    rows: int = 64,
    ns_per_latency_unit: float = 1.0,
    pairs: bool = False,
    record_s: float = 0.0,
    adapts_store_period: bool = True,
) -> tuple[RingSampler, Switch]:
    switch = Switch(record_s, adapts_store_period=adapts_store_period)
    sampler = RingSampler(
        "pmu",
        "",
        [memory.ring for memory in memories],
        switch,
        TrackedPids(),
        period=11,
        periods=(7, 11, 13),
        ns_per_latency_unit=ns_per_latency_unit,
        read_rows=rows,
        pairs=pairs,
    )
    return sampler, switch


def test_ring_sampler_keeps_user_addresses_of_tracked_processes() -> None:
    memory = Memory(0)
    sampler, _ = sampler_over([memory])
    me = us()
    sampler.track([me])
    kept = (0x1000, 0x7FFF_FFFF_F000, (1 << 56) - 1)
    for address in (*kept, 0, 1 << 56, 1 << 63, 0xFFFF_8880_0000_0000, 2**64 - 1):
        memory.sample(me.pid, address)
    memory.sample(0, 2**64 - 1)  # the kernel's own, in whatever process
    memory.sample(0, 0x1000)
    memory.sample(2**32 - 1, 0x1000)
    batch = sampler.read()
    assert batch.address.tolist() == list(kept)
    assert (sampler.stats.samples, sampler.stats.dropped) == (3, 8)
    assert (sampler.stats.without_address, sampler.stats.kernel_addresses) == (1, 4)


def test_ring_sampler_without_sample_period_uses_sampler_period() -> None:
    memory = Memory(0)
    sampler, _ = sampler_over([memory])
    sampler.track([us()])
    memory.sample(os.getpid(), 0x1000)
    assert sampler.read().period.tolist() == [11]


def test_ring_sampler_pairs_halve_the_period_of_loads() -> None:
    memories = [Memory(0), Memory(0), Memory(0, Kind.STORE)]
    sampler, _ = sampler_over(memories, pairs=True)
    sampler.track([us()])
    assert (sampler.period, sampler.pair_period) == (11, 13)
    for memory in memories:
        memory.sample(os.getpid(), 0x1000)
    assert sampler.read().period.tolist() == [6, 6, 11]
    sampler.set_period(7)
    for memory in memories:
        memory.sample(os.getpid(), 0x1000)
    assert sampler.read().period.tolist() == [4, 4, 7]
    assert sampler_over(memories)[0].pair_period is None


def test_ring_sampler_stores_that_hit_caches_are_sampled_more_rarely() -> None:
    memory = Memory(0)
    sampler, switch = sampler_over([memory])
    sampler.track([us()])
    for hits in (60, 60, 0, 0):
        for _ in range(hits):
            memory.sample(os.getpid(), 0x1000, source=STORE_HIT)
        for _ in range(64 - hits):
            memory.sample(os.getpid(), 0x1000)
        assert len(sampler.read()) == 64 - hits
    periods = [call for call in switch.calls if call.startswith("period")]
    assert periods == [
        "period 11, stores x 2",
        "period 11, stores x 4",
        "period 11, stores x 2",
        "period 11",
    ]
    sampler.set_period(7)
    assert switch.calls[-1] == "period 7"


def test_ring_sampler_drops_loads_that_hit_and_samples_of_guests() -> None:
    """IBS tags any op, and those of a guest of this host, whose addresses are the guest's."""
    memory = Memory(0)
    sampler, switch = sampler_over([memory])
    me = us()
    sampler.track([me])
    for _ in range(70):
        memory.sample(me.pid, 0x1000, source=LOAD_HIT)
    for misc in (2, 4, 5, 1):  # PERF_RECORD_MISC_USER, GUEST_KERNEL, GUEST_USER, KERNEL
        memory.sample(me.pid, 0x1000 * misc, misc=misc)
    assert sampler.read().address.tolist() == [0x2000, 0x1000]
    assert (sampler.stats.dropped, sampler.stats.records) == (72, 74)
    assert switch.calls == ["start"], "the period of stores follows stores alone"


def test_ring_sampler_of_all_stores_keeps_their_period() -> None:
    memory = Memory(0)
    sampler, switch = sampler_over([memory], adapts_store_period=False)
    sampler.track([us()])
    for _ in range(3):
        for _ in range(70):
            memory.sample(os.getpid(), 0x1000, source=STORE_HIT)
        sampler.read()
    assert not [call for call in switch.calls if call.startswith("period")]


def test_ring_sampler_latency_in_nanoseconds_never_wraps() -> None:
    memory = Memory(0)
    sampler, _ = sampler_over([memory], ns_per_latency_unit=0.4)
    sampler.track([us()])
    for weight in (0, 100, 2**32 - 1, 2**40):
        memory.sample(os.getpid(), 0x1000, weight)
    assert sampler.read().latency_ns.tolist() == [0, 40, 1717986918, 1717986918]
    faster, _ = sampler_over([memory], ns_per_latency_unit=2.0)
    faster.track([us()])
    memory.sample(os.getpid(), 0x1000, 2**32 - 1)
    assert faster.read().latency_ns.tolist() == [2**32 - 1]


def test_ring_sampler_read_is_bounded_and_fair() -> None:
    memories = [Memory(0), Memory(1), Memory(2)]
    sampler, _ = sampler_over(memories, rows=8)
    sampler.track([us()])
    seen: list[int] = []
    for _ in range(30):
        for memory in memories:
            for _ in range(8):
                memory.sample(os.getpid(), 0x1000)
        batch = sampler.read()
        assert len(batch) == 8
        seen += batch.cpu.tolist()
    shares = [seen.count(cpu) / len(seen) for cpu in range(3)]
    assert min(shares) > 0.2


def test_ring_sampler_rows_beyond_a_read_are_lost() -> None:
    memory = Memory(0)
    sampler, _ = sampler_over([memory], rows=4)
    sampler.track([us()])
    for address in range(1, 11):
        memory.sample(os.getpid(), address)
    assert sampler.read().address.tolist() == [1, 2, 3, 4]
    assert sampler.stats.lost == 6
    memory.sample(os.getpid(), 11)
    assert sampler.read().address.tolist() == [11]
    assert sampler.stats.wakeups == 2


def test_ring_sampler_records_of_a_cpu_include_others_lost_ones_and_all_its_rings() -> None:
    loads, seconds, other = Memory(3), Memory(3), Memory(5)
    sampler, _ = sampler_over([loads, seconds, other], rows=4, record_s=3e-7)
    me = us()
    sampler.track([me])
    for memory, pid, count in ((loads, me.pid, 5), (seconds, 1, 2), (other, 1, 3)):
        for _ in range(count):
            memory.sample(pid, 0x1000)
    sampler.read()
    other.sample(1, 0x1000)
    sampler.read()
    assert (sampler.stats.samples, sampler.stats.lost) == (4, 6)
    assert (sampler.stats.records, sampler.stats.busiest_records) == (11, 7 + 1)
    assert sampler.record_time == RecordTime(8 * 3e-7, 17.0)


def test_ring_sampler_tells_how_long_events_had_no_counter() -> None:
    sampler, switch = sampler_over([Memory(0)])
    assert sampler.stats.running_share == 1.0
    switch.running_share = 0.4
    sampler.read()
    assert sampler.stats.running_share == 0.4


def test_ring_sampler_source_is_on_while_tracking() -> None:
    sampler, switch = sampler_over([Memory(0)])
    me = us()
    for processes in ([], [me], [me], [], [], [me]):
        sampler.track(processes)
    assert switch.calls == ["start", "stop", "start"]


def test_ring_sampler_sets_changed_periods_within_periods() -> None:
    sampler, switch = sampler_over([Memory(0)])
    assert [sampler.set_period(p) for p in (11, 9, 100, 1, 1)] == [11, 9, 13, 7, 7]
    assert switch.calls == ["period 9", "period 13", "period 7"]


def test_ring_sampler_closed_twice_closes_once() -> None:
    memory = Memory(0)
    sampler, switch = sampler_over([memory])
    sampler.close()
    sampler.close()
    sampler.track([us()])
    sampler.set_period(7)
    assert switch.calls == ["close"]


def test_ring_sampler_finds_pids_in_any_order() -> None:
    """Indices follow the order of track(), for pids in any order."""
    me, parent = us(), identify(os.getppid())
    assert parent is not None
    attribution = TrackedPids()
    attribution.track([ProcessId(4_000_000, 1), me, parent, ProcessId(2, 0)])
    columns = RecordColumns(6)
    memory = Memory(0)
    for pid in (parent.pid, 4_000_000, me.pid, 5_000_000, 0, me.pid):
        memory.sample(pid, 1)
    memory.ring.drain(columns)
    # 4,000,000 has ended: what it did is its own. 5,000,000 was never tracked.
    assert attribution.find_processes(columns).tolist() == [2, 0, 1, -1, -1, 1]


class CountedRing(Ring):
    """Counts how often it is drained."""

    drained = 0

    def drain(self, columns: RecordColumns) -> bool:
        self.drained += 1
        return super().drain(columns)


def test_ring_sampler_512_rings_only_those_with_records_are_drained() -> None:
    memories = [Memory(cpu) for cpu in range(512)]
    rings = []
    for memory in memories:
        start = memory.bytes.ctypes.data
        rings.append(CountedRing(start, start + 4096, 4096, TYPE, Kind.LOAD, memory.cpu))
    sampler = RingSampler(
        "pmu", "", rings, Switch(), TrackedPids(),
        period=11, periods=(7, 11, 13),
    )  # fmt: skip
    sampler.track([us()])
    busy = (3, 200, 511)
    for cpu in busy:
        memories[cpu].sample(os.getpid(), 0x1000)
    assert sampler.read().cpu.tolist() == list(busy)
    assert [cpu for cpu, ring in enumerate(rings) if ring.drained] == list(busy)
    assert len(sampler.read()) == 0
    assert sum(ring.drained for ring in rings) == len(busy)


@pytest.mark.parametrize("per_cpu", [1, 2, 4])
def test_ring_pages_of_512_cpus_are_within_the_default_limit(per_cpu: int) -> None:
    limit_kib = read_int(FIXTURE / "sys/kernel/perf_event_mlock_kb")
    pages = limit_ring_pages(512 * per_cpu, 64)
    assert limit_kib is not None
    assert per_cpu * (1 + pages) * 4 <= limit_kib
    assert limit_ring_pages(2 * per_cpu, 64) == 64
