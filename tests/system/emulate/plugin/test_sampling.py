# SPDX-License-Identifier: MIT
"""Which accesses the emulated PMU samples, and by which counter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hmd.sample.access_batch import Kind
from hmd.sample.emulated_pebs import SAMPLE_TYPE
from hmd.sample.perf_ring import RecordColumns, Ring

CR3 = 0x8000_0001_2345_6005  # with the bits that are no address
DEMAND_PS, QUEUE_PS = 305_000, 20_000

Rows = list[tuple[int, int]]


class Pmu:
    """The sampling of one vCPU, and a reader of its ring."""

    def __init__(self, parts: Any, shared: Any) -> None:
        self._parts, self.memory = parts, shared.memory
        ring = shared.memory.ring(0)
        self._reader = Ring.over(ring, SAMPLE_TYPE)
        self.columns = RecordColumns(4096)
        counters = parts.ffi.new(
            "struct timing_vcpu_counters *", {"clock_ps": 7_000_999, "instructions": 1 << 33}
        )
        page = parts.lib.shared_ring_page(shared.native, 0)
        data_bytes = len(ring) - 4096
        parts.lib.sampling_begin(shared.native, page, data_bytes, CR3, counters)

    def access(
        self,
        address: int,
        *,
        store: bool = False,
        kernel: bool = False,
        prefetched: bool = False,
        level: int | None = None,
    ) -> None:
        """Make an access that memory or a prefetch serves, or the level that is given."""
        lib = self._parts.lib
        if level is None:
            level = lib.TIMING_PREFETCHED if prefetched else lib.TIMING_MEMORY
        latency_ps = QUEUE_PS if prefetched else DEMAND_PS
        outcome = self._parts.ffi.new(
            "struct timing_outcome *", {"level": level, "latency_ps": latency_ps}
        )
        flags = (lib.TIMING_STORE if store else 0) | (lib.TIMING_KERNEL_MODE if kernel else 0)
        lib.sampling_access(outcome, flags, address)

    def charged(self) -> tuple[int, int]:
        """Return the records charged so far: with an interrupt per buffer, and with one each."""
        return tuple(self._parts.lib.charged)

    def rows(self) -> Rows:
        """Return address and period of what was sampled since the last look."""
        self.columns.clear()
        self._reader.drain(self.columns)
        taken = slice(self.columns.count)
        return list(
            zip(
                self.columns.address[taken].tolist(),
                self.columns.period[taken].tolist(),
                strict=True,
            )
        )


@pytest.fixture
def pmu(parts: Any, make_shared: Callable[[int], Any]) -> Pmu:
    return Pmu(parts, make_shared(1 << 20))


def every(period: int, count: int) -> Rows:
    return [(address, period) for address in range(period, count + 1, period)]


def test_pmu_with_two_periods_samples_loads_by_each(pmu: Pmu) -> None:
    pmu.memory.sample(7, 0, 0, 11)
    for address in range(1, 200):
        pmu.access(address)
    rows = pmu.rows()
    assert sorted(rows) == sorted(every(7, 199) + every(11, 199))
    assert [period for address, period in rows if address == 77] == [7, 11], "both overflow"
    assert [address for address, _ in rows] == sorted(address for address, _ in rows)
    counters = pmu.memory.counters(0)
    assert (counters.load_samples, counters.store_samples) == (len(rows), 0)


def test_pmu_stores_advance_only_the_store_counter(pmu: Pmu) -> None:
    pmu.memory.sample(7, 5, 0, 11)
    for address in range(1, 101):
        pmu.access(address, store=True)
    assert pmu.rows() == every(5, 100)
    assert set(pmu.columns.kind[:20].tolist()) == {Kind.STORE}
    pmu.access(1)
    assert pmu.rows() == []


def test_pmu_without_pair_period_has_one_load_counter(pmu: Pmu) -> None:
    for periods in ((7, 7, 0, 11), (7, 7, 0)):
        pmu.memory.sample(*periods)
        for address in range(1, 8):
            pmu.access(address)
    assert pmu.rows() == [(7, 7), (7, 7)]
    pmu.memory.stop_sampling()
    for address in range(1, 50):
        pmu.access(address)
    assert pmu.rows() == []


def test_pmu_loads_below_latency_threshold_are_not_counted(pmu: Pmu) -> None:
    pmu.memory.sample(1, 0, DEMAND_PS // 1000 + 1, 2)
    for address in (1, 2):
        pmu.access(address)
    assert pmu.rows() == []
    pmu.memory.sample(1, 0, DEMAND_PS // 1000, 2)
    pmu.access(3)
    pmu.access(4)
    assert pmu.rows() == [(3, 1), (4, 1), (4, 2)]


def test_pmu_prefetched_loads_have_a_counter_of_their_own(pmu: Pmu) -> None:
    pmu.memory.sample(1, 1, 100, 2)
    for address in range(1, 10):
        pmu.access(address, prefetched=True)
    assert pmu.rows() == [], "they are no misses"
    pmu.memory.sample(5, 0, 100, 0, 7)
    for address in range(1, 29):
        pmu.access(address, prefetched=True)
    assert pmu.rows() == every(7, 28)
    for address in range(1, 11):
        pmu.access(address)
    assert pmu.rows() == every(5, 10)


def test_pmu_stores_are_counted_at_every_level(pmu: Pmu, parts: Any) -> None:
    """As MEM_INST_RETIRED.ALL_STORES; those that hit the first level are not read."""
    lib = parts.lib
    pmu.memory.sample(0, 3, 0)
    levels = [lib.TIMING_L1, lib.TIMING_LLC, lib.TIMING_MEMORY, lib.TIMING_PREFETCHED]
    for address in range(1, 25):
        pmu.access(address, store=True, level=levels[address // 3 % 4])
    assert pmu.rows() == [(address, 3) for address in range(3, 25, 3) if address // 3 % 4]
    assert pmu.memory.counters(0).store_samples == 8
    assert pmu.charged() == (8, 0)


@pytest.mark.parametrize("kernel_mode", [False, True])
def test_pmu_counts_kernel_mode_where_that_is_asked_for(pmu: Pmu, kernel_mode: bool) -> None:
    """Records of the kernel's own addresses cost as much as any, and are not read."""
    pmu.memory.sample(2, 3, 0, kernel_mode=kernel_mode)
    for address in range(1, 13):
        pmu.access(address, kernel=True, store=address > 6)
        pmu.access(2**64 - 64 * address, kernel=True, store=address > 6)
    assert pmu.charged() == ((6 + 4) * kernel_mode, 0)
    rows = [(7 + 1, 3), (7 + 4, 3)]  # every second load is of the kernel's own memory
    assert pmu.rows() == (rows if kernel_mode else [])


