# SPDX-License-Identifier: MIT
"""Sample rows from DAMON regions: total accesses, mapped memory, and number of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hmd.linux.damon import DamonRegions
from hmd.linux.mappings import Mappings, parse_maps
from hmd.sample.damon_regions import MappedPieces, find_mapped, make_rows

PAGE = 4096


def regions(*those: tuple[int, int, int]) -> DamonRegions:
    """Return regions of (first page, pages, accesses)."""
    columns = np.array(those, np.uint64).reshape(len(those), 3)
    start = columns[:, 0] * PAGE
    return DamonRegions(start, start + columns[:, 1] * PAGE, columns[:, 2].astype(np.uint32))


def maps(*those: tuple[int, int], path: str = "") -> Mappings:
    """Return mappings of (first page, pages)."""
    lines = [f"{a * PAGE:x}-{(a + n) * PAGE:x} rw-p 00000000 00:00 0 {path}\n" for a, n in those]
    return parse_maps("".join(lines).encode())


def everywhere(addresses: np.ndarray) -> np.ndarray:
    return np.ones(len(addresses), np.bool_)


def counts(
    pieces: MappedPieces, intervals: float, most: int = 1 << 13, present: Any = everywhere
) -> dict[int, Any]:
    """Return the accesses of each page as the rows give them."""
    ((address, accesses),) = make_rows([pieces], [present], intervals, most, 0.5)
    pages, which = np.unique(address // np.uint64(PAGE), return_inverse=True)
    sums = np.bincount(which, weights=accesses, minlength=len(pages))
    return dict(zip(pages.tolist(), sums.tolist(), strict=True))


def test_region_accesses_are_shared_by_its_pages() -> None:
    pieces = find_mapped(regions((100, 4, 20), (200, 8, 5)), maps((0, 1000)), 20)
    assert counts(pieces, 40) == {
        **dict.fromkeys(range(100, 104), 40),
        **dict.fromkeys(range(200, 208), 10),
    }


@pytest.mark.parametrize("most", [10, 100, 1000])
def test_region_rows_are_bounded_and_stand_for_all_accesses(most: int) -> None:
    pieces = find_mapped(regions((0, 1000, 20), (5000, 3000, 2)), maps((0, 1 << 20)), 20)
    ((address, accesses),) = make_rows([pieces], [everywhere], 50, most, 0.3)
    assert 0.8 * most <= len(address) <= most
    assert int(accesses.sum()) == pytest.approx(50 * (1000 + 300), rel=1.5 / most)
    hot = int(accesses[address < 1000 * PAGE].sum())
    assert hot == pytest.approx(50 * 1000, rel=2.5 / most)


def test_region_rows_are_of_mapped_memory_only() -> None:
    """Of a region of 100 pages 10 are mapped: DAMON's accesses were found in those."""
    pieces = find_mapped(regions((0, 100, 2)), maps((20, 4), (90, 6)), 20)
    assert pieces.pages.tolist() == [4, 6]
    found = counts(pieces, 20)
    assert set(found) == {*range(20, 24), *range(90, 96)}
    assert sum(found.values()) == pytest.approx(20 * 100 * 0.1, abs=1)


def test_region_page_has_at_most_one_access_per_interval() -> None:
    pieces = find_mapped(regions((0, 100, 20)), maps((50, 1)), 20)
    assert counts(pieces, 20) == {50: 20}


def test_region_accesses_of_absent_pages_go_to_present_ones() -> None:
    pieces = find_mapped(regions((0, 64, 5), (100, 64, 5)), maps((0, 1000)), 20)

    def present(addresses: np.ndarray) -> np.ndarray:
        page = addresses // np.uint64(PAGE)
        return (page >= 100) | (page % np.uint64(2) == 0)

    found = counts(pieces, 40, present=present)
    assert {page for page in found if page < 100} == set(range(0, 64, 2))
    assert all(accesses == (20 if page < 100 else 10) for page, accesses in found.items())


def test_region_rows_skip_kernel_mappings() -> None:
    assert (
        find_mapped(regions((0, 10, 5)), maps((0, 10), path="[vdso]"), 20).accesses_per_interval
        == 0
    )


def test_region_over_many_mappings_is_split_among_them() -> None:
    pieces = find_mapped(
        regions((0, 10, 20), (10, 10, 10), (20, 10, 5)), maps((5, 3), (8, 14), (25, 100)), 20
    )
    assert (pieces.start // np.uint64(PAGE)).tolist() == [5, 8, 10, 20, 25]
    assert pieces.pages.tolist() == [3, 2, 10, 2, 5]
    assert pieces.region.tolist() == [0, 0, 1, 2, 2]


def test_region_rows_without_regions_are_empty() -> None:
    nothing = find_mapped(regions(), maps((0, 10)), 20)
    gap = find_mapped(regions((500, 10, 20)), maps((0, 10)), 20)
    found = make_rows([nothing, gap], [everywhere, everywhere], 50, 100, 0.0)
    assert [len(address) for address, _ in found] == [0, 0]
    assert make_rows([], [], 50, 100, 0.0) == []


def test_region_rows_are_shared_by_accesses_of_processes() -> None:
    busy = find_mapped(regions((0, 900, 20)), maps((0, 900)), 20)
    idle = find_mapped(regions((0, 900, 2)), maps((0, 900)), 20)
    (hot, _), (cold, _) = make_rows([busy, idle], [everywhere, everywhere], 50, 1000, 0.5)
    assert len(hot) / len(cold) == pytest.approx(10, rel=0.1)
