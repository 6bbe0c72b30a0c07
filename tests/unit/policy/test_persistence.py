# SPDX-License-Identifier: MIT
"""How long heat lasts, over synthetic programs with known hot sets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from bench.synthetic.synthetic_run import SyntheticRun, Tier, hot_blocks
from hmd.policy.builtin.none import NonePolicy
from hmd.policy.horizon import AGES, Persistence

PAGES = 8192
Weights = npt.NDArray[np.float64]


def stable(tick: int) -> Weights:
    return hot_blocks(PAGES, 1024, 16, seed=1)


def uniform(tick: int) -> Weights:
    return np.ones(PAGES)


def moving(tick: int) -> Weights:
    """Other blocks are hot after every fourth tick."""
    return hot_blocks(PAGES, 1024, 16, seed=tick // 4)


def read_once(tick: int) -> Weights:
    """A scan that reads a fortieth of the memory in each tick."""
    weights = np.full(PAGES, 1e-9)
    weights[np.arange(PAGES // 40) + tick * (PAGES // 40) % PAGES] = 1.0
    return weights


def horizon(weights: Callable[[int], Weights], ticks: int, samples: int = 4000) -> float:
    """Return the horizon after so many ticks in which the pages of the slow node compete."""
    run = SyntheticRun(
        NonePolicy(),
        (Tier(PAGES), Tier(2 * PAGES)),
        weights(0),
        np.ones(PAGES, np.int8),
        samples_per_tick=samples,
    )
    persistence = Persistence()
    found = 0.0
    for tick in range(ticks):
        run.weights = weights(tick)
        run.tick()
        view = run.heat.view(run.machine.topology)
        found = float(persistence.horizons(view)[0])
        persistence.follow_hottest(view, np.flatnonzero(view.tier == 1), view.rate)
    return found


def test_horizon_of_stable_heat_is_as_long_as_it_was_seen() -> None:
    assert 7 < horizon(stable, 8) <= 10
    assert horizon(stable, 40) > 0.8 * 40


def test_horizon_without_contrast_is_not_shortened_by_noise() -> None:
    assert horizon(uniform, 40) > 0.7 * 40


def test_horizon_of_moving_heat_is_near_its_period() -> None:
    assert 0.5 < horizon(moving, 60) < 8


def test_horizon_of_pages_read_once_is_below_a_tick_or_two() -> None:
    assert horizon(read_once, 35) < 2


def test_horizon_without_samples_is_bounded_by_the_time_seen() -> None:
    assert horizon(stable, AGES // 2, samples=0) <= AGES // 2 + 2
