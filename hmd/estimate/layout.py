"""Layouts: the pages of a program in fast memory.

A layout is an array over the pages of a trace (:class:`hmd.estimate.page_index.PageIndex`). Pages
that were never sampled cost nothing on any tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.estimate.page_index import PageIndex

Layout: TypeAlias = npt.NDArray[np.bool_]
"""True for pages in fast memory, shape ``(pages,)``."""


def all_slow(pages: PageIndex) -> Layout:
    """Return the layout with every page in slow memory."""
    return np.zeros(len(pages), np.bool_)


def all_fast(pages: PageIndex) -> Layout:
    """Return the layout with every page in fast memory."""
    return np.ones(len(pages), np.bool_)


def by_heat(pages: PageIndex, count: int, *, hot_first: bool = True) -> Layout:
    """Return the ``count`` hottest (or coldest) pages in fast memory; ties by address."""
    chosen = all_slow(pages)
    chosen[heat_order(pages, hot_first=hot_first)[: max(0, count)]] = True
    return chosen


def heat_order(pages: PageIndex, *, hot_first: bool = True) -> npt.NDArray[np.int64]:
    """Return the pages from the hottest (or coldest) on, by the first run's samples."""
    heat = -pages.accesses if hot_first else pages.accesses
    return np.argsort(heat, kind="stable")


def interleaved(pages: PageIndex, share: float) -> Layout:
    """Return every n-th page in order of address in fast memory: ``share`` of them."""
    turn = np.arange(len(pages) + 1) * share
    fast: Layout = np.floor(turn[1:] + 1e-9) > np.floor(turn[:-1] + 1e-9)
    return fast


def in_ranges(pages: PageIndex, ranges: Sequence[tuple[int, int]]) -> Layout:
    """Return the pages that begin within a range (end exclusive) in fast memory."""
    fast = all_slow(pages)
    for start, end in ranges:
        fast |= (pages.address >= np.uint64(start)) & (pages.address < np.uint64(end))
    return fast
