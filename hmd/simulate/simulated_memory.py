"""The memory of a simulated machine: which node each page of the program is on.

Pages are allocated at their first access, on the fast node while it has room; those that the
program gives back (:class:`hmd.emulate.recordings.miss_stream.PageFrees`) at their next access.
``row`` is the next miss of the program, which says what it has accessed so far.
"""

from __future__ import annotations

import errno
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.emulate.preset import Preset
from hmd.emulate.recordings.layout_replay import tiers_of
from hmd.emulate.recordings.miss_stream import MissStream
from hmd.machine.nodes.topology import Node, Topology
from hmd.machine.pages.mappings import MappingAccess, MappingKind, Mappings
from hmd.simulate.access_rows import first_rows, next_rows
from hmd.units import PAGE_BYTES

FAST, SLOW = 0, 1
"""Node ids of the two tiers, whatever the preset's order."""

OUT: Final = -1
"""Instead of a node: paged out."""

Pages = npt.NDArray[np.int64]


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
        count = len(last)
        return Mappings(
            here[first],
            here[last] + np.uint64(PAGE_BYTES),
            np.full(count, MappingKind.ANON, np.uint8),
            np.full(count, MappingAccess.READ | MappingAccess.WRITE, np.uint8),
            np.zeros(count, np.bool_),
            np.zeros(count, np.bool_),
            np.zeros(count, np.int64),
            ("",) * count,
        )

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
