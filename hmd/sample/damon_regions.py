# SPDX-License-Identifier: MIT
"""DAMON's regions: which to monitor next, and their counts of accesses as rows of pages.

**Rows.** DAMON checks one page of a region, a different one each time, and counts the checks that
find it accessed since the previous check. The count divided by the checks is the share of intervals
in which a page of the region is accessed. A page is therefore assigned ``share`` times the elapsed
intervals as accesses: exact below one access per interval, a lower bound for hot pages. All regions
together give a bounded number of rows, which represent about as many accesses each and are evenly
spaced over the accessed memory, with another offset each time. Costs about 0.1 µs per row, and a
query of each row's page.

**Choice.** ``RegionMap`` gives regions, fine where there are accesses, coarse elsewhere, and at
most a fixed number over all processes. At that number, the most similar neighbours are merged, down
to half of it, by the least increase of the squared error of their shares (Ward, "Hierarchical
grouping to optimize an objective function", 1963). Then the regions with most accesses are split,
and some of the largest, which finds new accesses. DAMON adapts regions too, but splits at random
starting from one region, and keeps no history between two counts. Costs about 10 µs per region.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.linux.damon import DamonRegions
from hmd.linux.mappings import MappingKind, Mappings
from hmd.linux.procfs import ProcessId

MIN_REGION_PAGES: Final = 32
"""More regions than of this size would cost more than the finer boundaries gain."""
GAP_BYTES: Final = 2 << 20
"""Mappings at most this far apart form one piece of memory."""

_NEWEST_WEIGHT: Final = 0.5
"""Weight of the newest cycle in the mean of a region's share."""
_LARGEST_SHARE: Final = 0.25
"""Share of the splits that goes to the largest regions, whatever their accesses."""
_PAGE: Final = np.uint64(PAGE_BYTES)

Addresses = npt.NDArray[np.uint64]
FindPresent = Callable[[Addresses], npt.NDArray[np.bool_]]
"""Returns for page addresses of a process which of them have a page."""


@dataclass(frozen=True, slots=True)
class MappedPieces:
    """Mapped parts of regions, by address; columns of shape ``(n,)``.

    ``pages`` is the size, ``share`` the share of checks that found an access (0 to 1), ``region``
    the row of the region.
    """

    start: Addresses
    pages: npt.NDArray[np.int64]
    share: npt.NDArray[np.float64]
    region: npt.NDArray[np.int64]

    @property
    def accesses_per_interval(self) -> float:
        """Accesses of all pages in an interval: the sum of pages times share."""
        return float(self.pages @ self.share)


