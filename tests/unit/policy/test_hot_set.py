# SPDX-License-Identifier: MIT
"""How fast the histogram policy follows a hot set, and how few pages it moves without one.

The program: 32768 pages, of which 12288 get 90 % of the accesses; the fast tier holds a tenth
more than those. Bounds leave room for other seeds; bench/stages/policy.py prints the figures.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from bench.synthetic.synthetic_run import SyntheticRun, Tier, hot_blocks
from hmd.base.units import PAGE_BYTES
from hmd.policy.builtin.histogram import Histogram, HistogramSettings
from tests.unit.policy.hot_share import hot_fast

PAGES, HOT, FAST = 32768, 12288, 13516
HEADROOM = 256


def synthetic(weights: npt.NDArray[np.float64], samples: int, fast: int = FAST) -> SyntheticRun:
    policy = Histogram(HistogramSettings(headroom=0.0, headroom_min=HEADROOM * PAGE_BYTES))
    node = np.ones(PAGES, np.int8)
    node[:fast] = 0
    tiers = (Tier(fast + HEADROOM), Tier(2 * PAGES))
    return SyntheticRun(policy, tiers, weights, node, samples_per_tick=samples, seed=7)


# Samples a tick, pages of a hot block, share of the hot set that is fast after 1, 2, 3 ticks,
# pages moved a tick when all is still. 65000 is 5 samples a hot page, 5000 is 0.4.
CASES = [
    (65_000, 16, (0.99, 0.99, 0.99), 16),
    (65_000, 64, (0.99, 0.99, 0.99), 16),
    (65_000, 1, (0.5, 0.7, 0.8), 100),
    (20_000, 16, (0.97, 0.99, 0.99), 16),
    (5_000, 16, (0.55, 0.8, 0.9), 32),
    (5_000, 64, (0.55, 0.8, 0.9), 32),
]


@pytest.mark.parametrize(("samples", "block", "reached", "still"), CASES)
def test_histogram_hot_set_changes_followed_within_bounds(
    samples: int, block: int, reached: tuple[float, ...], still: int
) -> None:
    run = synthetic(hot_blocks(PAGES, HOT, block, seed=1), samples)
    for _ in range(20):
        run.tick()
    assert hot_fast(run) > 0.99
    assert np.mean([run.tick().moved_pages for _ in range(10)]) <= still
    run.weights = hot_blocks(PAGES, HOT, block, seed=2)
    assert hot_fast(run) < 0.5
    for share in reached:
        run.tick()
        assert hot_fast(run) >= share


# An eighth of the pages is hot, 1.1 samples per tick for each: shares after one and ten ticks.
@pytest.mark.parametrize(("block", "after"), [(1, (0.15, 0.8)), (16, (0.85, 0.99))])
def test_histogram_few_samples_hot_set_changes_followed_in_ten_ticks(
    block: int, after: tuple[float, float]
) -> None:
    hot = PAGES // 8
    run = synthetic(hot_blocks(PAGES, hot, block, seed=1), 5_000, fast=hot + hot // 10)
    for _ in range(25):
        run.tick()
    assert hot_fast(run) > 0.98
    run.weights = hot_blocks(PAGES, hot, block, seed=2)
    shares = []
    for _ in range(10):
        run.tick()
        shares.append(hot_fast(run))
    assert shares[0] >= after[0]
    assert shares[-1] >= after[1]


@pytest.mark.parametrize("samples", [65_000, 5_000])
def test_histogram_uniform_accesses_few_moves(samples: int) -> None:
    run = synthetic(np.ones(PAGES), samples)
    for _ in range(20):
        run.tick()
    assert np.mean([run.tick().moved_pages for _ in range(10)]) <= 0.01 * FAST


@pytest.mark.parametrize(("samples", "block"), [(65_000, 16), (65_000, 1), (5_000, 16)])
def test_histogram_hot_set_twice_fast_tier_few_moves(samples: int, block: int) -> None:
    run = synthetic(hot_blocks(PAGES, HOT, block, seed=1), samples, fast=HOT // 2)
    for _ in range(20):
        run.tick()
    assert run.fast_share > 0.45
    assert np.mean([run.tick().moved_pages for _ in range(10)]) <= 0.02 * HOT
