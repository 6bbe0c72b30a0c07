# SPDX-License-Identifier: MIT
"""Places of knobs."""

from __future__ import annotations

import pytest

from hmd.learn.episodes import NEUTRAL, Knobs
from hmd.policy.builtin.benefit import BenefitSettings


def test_knobs_neutral_leave_the_rule_as_it_is() -> None:
    assert Knobs.at(NEUTRAL) == Knobs(1.0, BenefitSettings().confidence, 1.0)


def test_knobs_at_the_ends_span_their_ranges() -> None:
    assert Knobs.at((-1, -1, -1)) == Knobs(0.0, 0.0, 1 / 16)
    assert Knobs.at((1, 1, 1)) == Knobs(1.0, 2 * BenefitSettings().confidence, 16.0)


def test_knobs_beyond_their_range_are_at_its_end() -> None:
    assert Knobs.at((-7, 3, 1.5)) == Knobs.at((-1, 1, 1))


def test_knobs_volume_doubles_by_quarters() -> None:
    volumes = [Knobs.at((place, 0, 0)).volume for place in (-0.75, -0.5, -0.25, 0.0, 1.0)]
    assert volumes == pytest.approx([1 / 8, 1 / 4, 1 / 2, 1, 1])
