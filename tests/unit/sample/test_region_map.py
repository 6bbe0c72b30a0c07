# SPDX-License-Identifier: MIT
"""DAMON regions of the next cycle: in mapped memory, bounded, small where accesses are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hmd.linux.damon import DamonRegions
from hmd.linux.mappings import Mappings, parse_maps
from hmd.linux.procfs import ProcessId
from hmd.sample.damon_regions import RegionMap

PAGE = 4096
GIB = 1 << 18
"""Pages."""
A, B = ProcessId(1, 1), ProcessId(2, 1)


def maps(*those: tuple[int, int], access: str = "rw-p", path: str = "") -> Mappings:
    """Return mappings of (first page, pages)."""
    lines = [
        f"{a * PAGE:x}-{(a + n) * PAGE:x} {access} 00000000 00:00 0 {path}\n" for a, n in those
    ]
    return parse_maps("".join(lines).encode())


def spans(regions: DamonRegions) -> list[tuple[int, int]]:
    """Return (first page, page after the last) of each region."""
    start, end = regions.start // np.uint64(PAGE), regions.end // np.uint64(PAGE)
    return list(zip(start.tolist(), end.tolist(), strict=True))


def found(regions: DamonRegions, hot: range, count: int) -> DamonRegions:
    """Return a cycle's regions with these pages accessed in this many of 40 samples."""
    share = [
        max(0, min(end, hot.stop) - max(start, hot.start)) / (end - start)
        for start, end in spans(regions)
    ]
    return DamonRegions(
        regions.start, regions.end, np.rint(np.array(share) * count).astype(np.uint32)
    )


def test_regions_cover_mapped_memory_only() -> None:
    chosen = RegionMap(100).choose({A: maps((100, 5000), (1 << 20, 3000))})[A]
    its = spans(chosen)
    assert len(its) == 100
    assert all(a < b for a, b in its)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(its))
    assert sum(b - a for a, b in its) == 8000


def test_regions_include_small_gaps_but_no_reserved_memory() -> None:
    mapping = parse_maps(
        b"100000-200000 rw-p 00000000 00:00 0 \n"
        b"280000-300000 r--p 00000000 00:00 0 \n"
        b"10000000-90000000 ---p 00000000 00:00 0 \n"
        b"7ffff000-80000000 r-xp 00000000 00:00 0 [vdso]\n"
    )
    its = spans(RegionMap(10).choose({A: mapping})[A])
    assert (its[0][0], its[-1][1]) == (0x100, 0x300)
    assert sum(b - a for a, b in its) == 0x200


@pytest.mark.parametrize("most", [20, 100, 400])
def test_regions_stay_within_their_limit(most: int) -> None:
    known, mappings = RegionMap(most), {A: maps((0, GIB)), B: maps((0, 64 * GIB))}
    rng = np.random.default_rng(0)
    for _ in range(10):
        chosen = known.choose(mappings)
        assert 0 < sum(len(regions) for regions in chosen.values()) <= most
        for process, regions in chosen.items():
            counts = rng.integers(0, 41, len(regions)).astype(np.uint32)
            known.record_shares(process, DamonRegions(regions.start, regions.end, counts), 40)


def test_regions_of_hot_memory_are_split() -> None:
    """Accesses are reported in proportion to the share of hot pages in a region."""
    known, hot = RegionMap(400), range(5 * GIB + 1000, 5 * GIB + 1000 + 8192)
    for _ in range(14):
        chosen = known.choose({A: maps((0, 64 * GIB))})[A]
        known.record_shares(A, found(chosen, hot, 40), 40)
    sizes = [b - a for a, b in spans(chosen) if a < hot.stop and b > hot.start]
    assert max(sizes) <= 1024
    assert len(sizes) > 50


def test_regions_that_cooled_are_merged() -> None:
    known, mapping = RegionMap(100), {A: maps((0, GIB))}
    for hot in (range(4096), range(100_000, 104_096)):
        for _ in range(14):
            chosen = known.choose(mapping)[A]
            known.record_shares(A, found(chosen, hot, 40), 40)
    near = [a for a, b in spans(chosen) if a < 4096]
    there = [a for a, b in spans(chosen) if a < 104_096 and b > 100_000]
    assert len(there) > 20 > len(near)


def test_regions_of_unchanged_mappings_are_kept() -> None:
    known, hot = RegionMap(100), range(1024)
    before = maps((0, 10_000), (1 << 20, 10_000))
    for _ in range(10):
        chosen = known.choose({A: before})[A]
        known.record_shares(A, found(chosen, hot, 40), 40)
    after = maps((0, 12_000), (1 << 21, 10_000))
    its = spans(known.choose({A: after})[A])
    assert sum(b <= 1024 for _, b in its) > 20
    assert sum(b - a for a, b in its) == 22_000


def test_regions_without_results_are_unchanged() -> None:
    known = RegionMap(20)
    known.choose({A: maps((0, 10_000))})
    nothing = np.empty(0, np.uint64)
    known.record_shares(A, DamonRegions(nothing, nothing, np.empty(0, np.uint32)), 40)
    assert len(known.choose({A: maps((0, 10_000))})[A]) == 20


def test_regions_without_processes_or_memory_are_empty() -> None:
    known = RegionMap(20)
    assert known.choose({}) == {}
    assert len(known.choose({A: maps()})[A]) == 0
    chosen = known.choose({A: maps(), B: maps((5, 1))})
    assert spans(chosen[B]) == [(5, 6)]
