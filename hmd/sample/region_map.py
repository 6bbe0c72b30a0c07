"""Choice of the regions to monitor next: fine where there are accesses, coarse elsewhere.

Takes processes' mappings and the results of the last cycles; gives regions, at most a fixed number
over all processes. At that number, the most similar neighbours are merged, down to half of it, by
the least increase of the squared error of their shares (Ward, "Hierarchical grouping to optimize an
objective function", 1963). Then the regions with most accesses are split, and some of the largest,
which finds new accesses. A program of a few MiB needs no choice: all of it is monitored finely.
DAMON adapts regions too, but splits at random starting from one region, keeps no history between
two counts, and spends regions on address space without memory. Costs about 10 µs per region.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.machine.damon.kdamond import DamonRegions
from hmd.machine.pages.mappings import MappingKind, Mappings
from hmd.machine.process_id import ProcessId
from hmd.units import PAGE_BYTES

SMALLEST_PAGES = 32
"""Smallest region: more regions would cost more than the finer boundaries gain."""
GAP_BYTES = 2 << 20
"""Mappings at most this far apart form one piece of memory."""

_NEWEST = 0.5
"""Weight of the newest cycle in the mean of a region's share."""
_LARGEST = 0.25
"""Share of the splits that goes to the largest regions, whatever their accesses."""


@dataclass(frozen=True, slots=True)
class _Spans:
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
    """The regions of each process and their history.

    There are at most ``most`` regions, but at least one per piece of memory.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._known: dict[ProcessId, _Spans] = {}

    def choose(self, mappings: Mapping[ProcessId, Mappings]) -> dict[ProcessId, DamonRegions]:
        """Return the regions to look at, by process; others are forgotten."""
        spans = _joined([self._cut(i, p, m) for i, (p, m) in enumerate(mappings.items())])
        full = len(spans.start) > self.most - self.most // 4
        while full and len(spans.start) > self.most // 2:
            merged = _merge(spans, len(spans.start) - self.most // 2)
            if len(merged.start) == len(spans.start):
                break
            spans = merged
        while (room := self.most - len(spans.start)) > 0:
            halved = _halve(spans, room)
            if len(halved.start) == len(spans.start):
                break
            spans = halved
        self._known = {p: _of(spans, i) for i, p in enumerate(mappings)}
        return {process: _regions(known) for process, known in self._known.items()}

    def learn(self, process: ProcessId, regions: DamonRegions, most_accesses: int) -> None:
        """Take what a cycle found of a process; a page always in use has ``most_accesses``."""
        known = self._known[process]
        if not len(regions):
            return
        middle = ((known.start + known.end) // 2).astype(np.uint64)
        row = np.maximum(np.searchsorted(regions.start, middle, side="right") - 1, 0)
        seen = np.where(
            (middle >= regions.start[row]) & (middle < regions.end[row]),
            regions.accesses[row] / most_accesses,
            known.share,
        )
        share = known.share + _NEWEST * (seen - known.share)
        self._known[process] = _Spans(known.process, known.start, known.end, share)

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


def _joined(parts: list[_Spans]) -> _Spans:
    if not parts:
        nothing = np.empty(0, np.int64)
        return _Spans(nothing, nothing, nothing, np.empty(0))
    return _Spans(
        np.concatenate([part.process for part in parts]),
        np.concatenate([part.start for part in parts]),
        np.concatenate([part.end for part in parts]),
        np.concatenate([part.share for part in parts]),
    )


def _merge(spans: _Spans, count: int) -> _Spans:
    """Make one of the most alike neighbours, ``count`` times at most, no region twice."""
    left, right = slice(0, -1), slice(1, None)
    pages = spans.pages
    weight = pages[left] * pages[right] / (pages[left] + pages[right])
    error = weight * (spans.share[left] - spans.share[right]) ** 2
    # Of pairs alike the smallest first, so that sizes stay even.
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
    pages = np.where(spans.pages >= 2 * SMALLEST_PAGES, spans.pages, 0.0)
    # Not many at a time: halves of a large one may be larger than what would be next.
    count = max(1, min(count, len(pages) // 4))
    hot = _highest(pages * spans.share, count - round(count * _LARGEST))
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


def _of(spans: _Spans, index: int) -> _Spans:
    rows = spans.process == index
    return _Spans(spans.process[rows], spans.start[rows], spans.end[rows], spans.share[rows])


def _regions(spans: _Spans) -> DamonRegions:
    return DamonRegions(
        spans.start.astype(np.uint64),
        spans.end.astype(np.uint64),
        np.zeros(len(spans.start), np.uint32),
    )
