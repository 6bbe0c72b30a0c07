import pytest

from hmd.emulate.memory_layout import node_ranges
from hmd.units import GIB

MIB = 1 << 20


def test_small_machines_are_contiguous_from_zero() -> None:
    assert node_ranges([GIB, GIB]) == [(0, GIB), (GIB, 2 * GIB)]


def test_up_to_three_and_a_half_gigabytes_lie_below_the_hole() -> None:
    assert node_ranges([3 * GIB, 512 * MIB])[1] == (3 * GIB, 3 * GIB + 512 * MIB)


def test_above_that_memory_goes_on_at_four_gigabytes() -> None:
    assert node_ranges([3 * GIB, GIB]) == [(0, 3 * GIB), (4 * GIB, 5 * GIB)]


def test_a_node_that_spans_the_hole_has_it_inside() -> None:
    assert node_ranges([2 * GIB, 2 * GIB, GIB]) == [
        (0, 2 * GIB),
        (2 * GIB, 5 * GIB),
        (5 * GIB, 6 * GIB),
    ]


@pytest.mark.parametrize("sizes", [[GIB] * 8, [5 * GIB, 64 * MIB], [64 * MIB, 9 * GIB]])
def test_ranges_ascend_and_hold_what_was_asked(sizes: list[int]) -> None:
    end = 0
    for size, (start, stop) in zip(sizes, node_ranges(sizes), strict=True):
        assert start >= end
        assert stop - start in (size, size + GIB)  # the hole is one gigabyte
        end = stop
