"""The long memory: rates revert to a mean where what was hot comes back, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from bench.synthetic.synthetic_memory import Tier
from bench.synthetic.synthetic_run import SyntheticRun, hot_blocks
from hmd.decide.learned import long_memory
from hmd.decide.learned.long_memory import LongMemory, LongRates
from hmd.decide.policies.learned import Learned, LearnedSettings
from hmd.decide.policies.none import NonePolicy
from hmd.emulate.preset import load
from hmd.heat.heat_settings import HeatSettings
from hmd.learn.training_rows import HEADROOM_BYTES
from hmd.simulate.simulated_pmu import PmuSettings
from hmd.simulate.simulation import SimulationSettings, simulate
from tests.unit.decide.test_learned_policy import base_weights
from tests.unit.simulate.conftest import HOT_PAGES, hot_set, stream_of

PAGES, HOT, SAMPLES = 4096, 512, 300
Weights = npt.NDArray[np.float64]


def phase(seed: int) -> Weights:
    return hot_blocks(PAGES, HOT, 16, seed=seed)


def program(weights: Weights, heat: HeatSettings | None = None) -> SyntheticRun:
    tiers = (Tier(PAGES), Tier(2 * PAGES))
    return SyntheticRun(
        NonePolicy(), tiers, weights, np.ones(PAGES, np.int8), samples_per_tick=SAMPLES, heat=heat
    )


def tick(memory: LongMemory, run: SyntheticRun) -> LongRates:
    run.tick()
    pages = run.heat.view(run.machine.topology)
    return memory.rates(pages, pages.rate)


def weight(memory: LongMemory, run: SyntheticRun) -> float:
    (process,) = run.heat.processes
    return memory.weight(process)


def test_weight_phases_that_return_the_long_run_counts() -> None:
    memory, run = LongMemory(), program(phase(1))
    for number in range(48):
        run.weights = phase(1 + number // 4 % 3)
        tick(memory, run)
    assert weight(memory, run) >= 0.5


def test_rates_of_phases_are_of_all_of_them() -> None:
    memory, run = LongMemory(), program(phase(1))
    for number in range(48):
        run.weights = phase(1 + number // 4 % 3)
        found = tick(memory, run)
    pages = run.heat.view(run.machine.topology)
    mean = sum(phase(seed) for seed in (1, 2, 3)) / 3
    hot = mean > np.median(mean)
    assert found.rate[hot].mean() > 4 * found.rate[~hot].mean()
    # The view's are of the present phase.
    gone = (phase(1) > phase(1).min()) & ~(phase(3) > phase(3).min())
    assert found.rate[gone].mean() > 2 * pages.rate[gone].mean()


def test_weight_hot_set_that_moved_for_good_the_long_run_does_not_count() -> None:
    memory, run = LongMemory(), program(phase(1))
    for _ in range(24):
        tick(memory, run)
    run.weights = phase(2)
    for _ in range(24):
        tick(memory, run)
    assert weight(memory, run) == 0.0


def test_rates_of_a_steady_program_are_nearer_to_the_truth_than_those_of_the_view() -> None:
    """Of a view whose pages lose their past where chance makes them surprising."""
    rng = np.random.default_rng(5)
    run = program(rng.gamma(0.5, size=PAGES), HeatSettings(change_threshold=2.0))
    memory = LongMemory()
    for _ in range(60):
        found = tick(memory, run)
    pages = run.heat.view(run.machine.topology)
    truth = run.weights / run.weights.sum()

    def error(rate: npt.NDArray[np.float32]) -> float:
        return float(np.abs(rate / rate.sum() - truth).sum())

    assert error(found.rate) <= error(pages.rate)
    assert found.support.mean() > 0.9 * pages.support.mean()


def test_weight_without_evidence_is_a_quarter() -> None:
    memory, run = LongMemory(), program(phase(1))
    tick(memory, run)
    assert weight(memory, run) == 0.25


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_mixed_rates_keep_their_sum_and_mix_by_weight(share: float) -> None:
    memory, run = LongMemory(), program(phase(1))
    for _ in range(8):
        found = tick(memory, run)
    pages = run.heat.view(run.machine.topology)
    found = LongRates(found.rate, found.support, np.array([share]))
    mixed = found.mixed(pages, pages.rate)
    assert np.allclose(mixed, (1 - share) * pages.rate + share * found.rate, rtol=1e-4)
    assert mixed.sum() == pytest.approx(pages.rate.sum(), rel=1e-4)
    expected = (1 - share) * pages.support + share * found.support
    assert np.allclose(found.mixed_support(pages), expected, rtol=1e-4)


def test_rates_asked_twice_in_a_tick_are_equal() -> None:
    memory, run = LongMemory(), program(phase(1))
    for _ in range(4):
        first = tick(memory, run)
    pages = run.heat.view(run.machine.topology)
    again = memory.rates(pages, pages.rate)
    assert np.array_equal(first.rate, again.rate)
    assert np.array_equal(first.weight, again.weight)


def test_rates_of_a_new_table_begin_anew() -> None:
    memory, run = LongMemory(), program(phase(1))
    for _ in range(24):
        tick(memory, run)
    other = program(phase(2))
    found = tick(memory, other)
    assert weight(memory, other) == 0.25
    assert np.isfinite(found.rate).all()


def test_learned_phases_that_return_run_faster_with_fewer_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero = str(base_weights(tmp_path / "zero.npz"))
    first = [512 + HOT_PAGES * 4 // 3 * (number % 3) for number in range(36)]
    phases = [hot_set(12_000, begin, number) for number, begin in enumerate(first)]
    program = stream_of(np.concatenate(phases))
    pace = SimulationSettings(tick_s=0.001, delay_s=0.0005, sampling=PmuSettings(period=83))

    def run() -> tuple[float, int]:
        policy = Learned(LearnedSettings(0.0, HEADROOM_BYTES, zero))
        found = simulate(program, load("dram-pm"), 3 * HOT_PAGES, policy, pace)
        return found.runtime_s, found.moved_bytes

    long = run()
    monkeypatch.setattr(long_memory, "weights_of", lambda evidence: np.zeros(len(evidence)))
    short = run()
    assert long[0] < 0.98 * short[0]
    assert long[1] < 0.8 * short[1]
