"""The resident pages of the tracked processes at one tick, as policies see them.

A view hides how heat is stored. Its columns are flat, have shape ``(n,)`` and are computed when
they are first read: a policy pays for those that it uses, and :meth:`PageView.take` gives all that
a plan needs for some rows alone. Row numbers are valid for one tick;
:class:`hmd.heat.page_state.PageState` keeps values per page across ticks, and
:meth:`PageView.find` finds pages again by their addresses.

A row is an extent of pages that is counted and moved as one: today 4 KiB, or a huge page of
2 MiB. Policies read the number of pages from ``size`` and rely on nothing else.

Costs about 1 ns per page for ``size``, ``tier`` and ``wear``; :mod:`hmd.heat.rates` states the
cost of rates.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.heat.geometry import CHUNK_BYTES, CHUNK_PAGES
from hmd.heat.idle_age import IdleAge, idle_age
from hmd.heat.page_columns import (
    NODE_OF_CODE,
    PageColumns,
    PageRates,
    collect_pages,
    first_rows,
    locate,
    tier_of_code,
)
from hmd.machine.process_id import ProcessId
from hmd.machine.topology import Topology
from hmd.units import PAGE_BYTES

if TYPE_CHECKING:
    from hmd.heat.heat_table import HeatTable


class PageRows(NamedTuple):
    """Some rows of a view; columns of shape ``(k,)`` as :class:`PageView` has them."""

    process: npt.NDArray[np.int32]
    address: npt.NDArray[np.uint64]
    size: npt.NDArray[np.int64]
    node: npt.NDArray[np.int64]
    rate: npt.NDArray[np.float32]


class PageView:
    """The pages of a heat table; :meth:`hmd.heat.heat_table.HeatTable.view` makes one.

    It is valid until the table next changes.
    """

    def __init__(
        self, table: HeatTable, topology: Topology, pinned: npt.NDArray[np.bool_] | None = None
    ) -> None:
        """Take tiers from ``topology``; pages of ``pinned`` processes are not movable."""
        self._table = table
        self._pinned = np.zeros(len(table.processes), np.bool_) if pinned is None else pinned
        self._tier_of_node = np.full(max(len(topology.latency_ns), 1), -1, np.int8)
        for tier, nodes in enumerate(topology.tiers):
            self._tier_of_node[list(nodes)] = tier

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._first[-1])

    @property
    def processes(self) -> tuple[ProcessId, ...]:
        """The tracked processes."""
        return self._table.processes

    @property
    def tick(self) -> int:
        """How often the heat table was updated."""
        return self._table.clocks.tick

    @property
    def process_rate(self) -> npt.NDArray[np.float64]:
        """Accesses per second of each process, without its priority; shape ``(processes,)``."""
        return self._table.clocks.rate

    @property
    def loaded_ns(self) -> npt.NDArray[np.float64]:
        """Mean latency of each node in recent samples, by node id; near 0 where not measured."""
        return self._table.loaded_ns

    @property
    def size(self) -> npt.NDArray[np.uint16]:
        """Number of 4 KiB pages."""
        return self._columns.size

    @property
    def tier(self) -> npt.NDArray[np.int8]:
        """Rank of the tier, 0 the fastest; -1 for pages that a policy may not move.

        Those are pages that are fixed in place, pages of pinned processes, and pages on a node of
        no tier.
        """
        return self._columns.tier

    @property
    def wear(self) -> npt.NDArray[np.uint8]:
        """What recent moves have added: ``MOVE_WEAR`` each, which fades."""
        return self._columns.wear

    @cached_property
    def movable(self) -> npt.NDArray[np.bool_]:
        """Whether a policy may move the page."""
        movable: npt.NDArray[np.bool_] = self.tier >= 0
        return movable

    @property
    def rate(self) -> npt.NDArray[np.float32]:
        """Accesses per second and 4 KiB page, times the priority of the process."""
        return self._rates.rate

    @property
    def support(self) -> npt.NDArray[np.float32]:
        """Number of samples behind ``rate``."""
        return self._rates.support

    @cached_property
    def process(self) -> npt.NDArray[np.int32]:
        """Index into ``processes``."""
        return np.repeat(self.chunks[0], np.diff(self._first))

    @cached_property
    def address(self) -> npt.NDArray[np.uint64]:
        """Address of the first byte."""
        return self._address(self.number)

    @cached_property
    def node(self) -> npt.NDArray[np.int8]:
        """Node id."""
        return self._node(self.number)

    @property
    def idle_ticks(self) -> npt.NDArray[np.int32]:
        """Ticks since the last sample, or since the page appeared if it was never sampled."""
        return self._idle.ticks

    @property
    def sampled(self) -> npt.NDArray[np.bool_]:
        """Whether the page was ever sampled."""
        return self._idle.sampled

    def take(self, rows: npt.NDArray[np.int64]) -> PageRows:
        """Return what a plan needs of some rows."""
        number = self._locate(rows)
        return PageRows(
            self.chunks[0][number // CHUNK_PAGES],
            self._address(number),
            self.size[rows].astype(np.int64),
            self._node(number).astype(np.int64),
            self.rate[rows],
        )

    def find(self, process: int, address: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the row of each address of a process, -1 where no page is resident."""
        first, columns = self._first, self._table.chunks.columns
        chunk = self._table.chunks.find(process, address).astype(np.int64)
        page = (address % np.uint64(CHUNK_BYTES) // np.uint64(PAGE_BYTES)).astype(np.int64)
        page[columns.huge[chunk]] = 0
        before = np.arange(CHUNK_PAGES) < page[:, None]
        resident = NODE_OF_CODE[columns.node[chunk].view(np.uint8)] >= 0
        row = first[chunk] + (resident & before).sum(axis=1)
        found = (chunk >= 0) & resident[np.arange(len(page)), page]
        return np.where(found, row, -1)

    def pages_by_node(self, nodes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return 4 KiB pages per process and node, shape ``(processes, nodes)``.

        First the pages that are neither fixed nor pinned, then all others.
        """
        movable, fixed = self._table.resident_pages(nodes)
        fixed[self._pinned] += movable[self._pinned]
        movable[self._pinned] = 0
        return movable, fixed

    @property
    def chunks(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint64]]:
        """Process and address of the chunks that store the pages; not for policies."""
        used, columns = self._table.chunks.used, self._table.chunks.columns
        return columns.process[:used], columns.address[:used]

    @cached_property
    def number(self) -> npt.NDArray[np.int64]:
        """Where pages are stored: row of the chunk times 512, plus position; not for policies."""
        return self._locate(np.arange(len(self)))

    def _locate(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        number = np.empty(len(rows), np.int64)
        columns = self._table.chunks.columns
        locate(rows, columns.huge, columns.node, self._first, number)
        return number

    def _address(self, number: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        page = (number & (CHUNK_PAGES - 1)).view(np.uint64)
        return self.chunks[1][number // CHUNK_PAGES] + page * np.uint64(PAGE_BYTES)

    def _node(self, number: npt.NDArray[np.int64]) -> npt.NDArray[np.int8]:
        code = self._table.chunks.columns.node.reshape(-1)[number]
        return NODE_OF_CODE[code.view(np.uint8)]

    @cached_property
    def _first(self) -> npt.NDArray[np.int64]:
        chunks = self._table.chunks
        return first_rows(chunks.used, chunks.columns)

    @cached_property
    def _columns(self) -> PageColumns:
        rows = len(self)
        columns = PageColumns(
            np.empty(rows, np.uint16), np.empty(rows, np.int8), np.empty(rows, np.uint8)
        )
        tiers = tier_of_code(self._tier_of_node)
        collect_pages(self._table.chunks.columns, self._first, self._pinned, tiers, columns)
        return columns

    @cached_property
    def _rates(self) -> PageRates:
        return self._table.rates(self._first)

    @cached_property
    def _idle(self) -> IdleAge:
        columns = self._table.chunks.columns
        return idle_age(columns.idle, columns.huge, self.number)
