# SPDX-License-Identifier: MIT
"""The memory of a simulated machine: which node each page of the program is on.

Pages are allocated at their first access, on the fast node while it has room; those that the
program gives back (:class:`hmd.emulate.recordings.misses.PageFrees`) at their next access. First
touch is this and nothing else. ``row`` is the next miss of the program, which says what it has
accessed so far; ``first_rows`` and its like give rows of a stream, ``len(stream)`` where there is
none.
"""

from __future__ import annotations

import errno
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.emulate.preset import Preset
from hmd.emulate.recordings.misses import MissOutcomes, MissStream
from hmd.emulate.recordings.replay import (
    END,
    Layout,
    MissReplay,
    TimingModel,
    frames,
    replayed,
    tiers_of,
)
from hmd.emulate.timing_params import timing_params
from hmd.linux.mappings import Mappings, anonymous_mappings
from hmd.linux.topology import Node, Topology

_ROWS = 1 << 16

FAST, SLOW = 0, 1
"""Node ids of the two tiers, whatever the preset's order."""

OUT: Final = -1
"""Instead of a node: paged out."""

Pages = npt.NDArray[np.int64]


def first_rows(stream: MissStream) -> npt.NDArray[np.int64]:
    """Return the row of the first access to each of the program's pages."""
    first = np.full(stream.pages, len(stream), np.int64)
    # From the end, so that the first of a page's rows is written last.
    for begin in reversed(range(0, len(stream), _ROWS)):
        part = stream.page[begin : begin + _ROWS]
        first[part[::-1]] = np.arange(begin, begin + len(part))[::-1]
    return first[: stream.user_pages]


