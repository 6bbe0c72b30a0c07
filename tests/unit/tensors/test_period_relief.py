# SPDX-License-Identifier: MIT
"""The relief of inactive periods: the sums over all kernels and each period's own agree."""

from __future__ import annotations

import numpy as np
import pytest

from bench.tensors.publications.published_g10 import PublishedReliefOrder
from hmd.tensors.planners.g10 import PeriodColumns, ReliefOrder

KERNELS, PERIODS, CAPACITY = 200, 60, 1000.0


@pytest.mark.parametrize("seed", range(4))
def test_relief_order_of_long_steps_is_that_of_each_period_alone(seed: int) -> None:
    random = np.random.default_rng(seed)
    ends = np.sort(random.integers(0, KERNELS, (PERIODS, 2)), axis=1)
    looped = random.random(PERIODS) < 0.2
    start, end = np.where(looped, ends[:, 1], ends[:, 0]), np.where(looped, *ends.T)
    periods = PeriodColumns(
        start=start,
        end=np.where(looped, end, ends[:, 1]),
        looped=looped,
        size=random.uniform(1, 50, PERIODS),
        duration_us=random.uniform(1, 1000, PERIODS),
    )
    start_us = np.concatenate([[0.0], np.cumsum(random.uniform(1, 20, KERNELS))])
    resident = random.uniform(600, 1400, KERNELS)
    resident[0] = 500.0  # no period has a negative relief
    room = np.full(KERNELS, 30.0)
    flash = room, random.uniform(0, 30, (2, KERNELS)), random.random((2, KERNELS)) < 0.2
    taken = []
    for order in (PublishedReliefOrder(periods, start_us), ReliefOrder(periods, start_us)):
        taken.append([order.take(resident, flash, CAPACITY) for _ in range(20)])
    assert taken[0] == taken[1]
    assert len(set(taken[0])) == 20
