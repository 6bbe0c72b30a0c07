# SPDX-License-Identifier: MIT
"""The learned policy: its features are scale-free, its predictions are priced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.synthetic.synthetic_run import SyntheticRun, Tier, hot_blocks
from hmd.base.units import PAGE_BYTES
from hmd.policy.builtin.benefit import Benefit, BenefitSettings
from hmd.policy.builtin.learned import _ROWS_AT_ONCE, Learned, LearnedSettings
from hmd.policy.builtin.none import NonePolicy
from hmd.policy.learned.features import FEATURES, LearnedFeatures
from hmd.policy.learned.network import LearnedWeights
from hmd.policy.learned.trust import MAX_OCTAVES
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


def features_of(run: SyntheticRun, features: LearnedFeatures) -> npt.NDArray[np.float32]:
    return features.rows(run.heat.view(run.machine.topology)).columns()


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
    weights = LearnedWeights.read(path, FEATURES, HEADER.features_version)
    weights.layers[-1][1][0] = -3.0
    replace(weights).write(path)
    run = synthetic(hot_blocks(PAGES, HOT, 16, seed=3), path)
    run.tick()
    pages = run.heat.view(run.machine.topology)
    assert isinstance(run.policy, Learned)
    assert np.allclose(run.policy.predicted(pages), pages.rate, rtol=1e-5)


def test_learned_predictions_in_parts_equal_network_on_all_features() -> None:
    from hmd.policy.learned.network import run_network

    run = synthetic(hot_blocks(PAGES, HOT, 16, seed=3))
    run.tick()
    policy = run.policy
    assert isinstance(policy, Learned)
    pages = run.heat.view(run.machine.topology)
    columns = policy._features.rows(pages).columns()
    octaves = run_network(columns, *policy.weights.packed())
    assert np.ptp(octaves) > 1
    factor = policy._trust.factor(run.heat.processes[0])
    expected = pages.rate * np.exp2(factor * np.clip(octaves, -MAX_OCTAVES, MAX_OCTAVES))
    expected *= (pages.rate * pages.size).sum() / (expected * pages.size).sum()
    assert len(pages) > 2 * _ROWS_AT_ONCE
    assert np.allclose(policy.predicted(pages), expected, rtol=1e-3)


def test_features_finite_and_independent_of_scale() -> None:
    found = []
    for samples in (20_000, 80_000):
        run = watched(hot_blocks(PAGES, HOT, 16, seed=3), NonePolicy(), samples)
        features = LearnedFeatures()
        for _ in range(10):
            run.tick()
            found_now = features_of(run, features)
        assert np.isfinite(found_now).all()
        found.append(dict(zip(FEATURES, found_now, strict=True)))
    hot = hot_blocks(PAGES, HOT, 16, seed=3)
    hot_rows = hot > np.median(hot)
    for name in ("rate", "samples_4", "samples_16", "block_now", "block_past"):
        few, many = (one[name] for one in found)
        assert few[hot_rows].mean() > few[~hot_rows].mean() + 1
        assert abs(few[hot_rows].mean() - many[hot_rows].mean()) < 0.3
    assert found[0]["support"].mean() < found[1]["support"].mean()


def test_features_asked_twice_in_a_tick_are_equal() -> None:
    run, features = watched(hot_blocks(PAGES, HOT, 16, seed=3), NonePolicy()), LearnedFeatures()
    run.tick()
    first = features_of(run, features)
    again = features_of(run, features)
    assert np.array_equal(first, again)


def test_features_phase_ends_pages_of_the_next_ones_are_known_before() -> None:
    phases = [hot_blocks(PAGES, HOT, 16, seed=seed) for seed in (3, 4, 5)]
    run, features = watched(phases[0], NonePolicy()), LearnedFeatures()
    for number in range(60):
        run.weights = phases[number // 4 % 3]
        run.tick()
        columns = dict(zip(FEATURES, features_of(run, features), strict=True))
    hot = [weights > np.median(weights) for weights in phases]
    # The last tick of the third phase: its pages are hot now, those of the others come next.
    third, others = hot[2] & ~hot[0] & ~hot[1], hot[0] & hot[1] & ~hot[2]
    assert columns["block_now"][third].mean() > columns["block_now"][others].mean() + 1
    assert columns["block_next"][others].mean() > columns["block_next"][third].mean() + 0.5
    assert columns["similarity"].max() > 0.8


def test_features_memory_grows_beyond_parts_blocks_grow() -> None:
    run, features = watched(np.ones(PAGES), NonePolicy()), LearnedFeatures()
    run.tick()
    features_of(run, features)
    assert features._shift == 16
    large = watched(np.ones(5 * PAGES), NonePolicy())
    large.tick()
    again = LearnedFeatures()
    features_of(large, again)
    assert again._shift == 17


def test_features_idle_page_gap_stays_and_idle_grows() -> None:
    run, features = watched(np.ones(PAGES), NonePolicy()), LearnedFeatures()
    for _ in range(6):
        run.tick()
        features_of(run, features)
    run.weights = np.where(np.arange(PAGES) < PAGES // 2, 1.0, 0.0)
    for _ in range(6):
        run.tick()
        columns = dict(zip(FEATURES, features_of(run, features), strict=True))
    half = PAGES // 2
    assert columns["idle"][half:].mean() > columns["idle"][:half].mean() + 1
    assert columns["samples_4"][half:].mean() < columns["samples_4"][:half].mean() - 1
