# SPDX-License-Identifier: MIT
"""Counting samples, compared with a dictionary."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_BYTES, HeatSettings
from hmd.heat.table import HeatTable
from hmd.heat.windows import WEIGHT_OVER_MEAN
from hmd.linux.procfs import ProcessId
from hmd.sample.access_batch import AccessBatch, Kind

PROCESSES = (ProcessId(10, 1), ProcessId(11, 1), ProcessId(12, 7))
#: No window closes, so that what was counted stays in the open one.
OPEN = HeatSettings(min_window_samples=1 << 40)

Sample = tuple[int, int, int, int]

samples = st.lists(
    st.tuples(
        st.integers(-1, 3),
        st.one_of(
            st.integers(0, 1 << 24),
            st.integers((1 << 47) - (1 << 22), (1 << 47) - 1),
            st.sampled_from([(1 << 56) - 1, 1 << 56, (1 << 64) - 1]),
        ),
        st.sampled_from(list(Kind)),
        st.integers(1, 1 << 20),
    ),
    max_size=200,
)


def batch(rows: list[Sample]) -> AccessBatch:
    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [[], [], [], []]
    return AccessBatch.of(
        np.array(columns[1], np.uint64),
        np.array(columns[0], np.int32),
        kind=np.array(columns[2], np.uint8),
        period=np.array(columns[3], np.uint32),
    )


def counted(table: HeatTable) -> dict[tuple[int, int], float]:
    """Return the table's counts by process slot and page address."""
    columns, used = table.chunks.columns, table.chunks.used
    rows = columns.page_slot[:used]
    weight: npt.NDArray[np.float32] = columns.heat[rows] + columns.recent[rows]
    chunk, page = np.nonzero(weight)
    return {
        (int(columns.process[c]), int(columns.address[c]) + int(p) * PAGE_BYTES): float(
            weight[c, p]
        )
        for c, p in zip(chunk, page, strict=True)
    }


def oracle(rows: list[Sample]) -> Counter[tuple[int, int]]:
    pages: Counter[tuple[int, int]] = Counter()
    for process, address, kind, period in rows:
        if 0 <= process < len(PROCESSES) and address < 1 << 56:
            weight = period * (3 if kind == Kind.STORE else 1)
            pages[process, address // PAGE_BYTES * PAGE_BYTES] += weight
    return pages


@settings(deadline=None)
@given(st.lists(samples, max_size=4))
def test_heat_table_counts_agree_with_dictionary(ticks: list[list[Sample]]) -> None:
    table = HeatTable(OPEN)
    table.track_processes(PROCESSES)
    table.set_process_weights(np.ones(len(PROCESSES)), np.full(len(PROCESSES), 3.0))
    for rows in ticks:
        table.update(batch(rows))
    expected = oracle([row for rows in ticks for row in rows])
    found = counted(table)
    assert found.keys() == expected.keys()
    for page, weight in expected.items():
        assert found[page] == np.float32(weight) or abs(found[page] - weight) < 1e-5 * weight
    total = sum(map(len, ticks))
    assert table.stats.samples + table.stats.ignored == total


def test_heat_table_thousands_of_chunks_created_and_found() -> None:
    table = HeatTable(OPEN)
    table.track_processes(PROCESSES)
    starts = np.random.default_rng(3).permutation(5000).astype(np.uint64) * np.uint64(CHUNK_BYTES)
    rows: list[Sample] = [(i % 3, int(a), 0, 1) for i, a in enumerate(starts)]
    for _ in range(2):
        table.update(batch(rows))
    assert table.chunks.used == 5000
    assert set(counted(table).values()) == {2.0}
    for slot in range(3):
        found = table.chunks.find(slot, starts)
        assert (np.flatnonzero(found >= 0) % 3 == slot).all()


def test_heat_table_read_only_strided_batch_counted() -> None:
    table = HeatTable(OPEN)
    table.track_processes(PROCESSES[:1])
    whole = batch([(0, i * PAGE_BYTES, 0, 1) for i in range(10)])
    strided = whole.take(np.arange(10) % 2 == 0)
    for name in AccessBatch.__slots__:
        column = getattr(whole, name)
        if column is not None:
            half = column[::2]
            half.flags.writeable = False
            strided = replace(strided, **{name: half})
    table.update(strided)
    assert len(counted(table)) == 5


def test_heat_table_exited_process_freed_others_keep_heat() -> None:
    table = HeatTable(OPEN)
    table.track_processes(PROCESSES)
    table.update(batch([(slot, slot * CHUNK_BYTES * 10, 0, 5 + slot) for slot in range(3)]))
    table.track_processes((PROCESSES[2], ProcessId(99, 1), PROCESSES[0]))
    assert counted(table) == {(0, 20 * CHUNK_BYTES): 7.0, (2, 0): 5.0}
    assert table.history.window_weight.tolist() == [7.0, 0.0, 5.0]
    table.update(batch([(1, CHUNK_BYTES, 0, 1)]))
    assert counted(table)[1, CHUNK_BYTES] == 1.0
    # The same pid with another start time is another process.
    table.track_processes((ProcessId(PROCESSES[2].pid, 8),))
    assert counted(table) == {}
    table.track_processes(())
    table.update(batch([(0, 0, 0, 1)]))
    assert table.chunks.used == 0
    assert table.stats.ignored == 1


def test_heat_table_memory_at_most_12_5_bytes_per_page() -> None:
    table = HeatTable(OPEN)
    table.track_processes(PROCESSES[:1])
    table.update(batch([(0, i * CHUNK_BYTES, 0, 1) for i in range(1024)]))
    assert table.stats.chunks == 1024
    assert table.stats.bytes <= 12.5 * 1024 * 512


def test_heat_table_few_heavy_samples_leave_the_noise_of_the_others() -> None:
    process = ProcessId(7, 1)
    table = HeatTable(HeatSettings())
    table.track_processes([process])
    loads = batch([(0, CHUNK_BYTES + i % 512 * PAGE_BYTES, Kind.LOAD, 100) for i in range(4_000)])
    period = np.full(4_000, 100, np.uint32)
    table.update(replace(loads, period=period))
    period[:4] = 6_400  # stores: one in a thousand, each for 64 times as many accesses
    table.update(replace(loads, period=period))
    assert 100 <= table.history.effective_sample_weight[0] < 110
    period[:] = 6_400  # all of them are stores now: each counts in full before long
    for _ in range(12):
        table.update(replace(loads, period=period))
    assert table.history.max_weight[0] > 6_400


def test_heat_table_bound_of_heavy_samples_does_not_lower_itself() -> None:
    """One sample in twenty stands for 64 times as many accesses as the others."""
    process = ProcessId(7, 1)
    table = HeatTable(HeatSettings())
    table.track_processes([process])
    both = batch([(0, CHUNK_BYTES + i % 512 * PAGE_BYTES, Kind.LOAD, 100) for i in range(400)])
    period = np.where(np.arange(400) % 20, 100, 6_400).astype(np.uint32)
    for _ in range(40):
        table.update(replace(both, period=period))
    assert table.history.max_weight[0] == pytest.approx(WEIGHT_OVER_MEAN * period.mean(), rel=0.01)
