"""Conversion of DAMON's regions, which have a count of accesses, into rows of pages.

DAMON checks one page of a region, a different one each time, and counts the checks that find it
accessed since the previous check. The count divided by the checks is thus the share of intervals in
which a page of the region is accessed, averaged over its pages. It is not the number of accesses,
which an accessed bit cannot show. A page of the region is therefore assigned ``share`` times the
elapsed intervals as accesses. That is exact below one access per interval; for hot pages it is a
lower bound, one per interval.

All regions together give at most ``rows_most`` rows. They represent about as many accesses each and
are evenly spaced over the accessed memory, with another offset each time. Rows of one region share
a few checks, so they are not independent samples. Costs about 0.1 µs per row, and a query of each
row's page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.machine.damon.kdamond import DamonRegions
from hmd.machine.pages.mappings import MappingKind, Mappings
from hmd.units import PAGE_BYTES

Addresses = npt.NDArray[np.uint64]
Present = Callable[[Addresses], npt.NDArray[np.bool_]]
"""Returns for page addresses of a process which of them have a page."""

_PAGE = np.uint64(PAGE_BYTES)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Mapped parts of regions, by address; columns of shape ``(n,)``.

    ``pages`` is the size, ``share`` the share of checks that found an access (0 to 1), ``region``
    the row of the region.
    """

    start: Addresses
    pages: npt.NDArray[np.int64]
    share: npt.NDArray[np.float64]
    region: npt.NDArray[np.int64]

    @property
    def mass(self) -> float:
        """Sum of pages times share."""
        return float(self.pages @ self.share)


def mapped(regions: DamonRegions, mappings: Mappings, most_accesses: int) -> Pieces:
    """Return the mapped parts of regions; ``most_accesses`` is the number of checks.

    Unmapped memory has no accesses, so those of a region belong to its mapped parts.
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
    """Return per process the pages of its rows, and the accesses that each row represents.

    The counts are extrapolated to ``intervals`` sampling intervals; ``start`` (0 to 1) is the
    offset of the first row in its stride. Addresses without a page give no row; the other rows of
    their region represent their accesses.
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
    each = pieces.share * intervals  # accesses per page
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
    # But no page has more than one access per interval.
    accesses = weight * np.minimum(asked / found, 1.0 / pieces.share[piece[kept]])
    return address[kept], np.rint(accesses).astype(np.uint32)
