# SPDX-License-Identifier: MIT
"""The resident pages of the tracked processes at one tick, as policies see them.

A view hides how heat is stored. Its columns are flat, have shape ``(n,)`` and are computed when
they are first read: a policy pays for those that it uses, and :meth:`PageView.take` gives all that
a plan needs for some rows alone. Row numbers are valid for one tick;
:class:`hmd.heat.page_state.PageState` keeps values per page across ticks, and
:meth:`PageView.find` finds pages again by their addresses.

A row is an extent of pages that is counted as one: a base page, a huge page, or what is
resident of a coarse chunk of 2 MiB. Policies read the number of pages from ``size`` and rely on
nothing else.

A view of a large table shows the candidates for moves (:mod:`hmd.heat.candidates`). Policies cannot
move pages that are not shown; ``unshown`` holds their totals. For moves that are no policy's, a
view shows the pages that must leave their node (:mod:`hmd.heat.evacuation`), without totals.

Costs about 4 ns per row; :mod:`hmd.heat.rates` states the cost of rates.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import zeros
from hmd.heat.candidates import Selection, TierCodes, UnshownTotals, select_rows
from hmd.heat.chunks import NEW, Chunks, TableRates, find_storage, idle_ticks
from hmd.heat.counting import add_accesses
from hmd.heat.geometry import CHUNK_PAGES
from hmd.heat.view_rows import (
    AskedRows,
    PageColumns,
    PageRates,
    count_rows,
    count_shown,
    gather_addresses,
    gather_pages,
    gather_rates,
    list_rows,
    tier_of_code,
    weigh_rows,
)
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Topology

if TYPE_CHECKING:
    from hmd.heat.windows import SampleHistory
    from hmd.sample.access_batch import AccessBatch


class ViewedTable(Protocol):
    """What a view reads of :class:`hmd.heat.table.HeatTable`."""

    chunks: Chunks
    history: SampleHistory
    cursor: npt.NDArray[np.int64]
    last_batch: AccessBatch

    @property
    def processes(self) -> tuple[ProcessId, ...]:
        """The tracked processes."""
        ...

    @property
    def loaded_latency_ns(self) -> npt.NDArray[np.float64]:
        """Mean latency of recent loads, by node id."""
        ...

    @property
    def unchanged_ticks(self) -> npt.NDArray[np.float64]:
        """Ticks since the last change of heat, by process."""
        ...

    @property
    def heat_lifetime_ticks(self) -> npt.NDArray[np.float64]:
        """Expected lifetime of heat, by process."""
        ...

    @property
    def sample_weights(self) -> npt.NDArray[np.float32]:
        """What each sample of ``last_batch`` counted for."""
        ...

    def rates(self) -> TableRates:
        """Return how hot pages are."""
        ...

    def resident_pages(self, nodes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return movable and unmovable pages per process and node."""
        ...


class PageRows(NamedTuple):
    """Some rows of a view; columns of shape ``(k,)`` as :class:`PageView` has them.

    The base pages of a row that ``moves_as_base_pages`` move one by one.
    """

    process: npt.NDArray[np.int32]
    address: npt.NDArray[np.uint64]
    size: npt.NDArray[np.int64]
    node: npt.NDArray[np.int64]
    rate: npt.NDArray[np.float32]
    moves_as_base_pages: npt.NDArray[np.bool_]


