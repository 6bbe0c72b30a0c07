# SPDX-License-Identifier: MIT
"""Rewards of an episode on programs whose best placement is known."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from hmd.emulate.preset import load
from hmd.emulate.recordings.replay import replayed
from hmd.learn.episodes import NEUTRAL, SIGNALS, Episode, EpisodeRun
from hmd.simulate.machine import first_touched
from hmd.simulate.pmu import PmuSettings
from hmd.simulate.simulation import SimulationSettings
from tests.unit.simulate.conftest import HOT_PAGES, PAGES, hot_set, stream_of

STILL = (-1.0, 0.0, 0.0)
EAGER = (0.0, -1.0, 1.0)
FAST_PAGES = PAGES // 4
PACE = SimulationSettings(tick_s=0.001, delay_s=0.0002, sampling=PmuSettings(29, free=True))


def hidden_hot_set() -> Episode:
    """Its hot set is where first touch leaves it on the slow node."""
    stream = stream_of(hot_set(100_000, PAGES - HOT_PAGES, 1))
    return Episode(stream, load("dram-pm"), FAST_PAGES, PACE)


def rewards(episode: Episode, place: Sequence[float]) -> tuple[list[float], float, float]:
    """Return the rewards of all ticks, and the runtimes by first touch and of the episode."""
    saved = []
    with closing(EpisodeRun(episode)) as run:
        while not run.done:
            saved.append(run.step(place))
        return saved, float(run.reference_s[-1]), run.runtime_s


def test_reward_without_moves_or_samples_is_zero() -> None:
    saved, reference_s, runtime_s = rewards(hidden_hot_set(), STILL)
    assert len(saved) > 10
    # A tick ends within a miss, so that its reward is exact to the time of one.
    assert saved == pytest.approx([0.0] * len(saved), abs=1e-6)
    assert sum(saved) == pytest.approx(0.0, abs=1e-9)
    assert runtime_s == pytest.approx(reference_s)


def test_reward_of_samples_is_their_cost() -> None:
    episode = hidden_hot_set()
    charged = replace(episode, settings=replace(PACE, sampling=PmuSettings(29)))
    saved, reference_s, runtime_s = rewards(charged, STILL)
    assert max(saved) <= 0
    # 100,000 misses at one sample per 29, of 250 ns each and the interrupts.
    assert sum(saved) == pytest.approx(-100_000 / 29 * 262e-9, rel=0.1)
    assert sum(saved) == pytest.approx(reference_s - runtime_s)


def test_reward_hot_set_promoted_is_time_that_it_saves() -> None:
    episode = hidden_hot_set()
    saved, reference_s, runtime_s = rewards(episode, NEUTRAL)
    assert sum(saved) == pytest.approx(reference_s - runtime_s)
    layout = first_touched(episode.stream, episode.fast_pages)
    layout[np.flatnonzero(layout)[:HOT_PAGES]] = False
    layout[-HOT_PAGES:] = True
    best_s = replayed(episode.stream, episode.preset, layout) * 1e-12
    assert 0.3 < sum(saved) / (reference_s - best_s) < 1


def test_reward_of_moves_that_help_nothing_is_negative() -> None:
    rng = np.random.default_rng(1)
    uniform = replace(hidden_hot_set(), stream=stream_of(rng.integers(0, PAGES, 100_000)))
    saved, _, _ = rewards(uniform, EAGER)
    assert sum(saved) < 0
    still, _, _ = rewards(uniform, STILL)
    assert sum(still) == pytest.approx(0.0, abs=1e-9)


def test_signals_follow_the_hot_set_to_the_fast_node() -> None:
    names, shares = list(SIGNALS), []
    with closing(EpisodeRun(hidden_hot_set())) as run:
        while not run.done:
            run.step(NEUTRAL)
            signals = run.signals
            assert np.isfinite(signals).all()
            shares.append(signals[names.index("fast_share")])
    assert min(shares[1:4]) < 0.3
    assert shares[-1] > 0.8