def test_pmu_pair_records_of_one_access_are_equal(pmu: Pmu) -> None:
    pmu.memory.sample(1, 0, 0, 2)
    pmu.access(64)
    pmu.rows()
    pmu.access(128)
    assert pmu.rows() == [(128, 1), (128, 2)]
    expected = {
        "instructions": 1 << 33,
        "time_ns": 7000,
        "pid": 0x123456,
        "latency": 305,
        "cpu": 0,
        "physical": ~128 & (1 << 64) - 1,
    }
    for name, value in expected.items():
        column = getattr(pmu.columns, name)[:2]
        assert np.all(column == np.array(value, column.dtype)), name


def test_pmu_charges_each_record_to_the_sampled_cpu(pmu: Pmu) -> None:
    pmu.memory.sample(7, 5, 0)
    for address in range(1, 71):
        pmu.access(address, store=address > 35)
    assert pmu.charged() == (len(pmu.rows()), 0) == (12, 0)
    pmu.memory.sample(7, 5, 0, each_interrupts=True)
    for address in range(1, 8):
        pmu.access(address)
    assert pmu.charged() == (12, 1)


def test_pmu_charges_records_that_the_ring_has_no_room_for(pmu: Pmu) -> None:
    pmu.memory.sample(1, 0, 0)
    records = 2 * len(pmu.memory.ring(0)) // 88
    for address in range(records):
        pmu.access(address)
    assert pmu.memory.counters(0).lost_samples > 0
    assert pmu.charged() == (records, 0)