def next_rows(stream: MissStream) -> npt.NDArray[np.int64]:
    """Return the row of the next access to each page that is given back, or the end; ``(k,)``."""
    if stream.frees is None:
        return np.empty(0, np.int64)
    page, end = stream.frees.page.astype(np.int64), len(stream)
    freed = np.zeros(stream.pages, np.bool_)
    freed[page] = True
    rows = np.flatnonzero(freed[stream.page])
    # By page, then by row: one number for both.
    accesses = np.sort(stream.page[rows].astype(np.int64) * (end + 1) + rows)
    at = np.searchsorted(accesses, page * (end + 1) + stream.frees.row)
    found = np.append(accesses, -1)[at]
    return np.where(found // (end + 1) == page, found % (end + 1), end)


class SimulatedMemory:
    """Where the program's pages are; ``node``, shape ``(pages,)``, may be written."""

    def __init__(self, stream: MissStream, fast_pages: int) -> None:
        pages = stream.user_pages
        self.capacity = (fast_pages, pages)
        self.node = np.full(pages, SLOW, np.int8)
        self._address = stream.page_address[:pages]
        self._first_row = first_rows(stream)
        self._by_first_row = np.argsort(self._first_row, kind="stable")
        self._frees, self._freed = stream.frees, 0
        self._again = next_rows(stream)
        self._end = len(stream)

    def free_until(self, row: int) -> None:
        """Take the pages that the program has given back by ``row`` and not accessed since."""
        if self._frees is None:
            return
        end = int(np.searchsorted(self._frees.row, row, side="right"))
        events = np.arange(self._freed, end)
        self._freed = end
        events = events[self._again[events] >= row]
        if len(events):
            self._first_row[self._frees.page[events]] = self._again[events]
            self._by_first_row = np.argsort(self._first_row, kind="stable")

    @property
    def next_free_row(self) -> int:
        """The row before which the program gives back the next pages, or that of the end."""
        if self._frees is None or self._freed == len(self._frees.row):
            return self._end
        return int(self._frees.row[self._freed])

    def free_pages(self, node: int, row: int) -> int:
        """Return the free pages of a node."""
        taken = np.count_nonzero((self.node == node) & (self._first_row < row))
        return self.capacity[node] - int(taken)

    def find(
        self, addresses: npt.NDArray[np.uint64], row: int
    ) -> tuple[Pages, npt.NDArray[np.bool_]]:
        """Return the page at each address, and whether it is resident."""
        start = addresses - addresses % np.uint64(PAGE_BYTES)
        page = np.minimum(np.searchsorted(self._address, start), len(self._address) - 1)
        return page, (self._address[page] == start) & self._resident(page, row)

    def nodes(self, addresses: npt.NDArray[np.uint64], row: int) -> npt.NDArray[np.int16]:
        """Return the node of each page, -ENOENT where it is not resident."""
        page, resident = self.find(addresses, row)
        return np.where(resident, self.node[page], -errno.ENOENT).astype(np.int16)

    def in_ranges(
        self, start: npt.NDArray[np.uint64], size_bytes: npt.NDArray[np.uint64], row: int
    ) -> Pages:
        """Return the resident pages of address ranges."""
        begin = np.searchsorted(self._address, start)
        end = np.searchsorted(self._address, start + size_bytes)
        spans = [np.arange(*span) for span in zip(begin.tolist(), end.tolist(), strict=True)]
        page = np.concatenate(spans)
        return page[self._resident(page, row)]

    def mappings(self, row: int) -> Mappings:
        """Return mappings: the runs of pages that the program has accessed so far."""
        here = self._address[self._first_row < row]
        last = np.flatnonzero(np.diff(here, append=np.uint64(0)) != PAGE_BYTES)
        first = np.concatenate([[0], last[:-1] + 1]) if len(last) else last
        return anonymous_mappings(here[first], here[last] + np.uint64(PAGE_BYTES))

    def allocate_ahead(self, row: int, reserved: int) -> Pages:
        """Choose the nodes of the pages that are not accessed yet; return these pages.

        The first to be accessed get what the fast node has free, less ``reserved`` pages.
        """
        accessed = int(np.searchsorted(self._first_row[self._by_first_row], row))
        ahead, room = self._by_first_row[accessed:], max(0, self.free_pages(FAST, row) - reserved)
        self.node[ahead[:room]], self.node[ahead[room:]] = FAST, SLOW
        return ahead

    def _resident(self, page: Pages, row: int) -> npt.NDArray[np.bool_]:
        resident: npt.NDArray[np.bool_] = (self._first_row[page] < row) & (self.node[page] != OUT)
        return resident


def two_tiers(preset: Preset, pages: tuple[int, int]) -> Topology:
    """Return the preset's two tiers as the kernel would report them, with so many pages each."""
    return Topology(
        tuple(
            Node(
                id=number,
                cpus=(0, 1) if number == FAST else (),
                total_bytes=pages[number] * PAGE_BYTES,
                distances=(10, 20) if number == FAST else (20, 10),
                tier=number,
                read_latency_ns=round(preset.nodes[of].read_latency_ns),
                write_latency_ns=round(preset.nodes[of].write_latency_ns),
                read_bandwidth_mbps=round(preset.nodes[of].read_bandwidth_gbps * 1000),
                write_bandwidth_mbps=round(preset.nodes[of].write_bandwidth_gbps * 1000),
            )
            for number, of in enumerate(tiers_of(preset))
        ),
        tier_source="preset",
    )


class PlacedReplay:
    """The replay of ``stream`` on ``model``, whose pages ``memory`` places.

    ``reserved`` pages of the fast node are kept from allocations. ``frames`` has the physical
    address of each page on the fast and on the slow node; ``outcomes`` receives clock and latency
    of every miss.
    """

    def __init__(
        self,
        model: TimingModel,
        stream: MissStream,
        preset: Preset,
        memory: SimulatedMemory,
        outcomes: MissOutcomes | None,
    ) -> None:
        pages = stream.user_pages
        self.memory = memory
        self.frames = [frames(stream, preset, np.full(pages, fast)) for fast in (True, False)]
        self.replay: MissReplay = model.misses(stream, self.frames[SLOW].copy(), outcomes)
        self.reserved = 0
        self.allocate()

    def allocate(self) -> None:
        """Place the pages that are not accessed yet, or not since they were given back."""
        row = self.replay.next
        self.memory.free_until(row)
        pages = self.memory.allocate_ahead(row, self.reserved)
        for node in (FAST, SLOW):
            there = pages[self.memory.node[pages] == node]
            self.replay.page_paddr[there] = self.frames[node][there]

    def run(self, until_ps: int = END) -> int:
        """Replay as ``MissReplay.run`` does; returns the busy time so far, in ps."""
        while True:
            row = self.memory.next_free_row
            busy_ps = self.replay.run(until_ps, row)
            if self.replay.next < row or self.replay.done:
                return busy_ps
            self.allocate()


def first_touch(
    stream: MissStream, preset: Preset, fast_pages: int, into: MissOutcomes | None = None
) -> int:
    """Return the runtime under first touch, in ps: no page moves. As ``replayed`` otherwise."""
    if stream.frees is None:
        return replayed(stream, preset, first_touched(stream, fast_pages), into)
    with TimingModel(timing_params(preset)) as model:
        memory = SimulatedMemory(stream, fast_pages)
        return PlacedReplay(model, stream, preset, memory, into).run()


def first_touched(stream: MissStream, fast_pages: int) -> Layout:
    """Return the pages that first touch puts on the fast node of a program that frees none."""
    layout = np.zeros(stream.user_pages, np.bool_)
    layout[np.argsort(first_rows(stream), kind="stable")[:fast_pages]] = True
    return layout
