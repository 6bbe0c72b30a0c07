# SPDX-License-Identifier: MIT
"""The long run: rates revert to a mean where what was hot comes back, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from bench.synthetic.synthetic_run import SyntheticRun, Tier, hot_blocks
from hmd.emulate.preset import load
from hmd.heat.table import HeatTable
from hmd.learn.rows import HEADROOM_BYTES
from hmd.linux.procfs import ProcessId
from hmd.policy.builtin.benefit import Benefit, BenefitSettings
from hmd.policy.builtin.none import NonePolicy
from hmd.policy.long_run import (
    LongRun,
    RateRows,
    fill_mixed,
    store_shares,
    update_means,
)
from hmd.simulate.pmu import PmuSettings
from hmd.simulate.simulation import SimulationSettings, simulate
from tests.unit.simulate.conftest import HOT_PAGES, hot_set, stream_of

PAGES, HOT, SAMPLES = 4096, 512, 2000
Weights = npt.NDArray[np.float64]


def phase(seed: int) -> Weights:
    return hot_blocks(PAGES, HOT, 16, seed=seed)


def returning(tick: int) -> Weights:
    """Three phases of six ticks in turn."""
    return phase(1 + tick // 6 % 3)


def moved_once(tick: int) -> Weights:
    return phase(1 + tick // 24)


def program(weights: Weights) -> SyntheticRun:
    tiers = (Tier(PAGES), Tier(2 * PAGES))
    node = np.ones(PAGES, np.int8)
    return SyntheticRun(NonePolicy(), tiers, weights, node, samples_per_tick=SAMPLES)


def learned(
    weights: Callable[[int], Weights], ticks: int
) -> tuple[LongRun, SyntheticRun, npt.NDArray[np.float32]]:
    """Return the long run after so many ticks, the program, and the rates of the last tick."""
    long_run, run = LongRun(), program(weights(0))
    mixed = np.empty(0, np.float32)
    for tick in range(ticks):
        run.weights = weights(tick)
        run.tick()
        mixed = long_run.mix_rates(run.heat.view(run.machine.topology))
    return long_run, run, mixed


def weight(long_run: LongRun, table: HeatTable) -> float:
    (process,) = table.processes
    return long_run.weight(process)


def test_phases_that_return_weigh_and_rates_are_of_all_of_them() -> None:
    long_run, run, mixed = learned(returning, 72)
    assert weight(long_run, run.heat) > 0.4
    pages = run.heat.view(run.machine.topology)
    # Of the pages that are hot in another phase alone, the view knows little.
    hot = [phase(seed) > phase(seed).min() for seed in (1, 2, 3)]
    others = (hot[0] | hot[1]) & ~hot[2]
    assert mixed[others].mean() > 1.5 * pages.rate[others].mean()
    assert mixed.sum() == pytest.approx(pages.rate.sum(), rel=0.05)


def test_steady_program_rates_are_those_of_the_view() -> None:
    long_run, run, mixed = learned(lambda tick: phase(1), 40)
    assert weight(long_run, run.heat) == 0.0
    assert np.array_equal(mixed, run.heat.view(run.machine.topology).rate)


def test_hot_set_that_moved_for_good_rates_are_about_those_of_the_view() -> None:
    long_run, run, mixed = learned(moved_once, 47)
    assert weight(long_run, run.heat) < 0.1
    rate = run.heat.view(run.machine.topology).rate
    assert np.abs(mixed - rate).sum() < 0.1 * rate.sum()


def test_mixed_asked_twice_in_a_tick_is_equal() -> None:
    long_run, run, mixed = learned(returning, 40)
    before = weight(long_run, run.heat)
    again = long_run.mix_rates(run.heat.view(run.machine.topology))
    assert np.array_equal(mixed, again)
    assert weight(long_run, run.heat) == before


def test_new_table_begins_anew() -> None:
    long_run = learned(returning, 72)[0]
    other = program(phase(2))
    other.tick()
    pages = other.heat.view(other.machine.topology)
    assert np.array_equal(long_run.mix_rates(pages), pages.rate)
    assert weight(long_run, other.heat) == 0.0


def test_weight_of_a_process_that_is_not_tracked_is_none() -> None:
    assert LongRun().weight(ProcessId(1, 1)) == 0.0


def numbers(kept: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (kept.astype(np.uint32) << np.uint32(16)).view(np.float32)


def test_kernels_add_ended_times_by_their_part_and_mix_by_weight() -> None:
    process = np.array([0, 0, 1], np.int32)
    rows = RateRows(np.array([2, 0, 1]), process, np.array([2, 4, 6], np.float32))
    last, mean = np.zeros(3, np.uint16), np.zeros(3, np.uint16)
    parts = np.array([0.5, 0.0], np.float32)
    store_shares(last, rows, np.array([0.5, 0.25], np.float32))
    update_means(last, mean, rows, parts)  # nothing is known of earlier times
    rows = rows._replace(rate=np.array([6, 4, 6], np.float32))
    store_shares(last, rows, np.array([0.5, 0.25], np.float32))
    update_means(last, mean, rows, parts)
    assert numbers(last).tolist() == [2.0, 1.5, 3.0]
    assert numbers(mean).tolist() == [2.0, 0.0, 2.0]
    mixed = np.empty(3, np.float32)
    total, weights = np.array([2, 4], np.float32), np.array([0.25, 1], np.float32)
    fill_mixed(mean, rows, total, weights, mixed)
    assert mixed.tolist() == [6 + 0.25 * (4 - 6), 4.0, 6.0]


def test_kernels_rows_in_order_and_not_are_treated_alike() -> None:
    rng = np.random.default_rng(1)
    count = 1000
    process, rate = (np.arange(count) // 700).astype(np.int32), rng.random(count, np.float32)
    values = rng.random(count, np.float32).view(np.uint32) >> np.uint32(16)
    by, weights = np.array([0.5, 2], np.float32), np.array([0.3, 0.6], np.float32)
    found = []
    for number in (np.arange(count), rng.permutation(count)):
        rows = RateRows(number, process, rate)
        last, mean, mixed = np.zeros(count, np.uint16), np.zeros(count, np.uint16), rate.copy()
        mean[number] = values
        store_shares(last, rows, by)
        fill_mixed(mean, rows, by, weights, mixed)
        found.append((last[number], mixed))
    assert np.array_equal(found[0][0], found[1][0])
    assert np.allclose(found[0][1], found[1][1], rtol=1e-6)


@pytest.mark.parametrize("value", [1.0, 0.3, 1e-9, 123.456])
def test_kept_rates_have_eight_binary_digits(value: float) -> None:
    rows = RateRows(np.zeros(1, np.int64), np.zeros(1, np.int32), np.array([value], np.float32))
    last = np.zeros(1, np.uint16)
    store_shares(last, rows, np.ones(1, np.float32))
    assert numbers(last)[0] == pytest.approx(value, rel=2**-8)


def test_benefit_phases_that_return_run_faster_with_fewer_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = [512 + HOT_PAGES * 4 // 3 * (number % 3) for number in range(36)]
    phases = [hot_set(12_000, begin, number) for number, begin in enumerate(first)]
    stream = stream_of(np.concatenate(phases))
    pace = SimulationSettings(tick_s=0.001, delay_s=0.0005, sampling=PmuSettings(period=83))

    def run() -> tuple[float, int]:
        policy = Benefit(BenefitSettings(headroom=0.0, headroom_min=HEADROOM_BYTES))
        found = simulate(stream, load("dram-pm"), 3 * HOT_PAGES, policy, pace)
        return found.runtime_s, found.moved_bytes

    long = run()
    monkeypatch.setattr(LongRun, "mix_rates", lambda self, pages: pages.rate)
    short = run()
    assert long[0] <= 1.01 * short[0]
    assert long[1] < 0.9 * short[1]
