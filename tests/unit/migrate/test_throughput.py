"""What is worth planning for follows the speed at which pages moved."""

from __future__ import annotations

from math import inf

import pytest

from hmd.migrate.budget import UNLIMITED_BYTES
from hmd.migrate.throughput import Throughput
from hmd.units import HUGE_PAGE_BYTES

MIB = 1 << 20


def test_without_a_plan_or_a_limit_nothing_is_known() -> None:
    assert Throughput(1.0).bytes == UNLIMITED_BYTES
    unlimited = Throughput(inf)
    unlimited.observe(100 * MIB, 1.0)
    assert unlimited.bytes == UNLIMITED_BYTES


def test_it_is_what_the_last_plans_speed_moves_within_the_limit() -> None:
    reach = Throughput(0.5)
    reach.observe(100 * MIB, 1.0)
    assert reach.bytes == 50 * MIB
    reach.observe(300 * MIB, 1.0)
    assert reach.bytes == 100 * MIB


@pytest.mark.parametrize(("moved_bytes", "seconds"), [(4096, 1.0), (0, 1.0), (100 * MIB, 0.0)])
def test_a_plan_that_tells_no_speed_is_not_counted(moved_bytes: int, seconds: float) -> None:
    reach = Throughput(1.0)
    reach.observe(moved_bytes, seconds)
    assert reach.bytes == UNLIMITED_BYTES


def test_a_huge_page_is_always_within_reach() -> None:
    reach = Throughput(0.001)
    reach.observe(MIB, 10.0)
    assert reach.bytes == HUGE_PAGE_BYTES
