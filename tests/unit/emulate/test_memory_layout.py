# SPDX-License-Identifier: MIT
import pytest

from hmd.base.units import GIB
from hmd.emulate.vm.qemu import node_ranges

MIB = 1 << 20


def test_node_ranges_small_machine_contiguous_from_zero() -> None:
    assert node_ranges([GIB, GIB]) == [(0, GIB), (GIB, 2 * GIB)]


def test_node_ranges_up_to_3_5_gib_below_hole() -> None:
    assert node_ranges([3 * GIB, 512 * MIB])[1] == (3 * GIB, 3 * GIB + 512 * MIB)


def test_node_ranges_above_3_5_gib_continue_at_4_gib() -> None:
    assert node_ranges([3 * GIB, GIB]) == [(0, 3 * GIB), (4 * GIB, 5 * GIB)]


def test_node_ranges_node_across_hole_contains_it() -> None:
    assert node_ranges([2 * GIB, 2 * GIB, GIB]) == [
        (0, 2 * GIB),
        (2 * GIB, 5 * GIB),
        (5 * GIB, 6 * GIB),
    ]


@pytest.mark.parametrize("sizes", [[GIB] * 8, [5 * GIB, 64 * MIB], [64 * MIB, 9 * GIB]])
def test_node_ranges_ascending_and_of_requested_size(sizes: list[int]) -> None:
    end = 0
    for size, (start, stop) in zip(sizes, node_ranges(sizes), strict=True):
        assert start >= end
        assert stop - start in (size, size + GIB)  # the hole is one gigabyte
        end = stop