class PageView:
    """The pages of a heat table; :meth:`hmd.heat.table.HeatTable.view` makes one.

    It is valid until the table next changes.
    """

    def __init__(
        self,
        table: ViewedTable,
        topology: Topology,
        pinned: npt.NDArray[np.bool_] | None = None,
        max_rows: int | None = None,
        rows: npt.NDArray[np.int64] | None = None,
        extra_rows: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Take tiers from ``topology``; pages of ``pinned`` processes are not movable.

        If the table has more than ``2 * max_rows`` rows, only ``max_rows`` candidates are shown,
        plus ``extra_rows``; with ``rows``, only these. Both are storage indexes.
        """
        self._table = table
        self._max_rows, self._chosen, self._extra_rows = max_rows, rows, extra_rows
        self._by_node: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = {}
        self._pinned = np.zeros(len(table.processes), np.bool_) if pinned is None else pinned
        self._tier_of_node = np.full(max(len(topology.latency_ns), 1), -1, np.int8)
        for tier, nodes in enumerate(topology.tiers):
            self._tier_of_node[list(nodes)] = tier

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.storage_index)

    @property
    def processes(self) -> tuple[ProcessId, ...]:
        """The tracked processes."""
        return self._table.processes

    @property
    def tick(self) -> int:
        """How often the heat table was updated."""
        return self._table.history.tick

    @property
    def process_rate(self) -> npt.NDArray[np.float64]:
        """Accesses per second of each process, without its priority; shape ``(processes,)``."""
        return self._table.history.rate

    @property
    def unchanged_ticks(self) -> npt.NDArray[np.float64]:
        """For how many ticks heat of each process has not changed, 0 where it did in the last one.

        Infinite where it has not changed yet; shape ``(processes,)``.
        """
        return self._table.unchanged_ticks

    @property
    def heat_lifetime_ticks(self) -> npt.NDArray[np.float64]:
        """For how many ticks heat of each process is expected to last, by its changes so far.

        Infinite where it has not changed; shape ``(processes,)``.
        """
        return self._table.heat_lifetime_ticks

    @cached_property
    def process_samples(self) -> npt.NDArray[np.int64]:
        """Number of samples of each process in the last tick, shape ``(processes,)``."""
        slot = self._table.last_batch.process
        return np.bincount(slot[slot >= 0], minlength=len(self.processes))[: len(self.processes)]

    @property
    def loaded_latency_ns(self) -> npt.NDArray[np.float64]:
        """Mean latency of each node in recent samples, by node id; near 0 where not measured."""
        return self._table.loaded_latency_ns

    @property
    def size(self) -> npt.NDArray[np.uint16]:
        """Number of base pages."""
        return self._columns.size

    @property
    def tier(self) -> npt.NDArray[np.int8]:
        """Rank of the tier, 0 the fastest; -1 for pages that a policy may not move.

        Those are unmovable pages, pages of pinned processes, and pages on a node of no tier.
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
        """Accesses per second and base page, times the priority of the process."""
        return self._rates.rate

    @cached_property
    def accesses(self) -> npt.NDArray[np.float64]:
        """Accesses per second of each process, times its priority; shape ``(processes,)``.

        The sums of ``rate``, of the pages that are shown and of those that are not.
        """
        total: npt.NDArray[np.float64] = self.unshown.accesses.sum(axis=1)
        add_accesses(self.process, self.size, self.rate, total)
        return total

    @property
    def effective_samples(self) -> npt.NDArray[np.float32]:
        """Effective number of samples behind ``rate``."""
        return self._rates.effective_samples

    @cached_property
    def tick_samples(self) -> npt.NDArray[np.float32]:
        """Number of samples in the last tick.

        Costs about 50 ns per sample and 2 ns per page of the table.
        """
        batch = self._table.last_batch
        index = self._storage_of(batch.process, batch.address)
        count = np.bincount(index[index >= 0], minlength=self._first_chunk + self.chunks.used)
        return count[self.storage_index].astype(np.float32)

    @cached_property
    def process(self) -> npt.NDArray[np.int32]:
        """Index into ``processes``."""
        return self.chunks.columns.process[self._columns.chunk]

    @cached_property
    def address(self) -> npt.NDArray[np.uint64]:
        """Address of the first byte."""
        return self._address(self.storage_index, self._columns.chunk)

    @property
    def node(self) -> npt.NDArray[np.int8]:
        """Node id."""
        return self._columns.node

    @cached_property
    def idle_ticks(self) -> npt.NDArray[np.int32]:
        """Ticks since the last sample, or since the page appeared if it was never sampled."""
        return idle_ticks(self._columns.idle)

    @property
    def sampled(self) -> npt.NDArray[np.bool_]:
        """Whether the page was ever sampled."""
        return self._columns.idle < NEW

    @property
    def unshown(self) -> UnshownTotals:
        """Totals of the movable pages that are not shown."""
        return self._shown[1]

    def take(self, rows: npt.NDArray[np.int64]) -> PageRows:
        """Return what a plan needs of some rows."""
        index, chunk = self.storage_index[rows], self._columns.chunk[rows]
        columns = self.chunks.columns
        return PageRows(
            columns.process[chunk],
            self._address(index, chunk),
            self.size[rows].astype(np.int64),
            self.node[rows].astype(np.int64),
            self.rate[rows],
            (index >= self._first_chunk) & ~columns.huge[chunk],
        )

    def find(self, process: int, address: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the row of each address of a process, -1 where none is shown."""
        if not len(self):
            return np.full(len(address), -1, np.int64)
        index = self.storage_index_at(process, address)
        order = self._order
        at = np.minimum(np.searchsorted(self.storage_index[order], index), len(order) - 1)
        return np.where(self.storage_index[order[at]] == index, order[at], -1)

    def tick_share_at(
        self, process: npt.NDArray[np.int32], address: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.float64]:
        """Return the share of its process's accesses in the last tick that each row had.

        A row is given by the slot of its process and an address in it; columns of shape ``(k,)``.
        By samples; also of rows that are not shown. Costs what hmd.heat.view_rows states, and
        50 ns per address.
        """
        index = self._storage_of(process, address)
        batch = self._table.last_batch
        slots = np.where(index >= 0, process, -1).astype(np.int32)
        rows = AskedRows(slots, address, index >= self._first_chunk)
        total, weight = np.zeros(len(self.processes)), np.empty(len(address))
        weigh_rows(batch.process, batch.address, self._table.sample_weights, rows, total, weight)
        of_process = total[process]
        return np.divide(weight, of_process, out=weight, where=of_process > 0)

    def pages_by_node(self, nodes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return base pages per process and node, shape ``(processes, nodes)``.

        First the pages that are shown and movable, then all others.
        """
        if nodes not in self._by_node:
            self._by_node[nodes] = self._count_by_node(nodes)
        movable, fixed = self._by_node[nodes]
        return movable.copy(), fixed.copy()

    @property
    def chunks(self) -> Chunks:
        """Where pages are stored; not for policies."""
        return self._table.chunks

    @property
    def storage_index(self) -> npt.NDArray[np.int64]:
        """Where rows are stored (:mod:`hmd.heat.view_rows`); not for policies."""
        return self._shown[0]

    def storage_index_at(
        self, process: int, address: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.int64]:
        """Return the storage index of each address of a process, -1 where no page is.

        Also of pages that are not shown; not for policies.
        """
        return self._storage_of(np.full(len(address), process, np.int32), address)

    @property
    def _first_chunk(self) -> int:
        """The storage index of the first chunk that is one row."""
        return self.chunks.page_slots * CHUNK_PAGES

    def _storage_of(
        self, process: npt.NDArray[np.int32], address: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.int64]:
        index = np.empty(len(address), np.int64)
        find_storage(process, address, self.chunks.index, self.chunks.columns, index)
        return index

    def _count_by_node(self, nodes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        movable, fixed = self._table.resident_pages(nodes)
        fixed[self._pinned] += movable[self._pinned]
        movable[self._pinned] = 0
        if self._is_partial:
            every = movable + fixed
            movable = np.zeros_like(every)
            count_shown(self.process, self._columns, movable)
            fixed = every - movable
        return movable, fixed

    def _address(
        self, storage_index: npt.NDArray[np.int64], chunk: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint64]:
        address = np.empty(len(storage_index), np.uint64)
        gather_addresses(storage_index, chunk, self.chunks.columns, address)
        return address

    @cached_property
    def _table_rows(self) -> int:
        """The number of rows of the whole table."""
        return count_rows(self.chunks.used, self.chunks.columns)

    @property
    def _is_partial(self) -> bool:
        """Whether some rows are not shown."""
        if self._chosen is not None:
            return len(self._chosen) < self._table_rows
        return self._max_rows is not None and self._table_rows > 2 * self._max_rows

    @cached_property
    def _shown(self) -> tuple[npt.NDArray[np.int64], UnshownTotals]:
        chunks = self.chunks
        unshown = zeros(UnshownTotals, len(self.processes), len(self._tier_of_node))
        if self._chosen is not None:
            return self._chosen, unshown
        if not self._is_partial:
            index = np.empty(self._table_rows, np.int64)
            return index[: list_rows(chunks.used, chunks.columns, index)], unshown
        selection = Selection(np.empty(self._max_rows or 0, np.int64), unshown, self._table.cursor)
        tiers = TierCodes(self._pinned, tier_of_code(self._tier_of_node))
        index = select_rows(chunks.used, chunks.columns, self._table.rates(), tiers, selection)
        if self._extra_rows is not None:
            index = np.concatenate([index, np.setdiff1d(self._extra_rows, index)])
        return index, unshown

    @cached_property
    def _order(self) -> npt.NDArray[np.intp]:
        return np.argsort(self.storage_index)

    @cached_property
    def _columns(self) -> PageColumns:
        columns, tiers = zeros(PageColumns, len(self)), tier_of_code(self._tier_of_node)
        gather_pages(self.storage_index, self.chunks.columns, self._pinned, tiers, columns)
        return columns

    @cached_property
    def _rates(self) -> PageRates:
        rates = zeros(PageRates, len(self))
        gather_rates(self.storage_index, self._table.rates(), rates)
        return rates
