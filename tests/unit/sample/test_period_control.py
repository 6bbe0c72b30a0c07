"""Control of the sampling period by the CPU quota."""

from __future__ import annotations

from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmd.sample.period_control import (
    PRIMES,
    SMALL_PRIMES,
    PeriodControl,
    PeriodSettings,
    partner,
    stands_for,
)

QUOTA = 0.01


def control(start: int = 1009, ladder: tuple[int, ...] = PRIMES) -> PeriodControl:
    return PeriodControl(PeriodSettings(quota=QUOTA), ladder, start)


def test_period_ladders_are_ascending_primes() -> None:
    ladder = (*SMALL_PRIMES, *PRIMES)
    assert list(ladder) == sorted(set(ladder))
    assert all(all(n % d for d in range(2, int(n**0.5) + 1)) for n in ladder)
    assert (PRIMES[0], PRIMES[-1], len(PRIMES)) == (199, 19997, 30)


@pytest.mark.parametrize(
    ("period", "second"), [(1, 2), (7, 11), (101, 109), (199, 211), (200, 223)]
)
def test_pair_period_is_the_next_prime_6_percent_longer(period: int, second: int) -> None:
    assert partner(period) == second


@given(st.integers(1, 20_000))
def test_pair_period_is_coprime_and_about_as_long(period: int) -> None:
    second = partner(period)
    assert gcd(period, second) == 1
    assert 1.06 * period <= second <= 1.06 * period + 53  # no gap of primes is longer there


@given(st.integers(2, 60))
def test_pair_periods_overflow_at_every_distance_equally(period: int) -> None:
    second = partner(period)
    both = range(1, period * second + 1)
    at = [(count % period, count % second) for count in both]
    assert len(set(at)) == period * second


def test_pair_sample_stands_for_half_the_accesses() -> None:
    assert stands_for(199, 211) == 102
    assert stands_for(1, 2) == 1
    counted = 199 * 211 * 10
    samples = counted // 199 + counted // 211
    assert samples * stands_for(199, 211) == pytest.approx(counted, rel=0.01)


def test_period_within_slack_of_the_quota_is_kept() -> None:
    c = control()
    before = c.period
    for use in (QUOTA, QUOTA * 1.19, QUOTA * 0.81, QUOTA):
        assert c.update(use, 1.0) == before


def test_period_above_the_quota_is_corrected_at_once() -> None:
    c = control(start=1009)
    period = c.update(4 * QUOTA, 1.0)
    assert 4 * 1009 <= period <= 4 * 1009 * 1.4


def test_period_below_the_quota_shortens_by_one_rung() -> None:
    c = control(start=1129)
    assert c.update(0.0, 1.0) == 967
    assert c.update(0.0, 1.0) == 823


def test_period_with_losses_lengthens_below_the_quota() -> None:
    c = control(start=1129)
    assert c.update(0.0, 1.0, lost=10) == 1327


def test_period_stays_within_the_ladder() -> None:
    c = control(start=PRIMES[0])
    assert c.update(0.0, 1.0) == PRIMES[0]
    for _ in range(50):
        c.update(1.0, 1.0, lost=5)
    assert c.period == PRIMES[-1]


def test_period_without_elapsed_time_is_kept() -> None:
    c = control()
    before = c.period
    assert c.update(1.0, 0.0) == before
    assert c.use == 0.0


@pytest.mark.parametrize("ladder", [(), (3, 3), (5, 3)])
def test_period_ladder_out_of_order_is_refused(ladder: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ascends"):
        PeriodControl(PeriodSettings(), ladder)


@given(
    cost_s=st.floats(1e-7, 1e-4),
    rate=st.floats(1e5, 1e8),
    fixed=st.floats(0, 0.5 * QUOTA),
    start=st.sampled_from(PRIMES),
)
def test_period_settles_within_the_quota_at_any_speed(
    cost_s: float, rate: float, fixed: float, start: int
) -> None:
    """A sample costs cost_s, accesses come at a rate, other work of the daemon is fixed."""

    def use(period: int) -> float:
        return fixed + rate / period * cost_s

    c = control(start=start)
    for _ in range(300):
        c.update(use(c.period), 1.0)
    settled = [c.update(use(c.period), 1.0) for _ in range(50)]
    over = QUOTA * 1.2
    assert all(use(p) <= over * 1.25 or p == PRIMES[-1] for p in settled)
    # No more samples are available: a rung less would be over the quota, or there is none.
    shortest = PRIMES.index(min(settled))
    assert shortest == 0 or use(PRIMES[shortest - 1]) >= QUOTA * 0.8
