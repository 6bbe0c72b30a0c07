# SPDX-License-Identifier: MIT
"""Control of the sampling period by the CPU quota."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import gcd

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmd.sample.periods import (
    PRIME_PERIODS,
    SHORT_PRIME_PERIODS,
    PeriodControl,
    PeriodSettings,
    TickCost,
    accesses_per_sample,
    scaled_period,
    second_period,
)

QUOTA = 0.01


def control(start: int = 1009, periods: tuple[int, ...] = PRIME_PERIODS) -> PeriodControl:
    return PeriodControl(PeriodSettings(quota=QUOTA), periods, start)


def tick(share: float, *, samples: int = 1000, other: float = 0.0, lost: int = 0) -> TickCost:
    """A second in which samples took this share of a CPU, and other work another one."""
    return TickCost(1.0, share + other, share, samples, lost)


def test_period_ladders_are_ascending_primes() -> None:
    periods = (*SHORT_PRIME_PERIODS, *PRIME_PERIODS)
    assert list(periods) == sorted(set(periods))
    assert all(all(n % d for d in range(2, int(n**0.5) + 1)) for n in periods)
    assert (PRIME_PERIODS[0], PRIME_PERIODS[-1], len(PRIME_PERIODS)) == (199, 1014029, 55)


@pytest.mark.parametrize(
    ("period", "second"), [(1, 2), (7, 11), (101, 109), (199, 211), (200, 223)]
)
def test_pair_period_is_the_next_prime_6_percent_longer(period: int, second: int) -> None:
    assert second_period(period) == second


@given(st.integers(1, 20_000))
def test_pair_period_is_coprime_and_about_as_long(period: int) -> None:
    second = second_period(period)
    assert gcd(period, second) == 1
    assert 1.06 * period <= second <= 1.06 * period + 53  # no gap of primes is longer there


@given(st.integers(2, 60))
def test_pair_periods_overflow_at_every_distance_equally(period: int) -> None:
    second = second_period(period)
    both = range(1, period * second + 1)
    at = [(count % period, count % second) for count in both]
    assert len(set(at)) == period * second


@pytest.mark.parametrize("scale", [32, 64, 1024])
@pytest.mark.parametrize("period", [7, 199, 1009, 19997])
def test_scaled_period_is_a_prime_of_about_that_length(period: int, scale: int) -> None:
    longer = scaled_period(period, scale)
    assert period * scale <= longer <= 1.1 * period * scale
    assert all(longer % divisor for divisor in range(2, 1 + int(longer**0.5)))
    assert scaled_period(period, 1) == period


@pytest.mark.parametrize("stores_per_line", [2, 4, 8, 64])
@pytest.mark.parametrize("begin", [0, 1, 7])
def test_scaled_period_samples_each_store_of_a_line(stores_per_line: int, begin: int) -> None:
    """Of a program that fills lines, the first store of each misses."""
    sampled = begin + scaled_period(199, 64) * np.arange(20_000)
    share = float(np.mean(sampled % stores_per_line == 0))
    assert share == pytest.approx(1 / stores_per_line, rel=0.02)


def test_pair_sample_stands_for_half_the_accesses() -> None:
    assert accesses_per_sample(199, 211) == 102
    assert accesses_per_sample(1, 2) == 1
    counted = 199 * 211 * 10
    samples = counted // 199 + counted // 211
    assert samples * accesses_per_sample(199, 211) == pytest.approx(counted, rel=0.01)


def test_period_within_slack_of_the_quota_is_kept() -> None:
    c = control()
    before = c.period
    for use in (QUOTA, QUOTA * 1.19, QUOTA * 0.81, QUOTA):
        assert c.update(tick(use)) == before


def test_period_above_the_quota_is_corrected_at_once() -> None:
    c = control(start=1009)
    period = c.update(tick(4 * QUOTA))
    assert 4 * 1009 <= period <= 4 * 1009 * 1.4


def test_period_at_start_shortens_to_the_quota_by_halves() -> None:
    c = control(start=4751)
    costs = [replace(tick(QUOTA / 8), period=4751)] * 3
    assert [c.update(cost) for cost in costs] == pytest.approx([2375, 1188, 594], rel=0.2)


def test_period_after_a_quiet_first_tick_is_at_least_half() -> None:
    c = control(start=199, periods=(*SHORT_PRIME_PERIODS, *PRIME_PERIODS))
    quiet = replace(tick(QUOTA / 100, samples=29), overhead=0.0005)
    assert c.update(quiet) >= 199 / 2


def test_period_where_accesses_cease_halves_per_tick_at_most() -> None:
    c = control(start=4751)
    c.update(tick(QUOTA))
    periods = [c.update(tick(QUOTA / 1000, samples=1)) for _ in range(5)]
    assert [a / b for a, b in zip([4751, *periods], periods, strict=False)] == pytest.approx(
        [2.0] * 4 + [periods[3] / periods[4]], rel=0.2
    )
    assert periods[-1] == PRIME_PERIODS[0]


def test_period_without_samples_at_the_start_is_kept() -> None:
    c = control()
    before = c.period
    for _ in range(20):
        assert c.update(tick(0.0, samples=0)) == before


def test_period_other_work_over_the_quota_leaves_half_for_samples() -> None:
    c = control(start=1009)
    period = [c.update(tick(QUOTA / 2, other=5 * QUOTA)) for _ in range(5)][-1]
    assert period == 1009 or period == PRIME_PERIODS[PRIME_PERIODS.index(1129)]
    assert c.cpu_use == pytest.approx(5.5 * QUOTA)


def test_period_other_work_takes_from_what_samples_may_cost() -> None:
    alone, beside = control(start=1009), control(start=1009)
    assert alone.update(tick(QUOTA)) == 1129  # the rung at or above 1009
    assert beside.update(tick(QUOTA, other=QUOTA / 4)) >= 1129 / 0.75


def test_period_with_losses_lengthens_below_the_quota() -> None:
    c = control(start=1129)
    assert c.update(tick(QUOTA, lost=10)) == 1327


def test_period_stays_within_the_ladder() -> None:
    c = control(start=PRIME_PERIODS[0])
    assert c.update(tick(1e-3)) == PRIME_PERIODS[0]
    for _ in range(50):
        c.update(tick(1.0, samples=1_000_000, lost=5))
    assert c.period == PRIME_PERIODS[-1]


def test_period_without_elapsed_time_is_kept() -> None:
    c = control()
    before = c.period
    assert c.update(TickCost(0.0, 1.0, 1.0, 1000)) == before
    assert c.cpu_use == 0.0


def recorded(c: PeriodControl, accesses: float, record_s: float = 2.6e-7) -> TickCost:
    """A second of a CPU with so many accesses, whose samples cost the daemon hardly anything."""
    samples = accesses / c.period
    return TickCost(1.0, 1e-9 * samples, 1e-9 * samples, samples, overhead=record_s * samples)


def test_period_records_beyond_the_overhead_lengthen_it_at_once() -> None:
    c = control(start=199)
    assert c.update(recorded(c, accesses=2e7)) == pytest.approx(2e7 * 2.6e-7 / 0.01, rel=0.2)
    assert recorded(c, accesses=2e7).overhead <= 0.01


def test_period_overhead_of_another_setting_holds_that_one() -> None:
    c = PeriodControl(PeriodSettings(quota=QUOTA, overhead=0.001), PRIME_PERIODS, 199)
    c.update(recorded(c, accesses=2e7))
    assert 0.0008 < recorded(c, accesses=2e7).overhead <= 0.001


def test_period_records_within_the_overhead_leave_the_quota_in_force() -> None:
    quota_only, both = control(start=1009), control(start=1009)
    expensive = tick(4 * QUOTA)
    assert both.update(replace(expensive, overhead=0.005)) == quota_only.update(expensive)


def test_period_records_that_cease_halve_it_per_tick_at_most() -> None:
    c = control(start=4751)
    c.update(recorded(c, accesses=2e8))
    before = c.period
    assert c.update(recorded(c, accesses=2e5)) >= before / 2.1


@pytest.mark.parametrize("periods", [(), (3, 3), (5, 3)])
def test_period_ladder_out_of_order_is_refused(periods: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must ascend"):
        PeriodControl(PeriodSettings(), periods)


@given(
    cost_s=st.floats(1e-7, 1e-4),
    rate=st.floats(1e5, 1e8),
    fixed=st.floats(0, 5 * QUOTA),
    reading=st.floats(0, QUOTA),
    start=st.sampled_from(PRIME_PERIODS),
)
def test_period_settles_in_thirty_ticks_at_any_speed(
    cost_s: float, rate: float, fixed: float, reading: float, start: int
) -> None:
    """A sample costs cost_s, accesses come at a rate; other work and each read are fixed."""
    c = control(start=start)
    for number in range(30):
        samples = rate * (1 + 0.3 * (number % 3 - 1)) / c.period
        sampling = samples * cost_s + reading
        c.update(TickCost(1.0, fixed + sampling, sampling, samples))
    spent = rate / c.period * cost_s
    most = max(QUOTA - fixed, QUOTA / 2)
    assert spent <= 1.5 * most or c.period == PRIME_PERIODS[-1]
    # No more samples are available: at a third of the period they would cost too much.
    least = max(QUOTA - fixed - reading, QUOTA / 2)
    assert 3 * spent >= least or c.period == PRIME_PERIODS[0]


def test_period_of_a_stream_that_starts_and_ends_follows_in_few_ticks() -> None:
    """Sampling is cheap per tick, until a stream brings fifty times the accesses."""
    c, cost_s, reading_s = control(start=199), 2e-6, 0.02

    def run(rate: float, ticks: int) -> list[int]:
        periods = []
        for number in range(ticks):
            samples = rate * (1 + 0.1 * (number % 3)) / c.period
            sampling = reading_s + cost_s * samples
            c.update(TickCost(1.0, sampling + 0.05, sampling, samples))
            periods.append(c.period)
        return periods

    quiet = run(2e5, 40)[-1]
    flooded = run(1e7, 3)[-1]
    assert 2e-6 * 1e7 / flooded <= 1.5 * QUOTA
    after = run(2e5, 8)[-1]
    assert quiet <= after <= 2 * quiet


def test_period_samples_of_the_last_period_count_with_it() -> None:
    c, accesses, record_s = control(start=199), 2e7, 2.6e-7
    taken, periods = c.period, []
    for _ in range(8):
        samples = accesses / taken
        cost = TickCost(1.0, 1e-9, 1e-9, samples, overhead=record_s * samples, period=taken)
        taken = c.period  # in force while the next tick's samples are taken
        periods.append(c.update(cost))
    wanted = accesses * record_s / 0.01
    assert periods == [pytest.approx(wanted, rel=0.2)] * 8


def test_period_in_a_quiet_phase_shortens_by_a_sixth_per_tick() -> None:
    c = control(start=199, periods=(*SHORT_PRIME_PERIODS, *PRIME_PERIODS))
    quiet = [c.update(recorded(c, accesses=1e4)) for _ in range(6)]
    assert [b / a for a, b in pairwise([199, *quiet])] == pytest.approx([0.85] * 6, abs=0.2)
    assert recorded(c, accesses=2e7).overhead < 0.1  # 0.7 at the shortest period


def test_period_between_two_programs_goes_back_to_the_start() -> None:
    c = control(start=199)
    long = c.update(recorded(c, accesses=2e8))
    periods = [c.update(TickCost(1.0, 1e-4, 1e-4, 0)) for _ in range(8)]
    assert long > 4000
    assert periods[-1] == 199
    assert all(after >= before / 2 for before, after in pairwise([long, *periods]))
    assert c.update(recorded(c, accesses=1e5)) == 199
