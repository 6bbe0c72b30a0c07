# SPDX-License-Identifier: MIT
"""Memory that a recorded program gives back: from the plugin's records to pages of the stream.

The plugin records system calls as they begin (hmd/emulate/plugin/frees.h). A page is given back by
the first call after an access to it; what was not accessed since is not. From then on its frame is
no page's, until another page is accessed in it: the kernel's clearing of a frame for its next page
is an access to that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.emulate.recordings.misses import MissFlag, PageFrees

_HEAP_MOST_PAGES: Final = (1 << 40) // PAGE_BYTES
"""A program break that is further below the last one is another program's."""


@dataclass(frozen=True, slots=True)
class FreedRanges:
    """Ranges of virtual page numbers, ``first`` to ``last`` (exclusive); shape ``(k,)``.

    They are given back before the miss of ``row``, which does not fall.
    """

    row: npt.NDArray[np.int64]
    first: npt.NDArray[np.uint64]
    last: npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class FreedPages:
    """Pages that are given back, by time: ``page`` is a virtual page number; shape ``(k,)``.

    ``accessed`` is the row of the last access before, which names the page's frame.
    """

    row: npt.NDArray[np.int64]
    page: npt.NDArray[np.uint64]
    accessed: npt.NDArray[np.int64]


def split_frees(raw: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], FreedRanges]:
    """Return the plugin's records without those of freed memory, and these.

    Of several CPUs none are returned: their order to other CPUs' accesses is not kept.
    """
    is_free = raw["flags"] == MissFlag.FREE
    misses, frees = raw[~is_free], raw[is_free]
    if len(np.unique(raw["cpu"])) > 1:
        frees = frees[:0]
    rows = np.cumsum(~is_free)[is_free][: len(frees)]
    first = frees["vaddr"] // np.uint64(PAGE_BYTES)
    pages = frees["paid_hits"].astype(np.uint64) | frees["near_hits"].astype(
        np.uint64
    ) << np.uint64(32)
    last = first + pages
    last[pages == 0] = _heap_ends(first[pages == 0])
    kept = last > first
    return misses, FreedRanges(rows[kept].astype(np.int64), first[kept], last[kept])


def _heap_ends(ends: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the end of the heap before each brk(2) that shrinks it, else the new one."""
    before = np.concatenate((ends[:1], ends[:-1]))
    shrinks = (before > ends) & (before - ends < np.uint64(_HEAP_MOST_PAGES))
    return np.where(shrinks, before, ends)


def freed_pages(
    ranges: FreedRanges, rows: npt.NDArray[np.int64], page: npt.NDArray[np.uint64]
) -> FreedPages:
    """Return the pages that the ranges give back.

    ``rows`` are accesses to the program's pages, ascending, and ``page`` their page numbers.
    """
    # By page, then by row: a page's frees and accesses are neighbours.
    known = np.unique(page)
    begin, end = np.searchsorted(known, ranges.first), np.searchsorted(known, ranges.last)
    counts = end - begin
    event = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(event)) - np.repeat(np.cumsum(counts) - counts, counts)
    freed, at = known[begin[event] + within], ranges.row[event]
    order = np.lexsort((rows, page))
    page, rows = page[order], rows[order]
    # An access of the same row comes after the free.
    number = np.searchsorted(known, page).astype(np.int64)
    stride = int(max(rows.max(initial=0), at.max(initial=0))) + 2
    access = number * stride + rows
    place = np.searchsorted(access, (begin[event] + within) * stride + at) - 1
    before = np.maximum(place, 0)
    accessed = (place >= 0) & (page[before] == freed) if len(page) else np.zeros(0, np.bool_)
    found = np.where(accessed, rows[before], -1) if len(page) else np.zeros(0, np.int64)
    kept = np.flatnonzero(accessed)
    # The first free after an access is the one: another of the same access finds nothing.
    keys = (begin[event] + within)[kept] * stride + found[kept]
    _, first = np.unique(keys, return_index=True)
    kept = np.sort(kept[first])
    return FreedPages(at[kept], freed[kept], found[kept])


def page_frees(freed: FreedPages, user_keys: npt.NDArray[np.uint64]) -> PageFrees | None:
    """Return what a stream keeps; ``user_keys`` are its pages' numbers, ascending."""
    if not len(freed.row):
        return None
    page = np.searchsorted(user_keys, freed.page).astype(np.uint32)
    return PageFrees(freed.row, page)
