"""Cooling, against the same sums done page by page in Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmd.heat.layout import BLOCK_PAGES, CHUNK_PAGES, PAGE_BYTES
from hmd.heat.settings import HeatSettings
from hmd.heat.table import HeatTable
from hmd.machine.process import ProcessId
from hmd.sample.batch import AccessBatch

PROCESS = ProcessId(10, 1)


def batch(pages: list[int], period: int = 1) -> AccessBatch:
    n = len(pages)
    return AccessBatch(
        np.zeros(n, np.int32),
        np.array(pages, np.uint64) * np.uint64(PAGE_BYTES),
        np.zeros(n, np.uint8),
        np.zeros(n, np.uint16),
        np.zeros(n, np.uint32),
        np.zeros(n, np.uint64),
        np.zeros(n, np.uint32),
        np.full(n, period, np.uint32),
    )


def believed(counted: float, foretold: float, ratio: float, surprise: float) -> float:
    gap = counted - foretold
    deviation2 = 2 * gap**2 / ((counted + foretold + 0.75) * (1 + ratio))
    return math.exp(min(0.0, surprise**2 - deviation2))


class Oracle:
    """One chunk, one window a tick, in Python floats."""

    def __init__(self, halving: float, surprise: float, period: float) -> None:
        self.heat = [0.0] * CHUNK_PAGES
        self.exposure = [0.0] * CHUNK_PAGES
        self.clock = 0.0
        self.halving, self.surprise, self.period = halving, surprise, period

    def window(self, pages: list[int]) -> None:
        keep = 0.5 ** (len(pages) / self.halving)
        w = len(pages) * self.period
        count = np.bincount(pages, minlength=CHUNK_PAGES) * self.period
        full = keep * self.clock + w
        for first in range(0, CHUNK_PAGES, BLOCK_PAGES):
            block = range(first, first + BLOCK_PAGES)
            past = [self.exposure[i] * self.clock for i in block]
            foretold = [
                self.heat[i] * w / e if e else 0.0 for i, e in zip(block, past, strict=True)
            ]
            together = 1.0
            if sum(past):
                together = believed(
                    sum(count[i] for i in block) / self.period,
                    sum(foretold) / self.period,
                    w * BLOCK_PAGES / sum(past),
                    self.surprise,
                )
            for i, e, f in zip(block, past, foretold, strict=True):
                kept = keep * together
                if e:
                    own = believed(count[i] / self.period, f / self.period, w / e, self.surprise)
                    kept = keep * min(together, own)
                self.heat[i] = kept * self.heat[i] + count[i]
                if self.heat[i] <= 1e-3 * self.period:
                    self.heat[i] = 0.0
                self.exposure[i] = max(1, int((kept * e + w) / full * 255 + 0.5)) / 255
        self.clock = full


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.one_of(st.integers(0, 40), st.integers(0, 511)), min_size=1, max_size=80),
        max_size=6,
    ),
    st.sampled_from([1, 101]),
    st.sampled_from([0.5, 2.0, 100.0]),
)
def test_windows_fold_as_by_hand(windows: list[list[int]], period: int, surprise: float) -> None:
    table = HeatTable(HeatSettings(cooling_samples=60, window_samples_min=1, surprise=surprise))
    table.track([PROCESS])
    oracle = Oracle(60, surprise, period)
    for pages in windows:
        table.update(batch(pages, period))
        oracle.window(pages)
    if not windows:
        return
    columns = table.chunks.columns
    assert table.stats.windows == len(windows)
    assert not columns.recent.any()
    np.testing.assert_allclose(columns.heat[0], oracle.heat, rtol=1e-4)
    # A byte may round the other way where an exposure lies between two.
    coded = np.array(oracle.exposure) * 255
    assert np.abs(columns.exposure[0] - coded).max() <= 1.01
    assert table.clocks.clock[0] == pytest.approx(oracle.clock)


def test_heat_halves_on_the_clock_of_samples_of_its_own_process() -> None:
    slow = HeatSettings(cooling_samples=1000, window_samples_min=100, surprise=100.0)
    table = HeatTable(slow)
    table.track([PROCESS, ProcessId(11, 1)])
    table.update(batch([3] * 500))
    for _ in range(10):
        table.update(AccessBatch.empty())
    assert table.chunks.columns.heat[0, 3] == 500  # idle: nothing is forgotten
    table.update(batch([9] * 1000))
    assert table.chunks.columns.heat[0, 3] == pytest.approx(250)
    assert table.chunks.columns.heat[0, 9] == 1000


def test_no_window_closes_on_few_samples() -> None:
    table = HeatTable(HeatSettings(window_samples_min=100))
    table.track([PROCESS])
    table.update(batch([3] * 99))
    assert table.stats.windows == 0
    table.update(batch([3]))
    assert table.stats.windows == 1


def test_windows_are_longer_where_more_pages_are_resident() -> None:
    table = HeatTable(HeatSettings(window_samples_min=1, window_pages_per_sample=8))
    table.track([PROCESS])
    table.place(0, np.zeros(1, np.uint64), np.zeros((1, CHUNK_PAGES), np.int8))
    table.update(batch([3] * 63))
    assert table.stats.windows == 0
    table.update(batch([3]))
    assert table.stats.windows == 1


def test_what_the_window_contradicts_is_forgotten_and_what_it_confirms_is_not() -> None:
    table = HeatTable(HeatSettings(cooling_samples=10**9, window_samples_min=1))
    table.track([PROCESS])
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
