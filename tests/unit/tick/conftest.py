# SPDX-License-Identifier: MIT
"""The program over which tests run ticks."""

from __future__ import annotations

import numpy as np
import pytest

from bench.synthetic.synthetic_run import SyntheticRun, Tier, hot_blocks
from hmd.policy.builtin.histogram import Histogram, HistogramSettings

PAGES, FAST = 2048, 600


def synthetic_run() -> SyntheticRun:
    """Hot pages on the slow node, and a fast node that is empty."""
    return SyntheticRun(
        Histogram(HistogramSettings(headroom=0.0, headroom_min=0)),
        (Tier(FAST), Tier(2 * PAGES)),
        hot_blocks(PAGES, 512, 16, seed=1),
        np.ones(PAGES, np.int8),
        samples_per_tick=20_000,
    )


@pytest.fixture
def synthetic() -> SyntheticRun:
    return synthetic_run()