def find_mapped(regions: DamonRegions, mappings: Mappings, max_accesses: int) -> MappedPieces:
    """Return the mapped parts of regions, to which their accesses of ``max_accesses`` belong."""
    memory = mappings.kind != MappingKind.SPECIAL
    low, high = mappings.start[memory], mappings.end[memory]
    first = np.searchsorted(high, regions.start, side="right")
    after = np.searchsorted(low, regions.end, side="left")
    parts = np.maximum(after - first, 0)
    region = np.repeat(np.arange(len(regions)), parts)
    mapping = np.arange(len(region)) + np.repeat(first - np.cumsum(parts) + parts, parts)
    start = np.maximum(regions.start[region], low[mapping])
    end = np.minimum(regions.end[region], high[mapping])
    pages = ((end - start) // _PAGE).astype(np.int64)
    whole = ((regions.end - regions.start) // _PAGE).astype(np.float64)
    inside = np.bincount(region, weights=pages, minlength=len(regions))
    thinned = np.divide(whole, inside, out=np.zeros_like(whole), where=inside > 0)
    share = np.minimum(regions.accesses / max_accesses * thinned, 1.0)
    return MappedPieces(start, pages, share[region], region)


def make_rows(
    pieces: Sequence[MappedPieces],
    present: Sequence[FindPresent],
    intervals: float,
    max_rows: int,
    start: float,
) -> list[tuple[Addresses, npt.NDArray[np.uint32]]]:
    """Return per process the pages of its rows, and the accesses that each row represents.

    The counts are extrapolated to ``intervals`` sampling intervals; ``start`` (0 to 1) is the
    offset of the first row in its stride. Addresses without a page give no row; the other rows of
    their region represent their accesses.
    """
    accesses = sum(piece.accesses_per_interval for piece in pieces) * intervals
    accesses_per_row = max(1.0, float(np.ceil(accesses / max_rows)))
    return [
        _rows_of(piece, find, intervals, accesses_per_row, start)
        for piece, find in zip(pieces, present, strict=True)
    ]


def _rows_of(
    pieces: MappedPieces,
    present: FindPresent,
    intervals: float,
    accesses_per_row: float,
    start: float,
) -> tuple[Addresses, npt.NDArray[np.uint32]]:
    page_accesses = pieces.share * intervals
    end = np.cumsum(pieces.pages * page_accesses)
    total = float(end[-1]) if len(end) else 0.0
    position = np.arange(start * accesses_per_row, total, accesses_per_row)
    piece = np.minimum(np.searchsorted(end, position, side="right"), len(end) - 1)
    begin = end[piece] - pieces.pages[piece] * page_accesses[piece]
    page = ((position - begin) / page_accesses[piece]).astype(np.int64)
    page = np.clip(page, 0, pieces.pages[piece] - 1)
    address = pieces.start[piece] + page.astype(np.uint64) * _PAGE
    kept = present(address)
    region = pieces.region[piece]
    regions = len(pieces.region) and int(pieces.region.max()) + 1
    drawn = np.bincount(region, minlength=regions)[region[kept]]
    found = np.bincount(region[kept], minlength=regions)[region[kept]]
    # But no page has more than one access per interval.
    accesses = accesses_per_row * np.minimum(drawn / found, 1.0 / pieces.share[piece[kept]])
    return address[kept], np.rint(accesses).astype(np.uint32)


class _Spans(NamedTuple):
    """Regions in order of process and address; ``share`` is that of checks with an access."""

    process: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    share: npt.NDArray[np.float64]

    @property
    def pages(self) -> npt.NDArray[np.float64]:
        """Size of each."""
        return (self.end - self.start) / PAGE_BYTES


class RegionMap:
    """The regions of processes and their history: ``max_regions``, or one per piece of memory."""

    def __init__(self, max_regions: int) -> None:
        self.max_regions = max_regions
        self._known: dict[ProcessId, _Spans] = {}

    def choose(self, mappings: Mapping[ProcessId, Mappings]) -> dict[ProcessId, DamonRegions]:
        """Return the regions to look at, by process; others are forgotten."""
        spans = _concatenate([self._cut(i, p, m) for i, (p, m) in enumerate(mappings.items())])
        full = len(spans.start) > self.max_regions - self.max_regions // 4
        while full and len(spans.start) > self.max_regions // 2:
            merged = _merge(spans, len(spans.start) - self.max_regions // 2)
            if len(merged.start) == len(spans.start):
                break
            spans = merged
        while (room := self.max_regions - len(spans.start)) > 0:
            halved = _halve(spans, room)
            if len(halved.start) == len(spans.start):
                break
            spans = halved
        self._known = {p: _select(spans, spans.process == i) for i, p in enumerate(mappings)}
        return {process: _regions(known) for process, known in self._known.items()}

    def record_shares(self, process: ProcessId, regions: DamonRegions, max_accesses: int) -> None:
        """Record the counts of a cycle; a page always in use has ``max_accesses``."""
        known = self._known[process]
        if not len(regions):
            return
        middle = ((known.start + known.end) // 2).astype(np.uint64)
        row = np.maximum(np.searchsorted(regions.start, middle, side="right") - 1, 0)
        seen = np.where(
            (middle >= regions.start[row]) & (middle < regions.end[row]),
            regions.accesses[row] / max_accesses,
            known.share,
        )
        share = known.share + _NEWEST_WEIGHT * (seen - known.share)
        self._known[process] = known._replace(share=share)

    def _cut(self, index: int, process: ProcessId, mappings: Mappings) -> _Spans:
        """Return a process's memory cut where regions were, with what is known of each."""
        first, last = _pieces(mappings)
        known = self._known.get(process)
        if known is None or not len(first):
            return _Spans(np.full(len(first), index), first, last, np.zeros(len(first)))
        inner = np.unique(np.concatenate([known.start, known.end]))
        piece = np.searchsorted(first, inner, side="right") - 1
        inner = inner[(piece >= 0) & (inner < last[piece])]
        start = np.unique(np.concatenate([first, inner]))
        end = np.minimum(
            np.append(start[1:], last[-1]), last[np.searchsorted(first, start, side="right") - 1]
        )
        row = np.maximum(np.searchsorted(known.start, start, side="right") - 1, 0)
        inside = (start >= known.start[row]) & (start < known.end[row])
        return _Spans(np.full(len(start), index), start, end, known.share[row] * inside)


def _pieces(mappings: Mappings) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return first and last address of what is mapped, small gaps included."""
    memory = (mappings.kind != MappingKind.SPECIAL) & (mappings.access != 0)
    start, end = mappings.start[memory].astype(np.int64), mappings.end[memory].astype(np.int64)
    if not len(start):
        return start, end
    apart = start[1:] - end[:-1] > GAP_BYTES
    return start[np.append(True, apart)], end[np.append(apart, True)]


def _concatenate(parts: list[_Spans]) -> _Spans:
    if not parts:
        nothing = np.empty(0, np.int64)
        return _Spans(nothing, nothing, nothing, np.empty(0))
    columns: list[Any] = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return _Spans(*columns)


def _merge(spans: _Spans, count: int) -> _Spans:
    """Merge pairs of the most similar neighbours, ``count`` at most, no region twice."""
    left, right = slice(0, -1), slice(1, None)
    pages = spans.pages
    weight = pages[left] * pages[right] / (pages[left] + pages[right])
    error = weight * (spans.share[left] - spans.share[right]) ** 2
    # Of equally similar pairs the smallest first, so that sizes stay even.
    cost = error + 1e-9 * (pages[left] + pages[right])
    touching = (spans.process[left] == spans.process[right]) & (
        spans.end[left] == spans.start[right]
    )
    used, gone = np.zeros(len(pages), np.bool_), np.zeros(len(pages), np.bool_)
    candidates = np.flatnonzero(touching)
    for pair in candidates[np.argsort(cost[candidates], kind="stable")].tolist():
        if count and not (used[pair] or used[pair + 1]):
            used[pair] = used[pair + 1] = gone[pair + 1] = True
            count -= 1
    kept = np.flatnonzero(~gone)
    last = np.append(kept[1:], len(pages)) - 1
    both = np.add.reduceat(spans.share * pages, kept) / np.add.reduceat(pages, kept)
    return _Spans(spans.process[kept], spans.start[kept], spans.end[last], both)


def _halve(spans: _Spans, count: int) -> _Spans:
    """Halve the regions with most accesses and some of the largest, ``count`` at most."""
    pages = np.where(spans.pages >= 2 * MIN_REGION_PAGES, spans.pages, 0.0)
    # Not many at a time: halves of a large one may be larger than what would be next.
    count = max(1, min(count, len(pages) // 4))
    hot = _highest(pages * spans.share, count - round(count * _LARGEST_SHARE))
    chosen = np.union1d(hot, _highest(pages, count - len(hot)))
    middle = (
        spans.start[chosen] + (spans.end - spans.start)[chosen] // (2 * PAGE_BYTES) * PAGE_BYTES
    )
    end = spans.end.copy()
    end[chosen] = middle
    return _Spans(
        np.insert(spans.process, chosen + 1, spans.process[chosen]),
        np.insert(spans.start, chosen + 1, middle),
        np.insert(end, chosen + 1, spans.end[chosen]),
        np.insert(spans.share, chosen + 1, spans.share[chosen]),
    )


def _highest(score: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """Return the rows with the highest scores above 0, ``count`` at most."""
    rows = np.argsort(-score, kind="stable")[:count]
    return rows[score[rows] > 0]


def _select(spans: _Spans, rows: npt.NDArray[np.bool_]) -> _Spans:
    columns: list[Any] = [column[rows] for column in spans]
    return _Spans(*columns)


def _regions(spans: _Spans) -> DamonRegions:
    return DamonRegions(
        spans.start.astype(np.uint64),
        spans.end.astype(np.uint64),
        np.zeros(len(spans.start), np.uint32),
    )
