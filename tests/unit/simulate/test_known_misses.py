# SPDX-License-Identifier: MIT
"""Bounds: policies that know a program's misses, compared with rules and static placements."""

from __future__ import annotations

import numpy as np
import pytest

from bench.known_misses import CLAIRVOYANT, EXACT_PAST, Bound, bounds
from hmd.emulate.preset import Preset
from hmd.emulate.recordings.misses import MissStream
from hmd.learn.rows import MissValues
from hmd.policy import registry
from hmd.simulate.pmu import PmuSettings
from hmd.simulate.simulation import SimulationSettings, baselines, simulate
from tests.unit.simulate.conftest import HOT_PAGES, PAGES, hot_set, stream_of

FAST_PAGES = HOT_PAGES + 64
SETTINGS = SimulationSettings(tick_s=0.004, delay_s=0.0005, sampling=PmuSettings(period=23))


@pytest.fixture(scope="module")
def moving_bounds(moving: MissStream, preset: Preset) -> dict[str, Bound]:
    return bounds(moving, preset, FAST_PAGES, SETTINGS)


def test_bounds_moving_hot_set_future_beats_past_and_rule(
    moving: MissStream, preset: Preset, moving_bounds: dict[str, Bound]
) -> None:
    rule = simulate(moving, preset, FAST_PAGES, registry.create("histogram"), SETTINGS)
    future, past = (moving_bounds[name].run.runtime_s for name in (CLAIRVOYANT, EXACT_PAST))
    assert future < past < rule.runtime_s


def test_bounds_moving_hot_set_beats_static_oracle(
    moving: MissStream, preset: Preset, moving_bounds: dict[str, Bound]
) -> None:
    fixed = baselines(moving, preset, FAST_PAGES)
    assert fixed["all fast"] < moving_bounds[CLAIRVOYANT].run.runtime_s < fixed["oracle"]


def test_bounds_hot_set_that_flips_move_nothing_at_worst(preset: Preset) -> None:
    # Each hot set lasts for less time than its pages take to move.
    parts = [hot_set(2_000, PAGES // 3 * (n % 3), n) for n in range(40)]
    stream = stream_of(np.concatenate(parts))
    touch = baselines(stream, preset, FAST_PAGES)["first touch"]
    for bound in bounds(stream, preset, FAST_PAGES, SETTINGS).values():
        assert bound.run.runtime_s <= touch * (1 + 1e-9)


def test_miss_values_all_rows_sum_to_saving(settled: MissStream, preset: Preset) -> None:
    fixed = baselines(settled, preset, FAST_PAGES)
    worth = MissValues(settled, preset).between(0, len(settled))
    assert worth.sum() == pytest.approx(fixed["all slow"] - fixed["all fast"], rel=1e-6)
    assert worth[-HOT_PAGES:].sum() > 0.85 * worth.sum()


def test_miss_values_rows_rounded_down_to_slots(settled: MissStream, preset: Preset) -> None:
    values = MissValues(settled, preset)
    assert values.between(5, 6).sum() == 0
    half = len(settled) // 2
    both = values.between(0, half) + values.between(half, len(settled))
    assert both == pytest.approx(values.between(0, len(settled)))
