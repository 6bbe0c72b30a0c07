# SPDX-License-Identifier: MIT
"""Cooling, compared with the same sums computed page by page in Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import BLOCK_PAGES, CHUNK_BYTES, CHUNK_PAGES, HeatSettings
from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessId
from hmd.sample.access_batch import AccessBatch
from tests.unit.heat.dense import dense_rates

PROCESS = ProcessId(10, 1)


def batch(pages: list[int], period: int = 1) -> AccessBatch:
    return AccessBatch.of(np.array(pages, np.uint64) * np.uint64(PAGE_BYTES), period=period)


CHUNKS = 3
PAGES = CHUNKS * CHUNK_PAGES
TOLERANCE = 0.1


def credible_share(
    counted: float, foretold: float, ratio: float, change_threshold: float, tolerance: float = 0.0
) -> float:
    both = counted + foretold
    gap = max(abs(counted - foretold) - tolerance * both, 0.0)
    return math.exp(min(0.0, change_threshold**2 - 2 * gap**2 / ((both + 0.75) * (1 + ratio))))


class Oracle:
    """A few chunks, one window per tick, in Python floats."""

    def __init__(self, halving: float, change_threshold: float, period: float) -> None:
        self.heat = [0.0] * PAGES
        self.exposure = [0.0] * PAGES
        self.history_weight = 0.0
        self.halving, self.change_threshold, self.period = halving, change_threshold, period

    def window(self, pages: list[int]) -> None:
        keep = 0.5 ** (len(pages) / self.halving)
        w = len(pages) * self.period
        count = np.bincount(pages, minlength=PAGES) / 1.0
        full = keep * self.history_weight + w
        past = [e * self.history_weight for e in self.exposure]
        foretold = [
            h * w / e / self.period if e else 0.0 for h, e in zip(self.heat, past, strict=True)
        ]

        def trust(group: range, tolerance: float = 0.0) -> float:
            exposed = sum(past[i] for i in group)
            if not exposed:
                return 1.0
            counts = sum(count[i] for i in group), sum(foretold[i] for i in group)
            return credible_share(
                *counts, w * len(group) / exposed, self.change_threshold, tolerance
            )

        for start in range(0, PAGES, CHUNK_PAGES):
            chunk = range(start, start + CHUNK_PAGES)
            whole = trust(chunk, TOLERANCE)
            n, f = sum(count[i] for i in chunk), sum(foretold[i] for i in chunk)
            times = (n + 0.5) / (f + 0.5)
            for first in range(start, start + CHUNK_PAGES, BLOCK_PAGES):
                block = range(first, first + BLOCK_PAGES)
                n, f = sum(count[i] for i in block), sum(foretold[i] for i in block)
                # Likelier with the chunk's change than without.
                follows = n * math.log(times) >= f * (times - 1)
                together = min(trust(block), whole if follows else 1.0)
                for i in block:
                    kept = keep * min(together, trust(range(i, i + 1)))
                    self.heat[i] = kept * self.heat[i] + count[i] * self.period
                    if self.heat[i] <= 1e-3 * self.period:
                        self.heat[i] = 0.0
                    self.exposure[i] = max(1, int((kept * past[i] + w) / full * 255 + 0.5)) / 255
        self.history_weight = full


@settings(deadline=None)
@given(
    st.lists(
        st.lists(
            st.one_of(st.integers(0, 40), st.integers(600, 700), st.integers(0, PAGES - 1)),
            min_size=1,
            max_size=80,
        ),
        max_size=6,
    ),
    st.sampled_from([1, 101]),
    st.sampled_from([0.5, 2.0, 100.0]),
)
def test_heat_table_windows_agree_with_oracle(
    windows: list[list[int]], period: int, change_threshold: float
) -> None:
    how = HeatSettings(
        cooling_samples=60,
        min_window_samples=1,
        window_pages_per_sample=PAGES,
        change_threshold=change_threshold,
    )
    table = HeatTable(how)
    table.track_processes([PROCESS])
    starts = np.arange(CHUNKS, dtype=np.uint64) * np.uint64(CHUNK_BYTES)
    table.record_nodes(0, starts, np.zeros((CHUNKS, CHUNK_PAGES), np.int8))
    oracle = Oracle(60, change_threshold, period)
    for pages in windows:
        table.update(batch(pages, period))
        oracle.window(pages)
    if not windows:
        return
    assert table.stats.windows == len(windows)
    columns = table.chunks.columns
    assert not columns.recent.any()
    rows = table.chunks.find(0, starts)
    np.testing.assert_allclose(columns.heat[rows].ravel(), oracle.heat, rtol=1e-4)
    # A byte may round the other way where an exposure lies between two.
    coded = np.array(oracle.exposure) * 255
    assert np.abs(columns.exposure[rows].ravel() - coded).max() <= 1.01
    assert table.history.history_weight[0] == pytest.approx(oracle.history_weight)


def test_heat_table_heat_halves_by_samples_of_own_process() -> None:
    slow = HeatSettings(cooling_samples=1000, min_window_samples=100, change_threshold=100.0)
    table = HeatTable(slow)
    table.track_processes([PROCESS, ProcessId(11, 1)])
    table.update(batch([3] * 500))
    for _ in range(10):
        table.update(AccessBatch.empty())
    assert table.chunks.columns.heat[0, 3] == 500  # idle: nothing is forgotten
    table.update(batch([9] * 1000))
    assert table.chunks.columns.heat[0, 3] == pytest.approx(250)
    assert table.chunks.columns.heat[0, 9] == 1000


def test_heat_table_few_samples_window_stays_open() -> None:
    table = HeatTable(HeatSettings(min_window_samples=100))
    table.track_processes([PROCESS])
    table.update(batch([3] * 99))
    assert table.stats.windows == 0
    table.update(batch([3]))
    assert table.stats.windows == 1


def test_heat_table_more_resident_pages_longer_window() -> None:
    table = HeatTable(HeatSettings(min_window_samples=1, window_pages_per_sample=8))
    table.track_processes([PROCESS])
    table.record_nodes(0, np.zeros(1, np.uint64), np.zeros((1, CHUNK_PAGES), np.int8))
    table.update(batch([3] * 63))
    assert table.stats.windows == 0
    table.update(batch([3]))
    assert table.stats.windows == 1


def test_heat_table_changed_block_forgotten_steady_block_kept() -> None:
    table = HeatTable(HeatSettings(cooling_samples=10**9, min_window_samples=1))
    table.track_processes([PROCESS])
    old, steady, new = 0, 64, 128
    for _ in range(10):
        table.update(batch([old] * 50 + [steady] * 50))
    table.update(batch([new] * 50 + [steady] * 50))
    columns = table.chunks.columns
    assert columns.heat[0, steady] == pytest.approx(550)
    assert columns.heat[0, old] < 1
    assert columns.heat[0, new] == 50
    # The new page was counted over one window in eleven, the steady one over all of them.
    assert columns.exposure[0, new] == pytest.approx(255 / 11, abs=1)
    assert columns.exposure[0, steady] == 255


def test_heat_table_changed_chunk_adapts_within_window() -> None:
    """The samples are too few to estimate the rate of a block, let alone of a page."""
    table = HeatTable(HeatSettings(cooling_samples=10**9, min_window_samples=1000))
    table.track_processes([PROCESS])
    starts = np.arange(2, dtype=np.uint64) * np.uint64(CHUNK_BYTES)
    table.record_nodes(0, starts, np.zeros((2, CHUNK_PAGES), np.int8))
    rng = np.random.default_rng(3)
    for _ in range(8):
        table.update(batch(rng.integers(0, CHUNK_PAGES, 1000).tolist()))
    before = dense_rates(table).rate[table.chunks.find(0, starts)]
    assert before[0].mean() > 50 * before[1].mean()
    table.update(batch((CHUNK_PAGES + rng.integers(0, CHUNK_PAGES, 30)).tolist()))
    assert table.stats.windows == 8
    after = dense_rates(table).rate[table.chunks.find(0, starts)]
    assert after[1].mean() > 2 * after[0].mean()
