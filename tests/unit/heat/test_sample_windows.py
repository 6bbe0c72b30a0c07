# SPDX-License-Identifier: MIT
"""Windows of samples whose period changes: what the first samples say does not outlast them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_BYTES, CHUNK_PAGES
from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessId
from hmd.sample.access_batch import AccessBatch
from tests.unit.heat.dense import dense_rates

CHUNKS, HOT = 24, 3
LONG, SHORT = 60_000, 300


@pytest.fixture
def table() -> HeatTable:
    """A table of one process with 48 MiB."""
    made = HeatTable()
    made.track_processes([ProcessId(10, 1)])
    starts = np.arange(CHUNKS, dtype=np.uint64) * np.uint64(CHUNK_BYTES)
    made.record_nodes(0, starts, np.zeros((CHUNKS, CHUNK_PAGES), np.int8))
    return made


def batch(page: npt.NDArray[np.int64], period: int) -> AccessBatch:
    return AccessBatch.of(page.astype(np.uint64) * np.uint64(PAGE_BYTES), period=period)


def update(table: HeatTable, period: int, ticks: int, samples: int, hot: float) -> None:
    """Count ticks of samples, of which a share ``hot`` is of the first chunks."""
    random = np.random.default_rng(period)
    for _ in range(ticks):
        anywhere = random.integers(0, CHUNKS * CHUNK_PAGES, samples)
        of_hot = random.integers(0, HOT * CHUNK_PAGES, samples)
        table.update(batch(np.where(random.random(samples) < hot, of_hot, anywhere), period))


def test_hot_set_shows_after_the_period_has_become_shorter(table: HeatTable) -> None:
    update(table, LONG, ticks=6, samples=50, hot=0.0)
    update(table, SHORT, ticks=20, samples=300, hot=0.9)
    rates = dense_rates(table)
    assert rates.rate[:HOT].mean() > 20 * rates.rate[HOT:].mean()
    assert rates.effective_samples[:HOT].mean() > 2.0
    assert table.history.effective_sample_weight[0] < 3 * SHORT


def test_history_of_one_period_keeps_its_weight(table: HeatTable) -> None:
    update(table, SHORT, ticks=50, samples=300, hot=0.5)
    counted = table.history.history_weight[0] + table.history.window_weight[0]
    assert counted == pytest.approx(50 * 300 * SHORT, rel=0.1)
    assert table.history.effective_sample_weight[0] == pytest.approx(SHORT)


def test_longer_period_leaves_what_is_known(table: HeatTable) -> None:
    update(table, SHORT, ticks=20, samples=300, hot=0.9)
    before = table.history.history_weight[0]
    update(table, LONG, ticks=6, samples=50, hot=0.9)
    assert table.history.history_weight[0] >= 0.9 * before
    rates = dense_rates(table)
    assert rates.rate[:HOT].mean() > 20 * rates.rate[HOT:].mean()
