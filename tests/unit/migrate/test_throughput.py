# SPDX-License-Identifier: MIT
"""The size of a plan follows the throughput of earlier moves."""

from __future__ import annotations

from math import inf

import pytest

from hmd.base.units import HUGE_PAGE_BYTES
from hmd.migrate.move_budget import UNLIMITED_BYTES, Throughput

MIB = 1 << 20


def test_throughput_without_plan_or_limit_unlimited() -> None:
    assert Throughput(1.0).bytes == UNLIMITED_BYTES
    unlimited = Throughput(inf)
    unlimited.observe(100 * MIB, 1.0)
    assert unlimited.bytes == UNLIMITED_BYTES


def test_throughput_bytes_are_speed_times_limit() -> None:
    reach = Throughput(0.5)
    reach.observe(100 * MIB, 1.0)
    assert reach.bytes == 50 * MIB
    reach.observe(300 * MIB, 1.0)
    assert reach.bytes == 100 * MIB


@pytest.mark.parametrize(("moved_bytes", "seconds"), [(4096, 1.0), (0, 1.0), (100 * MIB, 0.0)])
def test_throughput_plan_without_measurable_speed_ignored(moved_bytes: int, seconds: float) -> None:
    reach = Throughput(1.0)
    reach.observe(moved_bytes, seconds)
    assert reach.bytes == UNLIMITED_BYTES


def test_throughput_slow_moves_at_least_one_huge_page() -> None:
    reach = Throughput(0.001)
    reach.observe(MIB, 10.0)
    assert reach.bytes == HUGE_PAGE_BYTES
