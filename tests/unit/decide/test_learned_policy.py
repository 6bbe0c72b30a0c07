"""The learned policy: its features are scale-free, its predictions are priced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.rehearsal import Rehearsal, hot_blocks
from bench.rehearsed_memory import Tier
from hmd.decide.feature_kernel import FEATURES
from hmd.decide.learned_features import LearnedFeatures, PageFeatures
from hmd.decide.learned_weights import LearnedWeights
from hmd.decide.node_arrays import nodes_of
from hmd.decide.policies.learned import _ROWS_AT_ONCE, Learned, LearnedSettings
from hmd.decide.policies.none import NonePolicy
from hmd.units import PAGE_BYTES
from tests.unit.decide.test_learned_weights import HEADER

PAGES, FAST, HEADROOM = 8192, 2048, 16
HOT = 1536


def base_weights(path: Path) -> Path:
    """Weights of a network that predicts the base rate of every page."""
    widths = zip(HEADER.shape[:-1], HEADER.shape[1:], strict=True)
    layers = tuple((np.zeros((o, i), np.float32), np.zeros(o, np.float32)) for i, o in widths)
    ones = np.ones(len(FEATURES), np.float32)
    LearnedWeights(HEADER, 0 * ones, ones, layers).write(path)
    return path


def rehearsal(
    weights: npt.NDArray[np.float64], path: Path | None = None, samples: int = 20_000, **more: float
) -> Rehearsal:
    settings = LearnedSettings(0.0, HEADROOM * PAGE_BYTES, str(path) if path else None, **more)
    return watched(weights, Learned(settings), samples)


def watched(
    weights: npt.NDArray[np.float64], policy: Learned | NonePolicy, samples: int = 20_000
) -> Rehearsal:
    node = (np.arange(len(weights)) >= FAST).astype(np.int8)
    tiers = (Tier(FAST + HEADROOM), Tier(2 * PAGES))
    return Rehearsal(policy, tiers, weights, node, samples_per_tick=samples)


def features_of(run: Rehearsal, features: LearnedFeatures) -> PageFeatures:
    machine = run.machine
    pages = run.heat.view(machine.topology)
    return features.of(pages, machine, nodes_of(machine, 0.0, HEADROOM * PAGE_BYTES))


def test_learned_base_rate_predicted_hot_set_promoted(tmp_path: Path) -> None:
    run = rehearsal(hot_blocks(PAGES, HOT, 16, seed=3), base_weights(tmp_path / "base.npz"))
    for _ in range(12):
        run.tick()
    assert run.fast_share > 0.85


def test_learned_shipped_weights_follow_hot_set() -> None:
    run = rehearsal(hot_blocks(PAGES, HOT, 16, seed=3))
    before = run.fast_share
    for _ in range(12):
        run.tick()
    assert run.fast_share > before + 0.3


def test_learned_moves_cost_more_than_savings_none_made() -> None:
    run = rehearsal(hot_blocks(PAGES, HOT, 16, seed=3), move_ns=1e9)
    assert sum(run.tick().moved_pages for _ in range(8)) == 0


def test_learned_network_predicts_nothing_moves_nothing(tmp_path: Path) -> None:
    path = base_weights(tmp_path / "cold.npz")
    weights = LearnedWeights.read(path, FEATURES, HEADER.features_version)
    weights.layers[-1][1][0] = -8.0
    replace(weights).write(path)
    run = rehearsal(hot_blocks(PAGES, HOT, 16, seed=3), path, samples=400)
    assert sum(run.tick().moved_pages for _ in range(8)) == 0


def test_learned_predictions_in_parts_equal_network_on_all_features() -> None:
    from hmd.decide.learned_network import run_network

    run = rehearsal(hot_blocks(PAGES, HOT, 16, seed=3))
    for _ in range(3):
        run.tick()
    policy, machine = run.policy, run.machine
    assert isinstance(policy, Learned)
    pages = run.heat.view(machine.topology)
    nodes = nodes_of(machine, 0.0, HEADROOM * PAGE_BYTES)
    features = policy._features.of(pages, machine, nodes)
    octaves = run_network(features.columns, *policy.weights.packed())
    expected = features.base * np.exp2(np.clip(octaves, -8, 8))
    assert len(pages) > 2 * _ROWS_AT_ONCE
    assert np.allclose(policy.predicted(pages, machine, nodes), expected, rtol=1e-4)


def test_features_finite_and_independent_of_scale() -> None:
    found = []
    for samples in (20_000, 80_000):
        run = watched(hot_blocks(PAGES, HOT, 16, seed=3), NonePolicy(), samples)
        features = LearnedFeatures()
        for _ in range(10):
            run.tick()
            found_now = features_of(run, features)
        assert np.isfinite(found_now.columns).all()
        assert (found_now.base > 0).all()
        found.append(dict(zip(FEATURES, found_now.columns, strict=True)))
    hot = hot_blocks(PAGES, HOT, 16, seed=3)
    hot_rows = hot > np.median(hot)
    for name in ("rate", "samples_4", "samples_16", "phase_samples"):
        few, many = (one[name] for one in found)
        assert few[hot_rows].mean() > few[~hot_rows].mean() + 1
        assert abs(few[hot_rows].mean() - many[hot_rows].mean()) < 0.3
    assert found[0]["support"].mean() < found[1]["support"].mean()


def test_features_asked_twice_in_a_tick_are_equal() -> None:
    run, features = watched(hot_blocks(PAGES, HOT, 16, seed=3), NonePolicy()), LearnedFeatures()
    run.tick()
    first = features_of(run, features)
    again = features_of(run, features)
    assert np.array_equal(first.columns, again.columns)


def test_features_phase_returns_its_pages_are_known_at_once() -> None:
    one, two = (hot_blocks(PAGES, HOT, 16, seed=seed) for seed in (3, 4))
    run, features = watched(one, NonePolicy()), LearnedFeatures()
    for number in range(40):
        run.weights = (one, two)[number // 10 % 2]
        run.tick()
        features_of(run, features)
    run.weights = one
    run.tick()
    columns = dict(zip(FEATURES, features_of(run, features).columns, strict=True))
    only_one = (one > np.median(one)) & (two <= np.median(two))
    only_two = (two > np.median(two)) & (one <= np.median(one))
    # What the average of 16 ticks has not seen yet, the memory of the phase has.
    known = columns["phase_samples"][only_one].mean() - columns["phase_samples"][only_two].mean()
    seen = columns["samples_16"][only_one].mean() - columns["samples_16"][only_two].mean()
    assert known > seen + 1
    assert columns["phase_ticks"].max() > 3


def test_features_idle_page_overdue_grows() -> None:
    weights = np.ones(PAGES)
    run, features = watched(weights, NonePolicy()), LearnedFeatures()
    for _ in range(6):
        run.tick()
        features_of(run, features)
    run.weights = np.where(np.arange(PAGES) < PAGES // 2, 1.0, 0.0)
    for _ in range(6):
        run.tick()
        columns = dict(zip(FEATURES, features_of(run, features).columns, strict=True))
    half = PAGES // 2
    assert columns["overdue"][half:].mean() > columns["overdue"][:half].mean() + 1
    assert columns["trend"][half:].mean() < columns["trend"][:half].mean() - 1
