# SPDX-License-Identifier: MIT
"""Change points: a tick whose samples are less likely by the rates than if pages were alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from hmd.base.units import PAGE_BYTES
from hmd.heat.changes import has_changed
from hmd.heat.settings import ABSENT, CHUNK_BYTES, CHUNK_PAGES, FIXED, HeatSettings
from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessId
from hmd.sample.access_batch import AccessBatch, Kind
from tests.unit.heat.dense import dense_rates

PROCESS, OTHER = ProcessId(10, 1), ProcessId(11, 1)
CHUNKS = 8
PAGES = CHUNKS * CHUNK_PAGES
SCATTERED = np.random.default_rng(1).permutation(PAGES)
HOT, NEXT_HOT = SCATTERED[: PAGES // 8], SCATTERED[PAGES // 8 : PAGES // 4]


def batch(pages: npt.NDArray[np.int64], process: int = 0) -> AccessBatch:
    return AccessBatch.of(pages.astype(np.uint64) * np.uint64(PAGE_BYTES), process)


def samples(hot: npt.NDArray[np.int64], seed: int, count: int = 200) -> npt.NDArray[np.int64]:
    """Pages of samples, nine of ten of them hot."""
    rng = np.random.default_rng(seed)
    return np.concatenate(
        [rng.choice(hot, count - count // 10), rng.integers(0, PAGES, count // 10)]
    )


def tick(table: HeatTable, pages: npt.NDArray[np.int64], process: int = 0) -> None:
    """Count samples and ask for rates, as a daemon's tick does."""
    table.update(batch(pages, process))
    table.rates()


def empty_table(processes: int = 1) -> HeatTable:
    table = HeatTable(HeatSettings())
    table.track_processes([PROCESS, OTHER][:processes])
    starts = np.arange(CHUNKS, dtype=np.uint64) * np.uint64(CHUNK_BYTES)
    for process in range(processes):
        table.record_nodes(process, starts, np.zeros((CHUNKS, CHUNK_PAGES), np.int8))
    return table


def table_of_hot_set(ticks: int = 20) -> HeatTable:
    """A table that has seen samples of ``HOT``."""
    table = empty_table()
    for seed in range(ticks):
        tick(table, samples(HOT, seed))
    return table


def rate_of(table: HeatTable, pages: npt.NDArray[np.int64]) -> float:
    """Share of the rates of all pages that these have."""
    rate = dense_rates(table).rate.reshape(-1).astype(np.float64)
    return float(rate[pages].sum() / rate.sum())


def test_is_refuted_by_sign_errors_and_number_of_samples() -> None:
    # Samples that weigh 1, and of their logarithms the sum and the sum of squares.
    alike = [
        (100, -50.0, 50.0),  # mean -0.5, standard error 0.05
        (100, 50.0, 50.0),
        (100, -15.0, 100.0),  # mean -0.15, standard error 0.1
        (100, -5.0, 0.3),  # mean -0.05, standard error 0.002
        (10, -5.0, 5.0),
        (0, 0.0, 0.0),
    ]
    sums = [(n, octaves, n, octaves, squares) for n, octaves, squares in alike]
    assert has_changed(np.array(sums, np.float64)).tolist() == [True] + 5 * [False]


def test_is_refuted_by_weight_not_by_number_of_samples() -> None:
    """100 samples of one octave below weigh 1; others of one octave above 64, and reversed."""
    sums = []
    for low, high in ((1.0, 64.0), (64.0, 1.0)):
        weights = np.repeat([low, high], [100, 50])
        octaves = np.repeat([-1.0, 1.0], [100, 50])
        squares = weights * weights
        of_weights = weights.sum(), (weights * octaves).sum()
        sums.append((*of_weights, *((squares * octaves**k).sum() for k in range(3))))
    assert has_changed(np.array(sums)).tolist() == [False, True]


def test_scattered_hot_set_moves_refuted_in_one_tick() -> None:
    table = table_of_hot_set()
    assert table.stats.changes == 0
    assert rate_of(table, HOT) > 0.6
    tick(table, samples(NEXT_HOT, 100))
    assert table.stats.changes == 1
    assert rate_of(table, HOT) < 0.3
    for seed in range(101, 121):
        tick(table, samples(NEXT_HOT, seed))
    assert table.stats.changes == 1
    assert rate_of(table, NEXT_HOT) > 0.6


