# SPDX-License-Identifier: MIT
"""Periods that are found in recorded misses, and what they are worth."""

import numpy as np

from bench.compare.iterations import CHUNK_PAGES, RATIO, alike, period_of, shares


def test_a_hot_set_that_returns_has_a_period_by_which_it_is_foreseen() -> None:
    counts = np.zeros((60, RATIO * CHUNK_PAGES), np.float32)
    for tick in range(60):
        hot = tick // 5 % 3
        counts[tick, hot * CHUNK_PAGES : (hot + 1) * CHUNK_PAGES] = 1
    period = period_of(alike(counts))
    found = shares(counts, period)
    assert period == 15
    assert found["period"] == found["next"] > found["last"]


def test_a_hot_set_that_moves_for_good_has_none() -> None:
    counts = np.zeros((60, 60 * CHUNK_PAGES), np.float32)
    for tick in range(60):
        counts[tick, tick * CHUNK_PAGES : (tick + 2) * CHUNK_PAGES] = 1
    assert period_of(alike(counts)) == 0
