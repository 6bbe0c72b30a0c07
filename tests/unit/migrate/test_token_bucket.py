# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmd.base.units import HUGE_PAGE_BYTES
from hmd.migrate.move_budget import UNLIMITED_BYTES, TokenBucket

MIB = 1 << 20


def test_token_bucket_starts_full_refills_at_rate() -> None:
    bucket = TokenBucket(10 * MIB, burst_s=2.0)
    assert bucket.available_bytes(0.0) == 20 * MIB
    bucket.spend(20 * MIB)
    assert bucket.available_bytes(0.0) == 0
    assert bucket.available_bytes(0.5) == 5 * MIB
    assert bucket.available_bytes(100.0) == 20 * MIB


def test_token_bucket_overspent_debt_repaid_first() -> None:
    bucket = TokenBucket(10 * MIB, burst_s=1.0)
    bucket.available_bytes(0.0)
    bucket.spend(15 * MIB)
    assert bucket.available_bytes(0.5) == 0
    assert bucket.available_bytes(1.0) == 5 * MIB


def test_token_bucket_small_rate_reaches_huge_page() -> None:
    bucket = TokenBucket(4096, burst_s=1.0)
    bucket.available_bytes(0.0)
    bucket.spend(HUGE_PAGE_BYTES)
    assert bucket.available_bytes(HUGE_PAGE_BYTES / 4096) == HUGE_PAGE_BYTES


def test_token_bucket_clock_steps_back_adds_nothing() -> None:
    bucket = TokenBucket(10 * MIB, burst_s=1.0)
    bucket.available_bytes(10.0)
    bucket.spend(10 * MIB)
    assert bucket.available_bytes(5.0) == 0


def test_token_bucket_rate_none_unlimited() -> None:
    bucket = TokenBucket(None, burst_s=1.0)
    bucket.spend(10**15)
    assert bucket.available_bytes(0.0) == UNLIMITED_BYTES


@pytest.mark.parametrize(("rate", "burst_s"), [(-1, 1.0), (1, -1.0)])
def test_token_bucket_negative_settings_refused(rate: int, burst_s: float) -> None:
    with pytest.raises(ValueError, match="negative"):
        TokenBucket(rate, burst_s)


@given(
    rate=st.integers(1, 1 << 30),
    steps=st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1)), max_size=30),
)
def test_token_bucket_spending_bounded_by_rate_and_burst(
    rate: int, steps: list[tuple[float, float]]
) -> None:
    bucket = TokenBucket(rate, burst_s=1.0)
    now_s, spent = 0.0, 0
    for wait_s, share in steps:
        now_s += wait_s
        take = int(bucket.available_bytes(now_s) * share)
        bucket.spend(take)
        spent += take
    assert spent <= max(rate, HUGE_PAGE_BYTES) + rate * now_s + 1
