# SPDX-License-Identifier: MIT
"""Access rates estimated from sample counts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from bench.synthetic.synthetic_run import SyntheticRun, Tier
from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import ABSENT, BLOCK_PAGES, CHUNK_BYTES, CHUNK_PAGES, HeatSettings
from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessId
from hmd.policy.builtin.none import NonePolicy
from hmd.sample.access_batch import AccessBatch
from tests.unit.heat.dense import dense_rates

PERIOD = 100


def table_of(
    *counts: npt.NDArray[np.int64], node: int = 0, huge: bool = False, ticks: int = 1
) -> HeatTable:
    """A table in which process i got ``counts[i]`` samples of its pages, each tick."""
    table = HeatTable(HeatSettings(min_window_samples=1))
    table.track_processes([ProcessId(10 + i, 1) for i in range(len(counts))])
    process, address = [], []
    for slot, count in enumerate(counts):
        starts = np.arange(len(count) // CHUNK_PAGES, dtype=np.uint64) * np.uint64(CHUNK_BYTES)
        nodes = np.full((len(starts), CHUNK_PAGES), node, np.int8)
        table.record_nodes(slot, starts, nodes, np.full(len(starts), huge))
        pages = np.repeat(np.arange(len(count), dtype=np.uint64), count)
        process.append(np.full(len(pages), slot, np.int32))
        address.append(pages * np.uint64(PAGE_BYTES))
    batch = AccessBatch.of(np.concatenate(address), np.concatenate(process), period=PERIOD)
    for _ in range(ticks):
        table.update(batch)
    return table


def blocks(hot: int, mean: float, seed: int = 1) -> npt.NDArray[np.int64]:
    """Poisson counts of a chunk whose first ``hot`` blocks have this mean, the others none."""
    rates = np.zeros(CHUNK_PAGES)
    rates[: hot * BLOCK_PAGES] = mean
    return np.random.default_rng(seed).poisson(rates)


def test_rates_sum_equals_accesses_of_tick() -> None:
    count = blocks(16, 5.0)
    rates = dense_rates(table_of(count, ticks=3))
    assert rates.rate.sum() == pytest.approx(count.sum() * PERIOD, rel=0.01)


def test_rates_in_uniform_blocks_smoothed_over_neighbours() -> None:
    # 256 pages of 2 samples on average: single counts run from 0 to 7.
    count = blocks(16, 2.0)
    rates = dense_rates(table_of(count))
    hot = rates.rate[0, : 16 * BLOCK_PAGES] / PERIOD
    assert count[: 16 * BLOCK_PAGES].std() > 1.2
    assert hot.std() < 0.6
    assert hot.min() > 1.0
    assert rates.effective_samples[0, : 16 * BLOCK_PAGES].min() > 5


def test_rates_of_pages_unlike_neighbours_not_smoothed() -> None:
    count = np.zeros(CHUNK_PAGES, np.int64)
    count[::BLOCK_PAGES] = 40
    rates = dense_rates(table_of(count))
    assert rates.rate[0, 0] / PERIOD == pytest.approx(40, rel=0.1)
    assert rates.rate[0, 1] / PERIOD < 1


def test_rates_more_samples_more_support() -> None:
    few, many = dense_rates(table_of(blocks(16, 3.0))), dense_rates(table_of(blocks(16, 24.0)))
    hot = slice(16 * BLOCK_PAGES)
    assert np.median(many.effective_samples[0, hot]) > 4 * np.median(few.effective_samples[0, hot])


def test_rates_of_absent_pages_zero() -> None:
    count = blocks(32, 3.0)
    rates = dense_rates(table_of(count, node=ABSENT))
    assert not rates.rate.any()
    assert not rates.effective_samples.any()


def test_rates_of_huge_page_are_mean_of_pages() -> None:
    count = np.zeros(CHUNK_PAGES, np.int64)
    count[7] = 512
    rates = dense_rates(table_of(count, huge=True))
    assert (rates.rate == rates.rate[0, 0]).all()
    assert rates.rate[0, 0] / PERIOD == pytest.approx(1.0, rel=0.01)
    assert rates.effective_samples[0, 0] == pytest.approx(512, rel=0.01)


def test_rates_of_busy_process_higher_order_of_idle_kept() -> None:
    count = np.zeros(CHUNK_PAGES, np.int64)
    count[0], count[100] = 300, 100
    table = table_of(count, count)
    one = AccessBatch.of(
        np.repeat(np.array([0, 100], np.uint64) * np.uint64(PAGE_BYTES), [300, 100]), period=PERIOD
    )
    for _ in range(6):
        table.update(one)
    rates = dense_rates(table).rate
    row = [int(table.chunks.find(slot, np.zeros(1, np.uint64))[0]) for slot in range(2)]
    assert rates[row[0], 0] > 30 * rates[row[1], 0]
    assert rates[row[1], 0] == pytest.approx(3 * rates[row[1], 100], rel=0.1)


def test_rates_of_unsampled_page_fall_with_time() -> None:
    count = np.zeros(2 * CHUNK_PAGES, np.int64)
    count[0] = 1000
    early, late = table_of(count), table_of(count, ticks=10)
    assert 0 < dense_rates(late).rate[1, 0] < dense_rates(early).rate[1, 0]
    assert dense_rates(late).effective_samples[1, 0] < 1


def test_rates_without_samples_zero() -> None:
    rates = dense_rates(table_of(np.zeros(CHUNK_PAGES, np.int64)))
    assert not rates.rate.any()
    assert not rates.effective_samples.any()
    assert dense_rates(HeatTable()).rate.shape == (0, CHUNK_PAGES)


def test_rates_where_all_memory_is_accessed_alike_are_alike() -> None:
    count = np.random.default_rng(4).poisson(2.0, 16 * CHUNK_PAGES)
    rates = dense_rates(table_of(count))
    assert count.std() > 1.3
    assert rates.rate.std() < 0.02 * rates.rate.mean()


def test_rates_of_chunks_that_differ_keep_their_difference() -> None:
    mean = np.repeat([4.0, 0.5] * 8, CHUNK_PAGES)
    count = np.random.default_rng(4).poisson(mean)
    rates = dense_rates(table_of(count)).rate.reshape(-1, 2, CHUNK_PAGES) / PERIOD
    assert rates[:, 0].mean() == pytest.approx(4.0, rel=0.05)
    assert rates[:, 1].mean() == pytest.approx(0.5, rel=0.1)


def test_rates_of_a_steady_program_come_near_its_accesses() -> None:
    """Of thousands of pages some deviate in each window by chance; their past stays credible."""
    weights = np.random.default_rng(5).gamma(0.5, size=8 * CHUNK_PAGES)
    nodes = np.ones(len(weights), np.int8)
    tiers = (Tier(len(weights)), Tier(2 * len(weights)))
    run = SyntheticRun(NonePolicy(), tiers, weights, nodes, samples_per_tick=300)
    for _ in range(120):
        run.tick()
    rate = run.heat.view(run.machine.topology).rate
    assert np.abs(rate / rate.sum() - weights / weights.sum()).sum() < 0.23


def test_rates_of_few_scattered_hot_pages_rise_with_the_first_sample() -> None:
    random = np.random.default_rng(4)
    hot = random.random(16 * CHUNK_PAGES) < 0.1
    count = random.poisson(np.where(hot, 0.5, 0.005))
    rates = dense_rates(table_of(count)).rate.reshape(-1) / PERIOD
    unseen, once = rates[count == 0].mean(), rates[count == 1].mean()
    assert hot[count == 1].mean() > 0.8
    assert once > 5 * unseen
    assert once < 1.0
