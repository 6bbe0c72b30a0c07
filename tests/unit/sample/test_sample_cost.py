# SPDX-License-Identifier: MIT
"""The CPU time per sample, from ticks with a fixed part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmd.sample.periods import SampleCost

FIXED_S = 3e-3


@given(st.floats(1e-8, 1e-5), st.lists(st.integers(100, 5000), min_size=30, max_size=60))
def test_cost_of_varying_samples_near_the_slope(per_sample_s: float, counts: list[int]) -> None:
    cost = SampleCost()
    for count in [*counts, 200, 4000, 200, 4000] * 2:
        cost.add(count, FIXED_S + per_sample_s * count)
    mean_s = cost.per_unit_s
    assert 0.9 * per_sample_s <= mean_s <= 2 * per_sample_s + 0.1 * FIXED_S / 200


def test_cost_of_constant_samples_is_the_mean() -> None:
    cost = SampleCost()
    for _ in range(20):
        cost.add(1000, FIXED_S)
    assert cost.per_unit_s == pytest.approx(FIXED_S / 1000)


def test_cost_without_samples_stays() -> None:
    cost = SampleCost()
    cost.add(0, FIXED_S)
    assert cost.per_unit_s == 0
    cost.add(1000, FIXED_S)
    known = cost.per_unit_s
    assert known > 0


def test_cost_of_a_sample_is_never_nothing() -> None:
    cost = SampleCost()
    for count in (100, 4000) * 20:
        cost.add(count, FIXED_S)
    assert cost.per_unit_s > 0


def test_cost_of_rare_samples_keeps_the_bound_of_many() -> None:
    cost = SampleCost()
    cost.add(1000, FIXED_S)
    for _ in range(20):
        cost.add(1, FIXED_S)
    assert cost.per_unit_s < 2 * FIXED_S / 1000
