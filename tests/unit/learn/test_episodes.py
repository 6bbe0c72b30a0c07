# SPDX-License-Identifier: MIT
"""Episodes drawn from recorded programs."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from hmd.learn.episodes import Episode, draw_episode
from hmd.learn.settings import EpisodeSettings
from hmd.simulate.simulation import SimulationSettings
from tests.unit.simulate.conftest import PAGES, hot_set, stream_of

SETTINGS = EpisodeSettings(presets=("dram-pm", "dram-cxl"), misses_most=6000)

STREAMS = [stream_of(hot_set(10_000, first, first)) for first in (0, PAGES // 2)]


def drawn(random: np.random.Generator) -> Episode:
    return draw_episode(STREAMS, SETTINGS, SimulationSettings(), random)


def test_source_equal_seeds_equal_episodes() -> None:
    first, second, other = (
        [drawn(random) for _ in range(3)]
        for random in (np.random.default_rng(seed) for seed in (1, 1, 2))
    )
    for one, two in zip(first, second, strict=True):
        assert one.preset == two.preset
        assert one.settings == two.settings
        assert np.array_equal(one.stream.page, two.stream.page)
    assert [each.settings for each in first] != [each.settings for each in other]


def test_source_episodes_within_ranges_and_all_different() -> None:
    random = np.random.default_rng(3)
    found = [drawn(random) for _ in range(40)]
    assert len({each.settings.sampling for each in found}) == 40
    for each in found:
        assert 0 < len(each.stream) <= 6000
        assert 83 <= each.settings.sampling.period <= 996
        assert 0.04 < each.fast_pages / each.stream.user_pages < 0.51
    assert {each.preset.name for each in found} == {"dram-pm", "dram-cxl"}


def test_settings_range_that_ends_below_its_begin_refused() -> None:
    with pytest.raises(ValidationError, match="ends below its begin"):
        EpisodeSettings(fast_least=0.5, fast_most=0.1)
