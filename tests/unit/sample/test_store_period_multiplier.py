# SPDX-License-Identifier: MIT
"""How much more rarely stores are sampled where they hit the first-level cache."""

from __future__ import annotations

from hmd.sample.periods import MAX_STORE_MULTIPLIER, StorePeriodMultiplier


def test_store_factor_doubles_while_hits_take_most_records() -> None:
    factor = StorePeriodMultiplier()
    found = []
    for _ in range(8):
        factor.update(1000, 900)
        found.append(factor.value)
    assert found == [
        2,
        4,
        8,
        16,
        MAX_STORE_MULTIPLIER,
        MAX_STORE_MULTIPLIER,
        MAX_STORE_MULTIPLIER,
        MAX_STORE_MULTIPLIER,
    ]


def test_store_factor_without_hits_returns_to_one() -> None:
    factor = StorePeriodMultiplier()
    factor.update(1000, 900)
    factor.update(1000, 900)
    assert [factor.update(1000, 0), factor.value] == [True, 2]
    assert [factor.update(1000, 0), factor.value] == [True, 1]
    assert [factor.update(1000, 0), factor.value] == [False, 1]


def test_store_factor_waits_for_enough_records() -> None:
    factor = StorePeriodMultiplier()
    assert not any(factor.update(10, 10) for _ in range(6))
    assert factor.update(10, 10)


def test_store_factor_converges_where_hits_follow_it() -> None:
    """Loads take 900 records per read, stores that hit 10,000 over the factor."""
    factor = StorePeriodMultiplier()
    for _ in range(40):
        hits = 10_000 // factor.value
        factor.update(900 + hits, hits)
    hits = 10_000 // factor.value
    assert 1 / 8 <= hits / (900 + hits) <= 1 / 2
    assert factor.value == 16
