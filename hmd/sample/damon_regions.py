"""Regions with a count of accesses, made into rows of pages: how DAMON's view becomes a batch.

DAMON looks at one page of a region, another each time, and counts the looks that found it
accessed since the look before. So a region's count over all looks is the share of looking
intervals in which one of its pages is accessed, on average over its pages: not how often, which
an accessed bit cannot tell. A page of the region is therefore given ``share`` times the intervals
that have passed as accesses, which is as many as it had where it is accessed less than once an
interval, and no more than one an interval where it is hot.

All regions together give at most ``rows_most`` rows, which all stand for about as many accesses
and lie evenly over what was accessed, from another start each time. Rows of one region rest on a
few looks that they share: they are no independent samples. Costs some 0.1 µs a row, and a query
of each row's page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.machine.kdamond import DamonRegions
from hmd.machine.mappings import MappingKind, Mappings
from hmd.units import PAGE_BYTES

Addresses = npt.NDArray[np.uint64]
Present = Callable[[Addresses], npt.NDArray[np.bool_]]
"""Tells of page addresses of a process which of them have a page."""

_PAGE = np.uint64(PAGE_BYTES)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Mapped parts of regions, by address; columns of shape ``(n,)``.

    ``pages`` is the size, ``share`` that of looks which found an access (0 to 1), ``region`` the
    row of the region.
    """

    start: Addresses
    pages: npt.NDArray[np.int64]
    share: npt.NDArray[np.float64]
    region: npt.NDArray[np.int64]

    @property
    def mass(self) -> float:
        """Pages times share, over all."""
        return float(self.pages @ self.share)


def mapped(regions: DamonRegions, mappings: Mappings, most_accesses: int) -> Pieces:
    """Return the parts of regions that are mapped memory; ``most_accesses`` is all looks.

    What is not mapped has no accesses, so that those of its region are its mapped parts' alone.
    """
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
    share = np.minimum(regions.accesses / most_accesses * thinned, 1.0)
    return Pieces(start, pages, share[region], region)


def rows(
    pieces: Sequence[Pieces],
    present: Sequence[Present],
    intervals: float,
    rows_most: int,
    start: float,
) -> list[tuple[Addresses, npt.NDArray[np.uint32]]]:
    """Return for each process the pages of its rows, and what each row stands for.

    ``intervals`` is how many looking intervals the counts are to be told for, ``start`` (0 to 1)
    where the first row lies between two. Pages that are not there give no row; what they stood
    for is told by the other rows of their region.
    """
    mass = sum(piece.mass for piece in pieces) * intervals
    weight = max(1.0, float(np.ceil(mass / rows_most)))
    return [
        _rows_of(piece, there, intervals, weight, start)
        for piece, there in zip(pieces, present, strict=True)
    ]


def _rows_of(
    pieces: Pieces, present: Present, intervals: float, weight: float, start: float
) -> tuple[Addresses, npt.NDArray[np.uint32]]:
    each = pieces.share * intervals  # accesses a page
    end = np.cumsum(pieces.pages * each)
    total = float(end[-1]) if len(end) else 0.0
    place = np.arange(start * weight, total, weight)
    piece = np.minimum(np.searchsorted(end, place, side="right"), len(end) - 1)
    begin = end[piece] - pieces.pages[piece] * each[piece]
    page = ((place - begin) / each[piece]).astype(np.int64)
    page = np.clip(page, 0, pieces.pages[piece] - 1)
    address = pieces.start[piece] + page.astype(np.uint64) * _PAGE
    kept = present(address)
    of_region = pieces.region[piece]
    count = len(pieces.region) and int(pieces.region.max()) + 1
    asked = np.bincount(of_region, minlength=count)[of_region[kept]]
    found = np.bincount(of_region[kept], minlength=count)[of_region[kept]]
    # But no page has more than one access an interval.
    told = weight * np.minimum(asked / found, 1.0 / pieces.share[piece[kept]])
    return address[kept], np.rint(told).astype(np.uint32)
