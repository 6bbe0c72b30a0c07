# SPDX-License-Identifier: MIT
"""The learned policy: its features are scale-free, its predictions are priced."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from bench.synthetic.synthetic_run import SyntheticRun, Tier, hot_blocks
from hmd.base.units import PAGE_BYTES
from hmd.policy.builtin.benefit import Benefit, BenefitSettings
from hmd.policy.builtin.learned import ANSWER_SHARE, Learned, LearnedSettings
from hmd.policy.builtin.none import NonePolicy
from hmd.policy.learned.network import FEATURES, MAX_OCTAVES, LearnedWeights, feature_columns
from tests.unit.policy.test_learned_weights import HEADER

PAGES, FAST, HEADROOM = 8192, 2048, 16
HOT = 1536
KEPT = {"headroom": 0.0, "headroom_min": HEADROOM * PAGE_BYTES}


def base_weights(path: Path) -> Path:
    """Weights of a network that predicts the base rate of every page."""
    widths = zip(HEADER.shape[:-1], HEADER.shape[1:], strict=True)
    layers = tuple((np.zeros((o, i), np.float32), np.zeros(o, np.float32)) for i, o in widths)
    ones = np.ones(len(FEATURES), np.float32)
    LearnedWeights(HEADER, 0 * ones, ones, layers).write(path)
    return path


def synthetic(
    weights: npt.NDArray[np.float64], path: Path | None = None, samples: int = 20_000, **more: float
) -> SyntheticRun:
    settings = LearnedSettings.model_validate(
        {**KEPT, "weights": str(path) if path else None, **more}
    )
    return watched(weights, Learned(settings), samples)


def watched(
    weights: npt.NDArray[np.float64], policy: Benefit | Learned | NonePolicy, samples: int = 20_000
) -> SyntheticRun:
    node = (np.arange(len(weights)) >= FAST).astype(np.int8)
    tiers = (Tier(FAST + HEADROOM), Tier(2 * PAGES))
    return SyntheticRun(policy, tiers, weights, node, samples_per_tick=samples)


def features_of(run: SyntheticRun) -> dict[str, npt.NDArray[np.float32]]:
    pages = run.heat.view(run.machine.topology)
    return dict(zip(FEATURES, feature_columns(pages, pages.rate), strict=True))


def test_learned_base_rate_predicted_hot_set_promoted(tmp_path: Path) -> None:
    run = synthetic(hot_blocks(PAGES, HOT, 16, seed=3), base_weights(tmp_path / "base.npz"))
    for _ in range(12):
        run.tick()
    assert run.fast_share > 0.85


def test_learned_shipped_weights_follow_hot_set() -> None:
    run = synthetic(hot_blocks(PAGES, HOT, 16, seed=3))
    before = run.fast_share
    for _ in range(12):
        run.tick()
    assert run.fast_share > before + 0.3


def test_learned_moves_cost_more_than_savings_none_made() -> None:
    run = synthetic(hot_blocks(PAGES, HOT, 16, seed=3), move_ns=1e9)
    assert sum(run.tick().moved_pages for _ in range(8)) == 0


def test_learned_network_answers_zero_moves_as_benefit(tmp_path: Path) -> None:
    weights = hot_blocks(PAGES, HOT, 16, seed=3)
    zero = base_weights(tmp_path / "zero.npz")
    policies = (
        Learned(LearnedSettings.model_validate({**KEPT, "weights": str(zero)})),
        Benefit(BenefitSettings.model_validate(KEPT)),
    )
    found = []
    for policy in policies:
        run = watched(weights, policy, samples=2000)
        found.append([run.tick() for _ in range(10)])
        run.weights = hot_blocks(PAGES, HOT, 16, seed=4)
        found[-1] += [run.tick() for _ in range(10)]
    assert sum(tick.moved_pages for tick in found[0]) > HOT
    assert found[0] == found[1]


def test_learned_answer_for_all_pages_alike_changes_no_rate(tmp_path: Path) -> None:
    path = base_weights(tmp_path / "cold.npz")
    weights = LearnedWeights.read(path)
    weights.layers[-1][1][0] = -1.5
    weights.write(path)
    run = synthetic(hot_blocks(PAGES, HOT, 16, seed=3), path)
    run.tick()
    pages = run.heat.view(run.machine.topology)
    assert isinstance(run.policy, Learned)
    assert np.allclose(run.policy.predict(pages, pages.rate), pages.rate, rtol=1e-5)


def test_learned_rates_keep_their_sum_and_stay_within_the_bound() -> None:
    run = synthetic(hot_blocks(PAGES, HOT, 16, seed=3))
    run.tick()
    policy, pages = run.policy, run.heat.view(run.machine.topology)
    assert isinstance(policy, Learned)
    near = policy.predict(pages, pages.rate)
    factor = near / pages.rate
    assert np.ptp(np.log2(factor)) > 0.05
    assert factor.max() / factor.min() <= 2 ** (2 * MAX_OCTAVES * ANSWER_SHARE) * 1.001
    assert (near * pages.size).sum() == pytest.approx((pages.rate * pages.size).sum(), rel=1e-4)


def test_learned_correction_fades_beyond_the_ticks_that_it_predicts() -> None:
    run = synthetic(hot_blocks(PAGES, HOT, 16, seed=3))
    run.tick()
    policy, pages = run.policy, run.heat.view(run.machine.topology)
    assert isinstance(policy, Learned)
    near, ticks = policy.predict(pages, pages.rate), policy.weights.header.horizon_ticks
    for horizon, part in ((ticks / 2, 1.0), (4.0 * ticks, 0.25)):
        corrected = policy.expected_rates(pages, pages.rate, np.full(1, horizon))
        assert np.allclose(corrected, pages.rate + part * (near - pages.rate), rtol=1e-4)


def test_features_finite_and_independent_of_scale() -> None:
    found = []
    for samples in (20_000, 80_000):
        run = watched(hot_blocks(PAGES, HOT, 16, seed=3), NonePolicy(), samples)
        for _ in range(10):
            run.tick()
        found_now = features_of(run)
        assert all(np.isfinite(column).all() for column in found_now.values())
        found.append(found_now)
    hot = hot_blocks(PAGES, HOT, 16, seed=3)
    hot_rows = hot > np.median(hot)
    few, many = (one["rate"] for one in found)
    assert few[hot_rows].mean() > few[~hot_rows].mean() + 1
    assert abs(few[hot_rows].mean() - many[hot_rows].mean()) < 0.3
    assert found[0]["support"].mean() < found[1]["support"].mean()


def test_features_rate_is_over_the_mean_page_of_the_process() -> None:
    run = watched(np.ones(PAGES), NonePolicy())
    run.tick()
    pages = run.heat.view(run.machine.topology)
    rate = np.where(np.arange(PAGES) < PAGES // 2, 3.0, 0.0).astype(np.float32)
    column = feature_columns(pages, rate)[0]
    assert column[: PAGES // 2] == pytest.approx(np.log2(2.1), abs=1e-4)
    assert column[PAGES // 2 :] == pytest.approx(np.log2(0.1), abs=1e-4)


def test_features_before_any_sample_are_finite() -> None:
    run = watched(np.ones(PAGES), NonePolicy(), samples=0)
    run.tick()
    assert all(np.isfinite(column).all() for column in features_of(run).values())