@pytest.mark.parametrize("hot", [HOT, np.arange(PAGES // 8), np.arange(PAGES)])
def test_heat_that_stays_never_refuted(hot: npt.NDArray[np.int64]) -> None:
    table = empty_table()
    for seed in range(300):
        tick(table, samples(hot, seed, 100))
    assert table.stats.changes == 0


def copied(seed: int) -> AccessBatch:
    """A copy from the first half of the pages to the others: samples of loads and of stores.

    A store's sample stands for 64 times as many accesses as a load's.
    """
    rng, half = np.random.default_rng(seed), PAGES // 2
    pages = np.concatenate([rng.integers(0, half, 130), rng.integers(half, PAGES, 50)])
    kind = np.repeat(np.array([Kind.LOAD, Kind.STORE], np.uint8), [130, 50])
    period = np.repeat(np.array([199, 64 * 199], np.uint32), [130, 50])
    return replace(batch(pages), kind=kind, period=period)


def test_loads_of_a_copy_do_not_refute_its_stores() -> None:
    table = empty_table()
    for seed in range(60):
        table.update(copied(seed))
        table.rates()
    assert table.stats.changes == 0
    assert rate_of(table, np.arange(PAGES // 2, PAGES)) > 0.9


def test_history_of_a_hot_set_that_returns_is_found_again() -> None:
    table = table_of_hot_set()
    for seed in range(100, 120):
        tick(table, samples(NEXT_HOT, seed))
    for seed in range(200, 220):
        tick(table, samples(HOT, seed))
    assert table.stats.changes == 2
    assert rate_of(table, HOT) > 0.6


def test_spreads_of_before_begin_the_priors() -> None:
    """The same samples say more of single pages where those are known to differ."""
    table, fresh = table_of_hot_set(), empty_table()
    contrast = []
    for each in (table, fresh):
        first = samples(NEXT_HOT, 100)
        tick(each, first)
        rate = dense_rates(each).rate.reshape(-1)
        others = np.setdiff1d(np.arange(PAGES), first)
        contrast.append(np.median(rate[first]) / np.median(rate[others]))
    assert contrast[0] > 2 * contrast[1]


def test_few_samples_refute_nothing() -> None:
    table = table_of_hot_set()
    tick(table, samples(NEXT_HOT, 100, 15))
    assert table.stats.changes == 0


def test_rates_that_nobody_asked_for_are_not_tested() -> None:
    table = table_of_hot_set()
    table.update(batch(samples(HOT, 99)))
    table.update(batch(samples(NEXT_HOT, 100)))
    assert table.stats.changes == 0


def test_other_processes_keep_their_past() -> None:
    table = empty_table(2)
    for seed in range(20):
        both = batch(np.concatenate([samples(HOT, seed), samples(HOT, seed + 50)]))
        table.update(replace(both, process=np.repeat(np.arange(2, dtype=np.int32), 200)))
        table.rates()
    before = table.history.history_weight[1] + table.history.window_weight[1]
    tick(table, samples(NEXT_HOT, 100))
    assert table.stats.changes == 1
    assert table.history.history_weight[1] + table.history.window_weight[1] == before
    assert table.history.history_weight[0] + table.history.window_weight[0] < 400


def test_unknown_pages_say_nothing() -> None:
    table = table_of_hot_set()
    absent = np.full((CHUNKS, CHUNK_PAGES), ABSENT, np.int8)
    absent[:, 0] = 0
    starts = np.arange(CHUNKS, dtype=np.uint64) * np.uint64(CHUNK_BYTES)
    table.record_nodes(0, starts, absent)
    tick(table, NEXT_HOT[NEXT_HOT % CHUNK_PAGES > 0][:200])
    assert table.stats.changes == 0


def test_unmovable_pages_are_tested_as_others() -> None:
    table = table_of_hot_set()
    starts = np.arange(CHUNKS, dtype=np.uint64) * np.uint64(CHUNK_BYTES)
    table.record_nodes(0, starts, np.full((CHUNKS, CHUNK_PAGES), FIXED - 0, np.int8))
    tick(table, samples(NEXT_HOT, 100))
    assert table.stats.changes == 1


def test_lasting_ticks_by_age_and_past_changes() -> None:
    table = table_of_hot_set(30)
    assert table.changes.heat_lifetime_ticks(table.history.tick).tolist() == [np.inf]
    tick(table, samples(NEXT_HOT, 100))
    assert table.changes.heat_lifetime_ticks(table.history.tick)[0] == pytest.approx(
        30, abs=1
    )  # as long as the first set lasted
    for seed in range(101, 150):
        tick(table, samples(NEXT_HOT, seed))
    assert table.changes.heat_lifetime_ticks(table.history.tick)[0] == pytest.approx(
        52, abs=2
    )  # as long as the second has


def test_tracked_processes_change_columns_follow() -> None:
    table = empty_table(2)
    for seed in range(20):
        tick(table, samples(HOT, seed), 1)
    tick(table, samples(NEXT_HOT, 100), 1)
    lasting = table.changes.heat_lifetime_ticks(table.history.tick)
    table.track_processes([OTHER])
    assert table.changes.heat_lifetime_ticks(table.history.tick).tolist() == [lasting[1]]
    tick(table, samples(NEXT_HOT, 101))
    assert table.stats.changes == 1
