"""Placement of a recorded process's pages, as changes.

Takes a pid and its mappings, queries move_pages(2) for every present page (0.2 µs each), and
returns the runs of pages that appeared, moved or disappeared since the last query.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.machine.pages.mappings import MappingKind, Mappings
from hmd.machine.pages.move_pages import query_nodes
from hmd.machine.pages.pagemap_scan import PageIs, scan
from hmd.machine.process_id import PROC
from hmd.machine.procfs import absent
from hmd.trace.trace import PlacementChange
from hmd.units import PAGE_BYTES

Pages: TypeAlias = npt.NDArray[np.uint64]
Nodes: TypeAlias = npt.NDArray[np.int16]

GONE = np.int16(-1)
_QUERY_PAGES = 1 << 16
"""Pages of one query: 13 ms."""


class PlacementLog:
    """Last known placement of one process's pages."""

    def __init__(self, process: int) -> None:
        """``process`` is its index in the trace."""
        self._process = process
        self._page: Pages = np.empty(0, np.uint64)
        self._node: Nodes = np.empty(0, np.int16)

    def query(self, pid: int, mappings: Mappings, time_ns: int) -> PlacementChange | None:
        """Query the node of every page; returns the changes, None if there are none.

        Also None for a process that has ended: its last placement stays.
        """
        page, node = resident(pid, mappings)
        return self.update(page, node, time_ns) if len(page) else None

    def update(self, page: Pages, node: Nodes, time_ns: int) -> PlacementChange | None:
        """Take pages, ascending, and their present nodes; returns as ``query``."""
        known = np.searchsorted(self._page, page)
        inside = known < len(self._page)
        same = np.zeros(len(page), np.bool_)
        rows = known[inside]
        same[inside] = (self._page[rows] == page[inside]) & (self._node[rows] == node[inside])
        went = self._page[~np.isin(self._page, page, assume_unique=True)]
        self._page, self._node = page, node
        changed = np.concatenate([page[~same], went])
        if not len(changed):
            return None
        where = np.concatenate([node[~same], np.full(len(went), GONE, np.int16)])
        order = np.argsort(changed, kind="stable")
        start, pages, nodes = runs(changed[order], where[order])
        return PlacementChange(time_ns, self._process, start, pages, nodes)


def resident(pid: int, mappings: Mappings, proc: Path = PROC) -> tuple[Pages, Nodes]:
    """Return the resident pages of a process, ascending, and the node of each."""
    found: list[tuple[Pages, Nodes]] = []
    for first, last in present_ranges(pid, mappings, proc):
        for start in range(first, last, _QUERY_PAGES * PAGE_BYTES):
            end = min(last, start + _QUERY_PAGES * PAGE_BYTES)
            page = np.arange(start, end, PAGE_BYTES, dtype=np.uint64)
            node = query_nodes(pid, page)
            here = node >= 0
            if here.any():
                found.append((page[here], node[here]))
    if not found:
        return np.empty(0, np.uint64), np.empty(0, np.int16)
    return np.concatenate([p for p, _ in found]), np.concatenate([n for _, n in found])


def present_ranges(pid: int, mappings: Mappings, proc: Path = PROC) -> list[tuple[int, int]]:
    """Return ranges of addresses outside of which no page is present, ascending.

    Before Linux 6.7, which has no PAGEMAP_SCAN, the mappings.
    """
    some = mappings.kind != MappingKind.SPECIAL
    spans = list(zip(mappings.start[some].tolist(), mappings.end[some].tolist(), strict=True))
    try:
        fd = os.open(proc / str(pid) / "pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if absent(error):
            return []
        raise
    try:
        ranges = [scan(fd, start, end, PageIs.PRESENT) for start, end in spans]
    except OSError as error:
        return [] if error.errno == errno.ESRCH else spans
    finally:
        os.close(fd)
    return [(start, end) for part in ranges for start, end in part.tolist()]


def runs(page: Pages, node: Nodes) -> tuple[Pages, npt.NDArray[np.uint32], Nodes]:
    """Return runs of adjacent pages of one node: first page, number of pages, node."""
    if not len(page):
        return page, np.empty(0, np.uint32), node
    breaks = (np.diff(page) != PAGE_BYTES) | (np.diff(node) != 0)
    first = np.concatenate([[0], np.flatnonzero(breaks) + 1])
    count = np.diff(np.append(first, len(page)))
    return page[first], count.astype(np.uint32), node[first]


def pages_of(change: PlacementChange) -> tuple[Pages, Nodes]:
    """Return a change page by page."""
    count = change.pages.astype(np.int64)
    total = int(count.sum())
    within = np.arange(total) - np.repeat(np.cumsum(count) - count, count)
    page = np.repeat(change.start, count) + within.astype(np.uint64) * np.uint64(PAGE_BYTES)
    return page, np.repeat(change.node, count)
