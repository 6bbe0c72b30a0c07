"""Training of the network that sets the knobs, with stable-baselines3."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hmd.learn.environment.episode_settings import EpisodeSettings
from hmd.learn.environment.episodes import EpisodeSource
from hmd.learn.environment.knob_signals import SIGNALS
from hmd.simulate.simulation import SimulationSettings
from tests.unit.simulate.conftest import HOT_PAGES, PAGES, hot_set, stream_of

pytest.importorskip("stable_baselines3", reason="no stable-baselines3")

SETTINGS = EpisodeSettings(
    presets=("dram-pm",), period_least=29, period_most=58, misses_most=10_000
)
PACE = SimulationSettings(tick_s=0.001, delay_s=0.0002)


def source() -> EpisodeSource:
    stream = stream_of(hot_set(10_000, PAGES - HOT_PAGES, 1))
    return EpisodeSource([stream], SETTINGS, PACE)


def test_network_in_numpy_equals_the_policy_that_was_trained() -> None:
    from hmd.learn.knob_designs.ppo_learner import PpoLearner

    learner = PpoLearner(source(), seed=1, workers=1)
    network = learner.advance(256)
    signals = np.random.default_rng(1).normal(0, 0.5, len(SIGNALS)).astype(np.float32)
    action, _ = learner._model.predict(signals, deterministic=True)
    assert network(signals) == pytest.approx(action.tolist(), abs=1e-5)
    learner.close()


def test_learner_restored_continues_from_the_same_network(tmp_path: Path) -> None:
    from hmd.learn.knob_designs.ppo_learner import PpoLearner, network_of

    first, second = (PpoLearner(source(), seed, workers=1) for seed in (1, 2))
    network = first.advance(256)
    first.save(tmp_path)
    signals = np.ones(len(SIGNALS), np.float32)
    assert network_of(second._model.policy)(signals) != network(signals)
    second.restore(tmp_path)
    assert network_of(second._model.policy)(signals) == network(signals)
    assert second.ticks == first.ticks == 256
    assert len(second.advance(300).layers) == 3
    assert second.ticks == 512
    first.close()
    second.close()
