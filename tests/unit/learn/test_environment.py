# SPDX-License-Identifier: MIT
"""The environment against gymnasium's own checker, alone and as a vector of environments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hmd.learn.episodes import SIGNALS
from hmd.learn.settings import EpisodeSettings
from hmd.simulate.simulation import SimulationSettings
from tests.unit.simulate.conftest import HOT_PAGES, PAGES, hot_set, stream_of

gymnasium = pytest.importorskip("gymnasium", reason="no gymnasium")

SETTINGS = EpisodeSettings(period_least=29, period_most=58, misses_most=20_000)
PACE = SimulationSettings(tick_s=0.001, delay_s=0.0002)


def made() -> Any:
    from hmd.learn.environment import TieringEnv

    firsts = (PAGES - HOT_PAGES, PAGES // 2)
    streams = [stream_of(hot_set(20_000, first, first)) for first in firsts]
    return TieringEnv(streams, SETTINGS, PACE)


def test_env_passes_gymnasiums_checker() -> None:
    from gymnasium.utils.env_checker import check_env

    env = made()
    # The checker warns of a class that gymnasium.make did not wrap, and of other matters of taste.
    check_env(env, skip_render_check=True)
    env.close()


def test_env_episode_rewards_are_the_seconds_saved() -> None:
    env = made()
    env.reset(seed=4)
    rewards, ended = [], False
    while not ended:
        signals, reward, ended, truncated, found = env.step(np.zeros(3, np.float32))
        assert not truncated
        assert env.observation_space.contains(signals)
        assert found["saved_s"] == reward
        rewards.append(reward)
    env.close()
    assert len(rewards) > 2
    assert len(set(rewards)) > 1


def test_env_step_before_reset_refused() -> None:
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        made().step(np.zeros(3, np.float32))


def test_envs_in_a_vector_equal_single_ones() -> None:
    vector = gymnasium.vector.SyncVectorEnv([made, made])
    vector.reset(seed=[1, 2])
    action = np.array([[0, 0, 0], [-1, 0, 0]], np.float32)
    signals, rewards, *_ = vector.step(action)
    assert signals.shape == (2, len(SIGNALS))
    for number, seed in enumerate((1, 2)):
        single = made()
        single.reset(seed=seed)
        alone, reward, *_ = single.step(action[number])
        assert np.array_equal(alone, signals[number])
        assert reward == pytest.approx(rewards[number])
        single.close()
    vector.close()
