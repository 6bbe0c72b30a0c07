"""The resident pages of the tracked processes at one tick, as policies see them.

A view hides how heat is stored. Its columns are flat, have shape ``(n,)`` and are computed when
they are first read: a policy pays for those that it uses, and :meth:`PageView.take` gives all that
a plan needs for some rows alone. Row numbers are valid for one tick;
:class:`hmd.heat.view.page_state.PageState` keeps values per page across ticks, and
:meth:`PageView.find` finds pages again by their addresses.

A row is an extent of pages that is counted as one: 4 KiB, a huge page of 2 MiB, or what is
resident of a chunk of 2 MiB that is counted as a whole. Policies read the number of pages from
``size`` and rely on nothing else.

A view of a large table shows the rows that a plan may be about
(:mod:`hmd.heat.view.row_selection`); to a policy the other pages are as good as fixed, and
``beyond`` has their sums. For moves that are no policy's, it shows the pages that are to leave
where they are (:mod:`hmd.heat.view.leaving_rows`), without sums.

Costs about 4 ns per row; :mod:`hmd.heat.rates.posterior_rates` states the cost of rates.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.heat.chunk_index import number_addresses
from hmd.heat.chunks import Chunks
from hmd.heat.geometry import CHUNK_PAGES
from hmd.heat.idle_age import IdleAge, idle_age
from hmd.heat.view.page_columns import (
    PageColumns,
    PageRates,
    count_rows,
    count_shown,
    gather_addresses,
    gather_pages,
    gather_rates,
    list_rows,
    tier_of_code,
)
from hmd.heat.view.row_selection import Selection, select_rows
from hmd.heat.view.row_sides import Beyond, TierCodes
from hmd.heat.view.sampled_rows import AskedRows, weigh_rows
from hmd.machine.nodes.topology import Topology
from hmd.machine.process_id import ProcessId

if TYPE_CHECKING:
    from hmd.heat.heat_table import HeatTable


class PageRows(NamedTuple):
    """Some rows of a view; columns of shape ``(k,)`` as :class:`PageView` has them.

    The 4 KiB pages of a row that is ``apart`` move one by one.
    """

    process: npt.NDArray[np.int32]
    address: npt.NDArray[np.uint64]
    size: npt.NDArray[np.int64]
    node: npt.NDArray[np.int64]
    rate: npt.NDArray[np.float32]
    apart: npt.NDArray[np.bool_]


class PageView:
    """The pages of a heat table; :meth:`hmd.heat.heat_table.HeatTable.view` makes one.

    It is valid until the table next changes.
    """

    def __init__(
        self,
        table: HeatTable,
        topology: Topology,
        pinned: npt.NDArray[np.bool_] | None = None,
        rows_most: int | None = None,
        number: npt.NDArray[np.int64] | None = None,
        also: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Take tiers from ``topology``; pages of ``pinned`` processes are not movable.

        More than twice ``rows_most`` rows are not shown, but so many of them, and those of the
        numbers ``also``; with ``number``, the rows of these numbers.
        """
        self._table = table
        self._rows_most, self._chosen, self._also = rows_most, number, also
        self._by_node: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = {}
        self._pinned = np.zeros(len(table.processes), np.bool_) if pinned is None else pinned
        self._tier_of_node = np.full(max(len(topology.latency_ns), 1), -1, np.int8)
        for tier, nodes in enumerate(topology.tiers):
            self._tier_of_node[list(nodes)] = tier

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.number)

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
    def lasting_ticks(self) -> npt.NDArray[np.float64]:
        """For how many ticks heat of each process is expected to last, by its changes so far.

        Infinite where it has not changed; shape ``(processes,)``.
        """
        return self._table.lasting_ticks

    @cached_property
    def process_samples(self) -> npt.NDArray[np.int64]:
        """Number of samples of each process in the last tick, shape ``(processes,)``."""
        slot = self._table.last_batch.process
        return np.bincount(slot[slot >= 0], minlength=len(self.processes))[: len(self.processes)]

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
    def tick_samples(self) -> npt.NDArray[np.float32]:
        """Number of samples in the last tick.

        Costs about 50 ns per sample and 2 ns per page of the table.
        """
        number = self._sampled
        count = np.bincount(number[number >= 0], minlength=self._wholes + self.chunks.used)
        return count[self.number].astype(np.float32)

    @cached_property
    def process(self) -> npt.NDArray[np.int32]:
        """Index into ``processes``."""
        return self.chunks.columns.process[self._columns.chunk]

    @cached_property
    def address(self) -> npt.NDArray[np.uint64]:
        """Address of the first byte."""
        return self._address(self.number, self._columns.chunk)

    @property
    def node(self) -> npt.NDArray[np.int8]:
        """Node id."""
        return self._columns.node

    @property
    def idle_ticks(self) -> npt.NDArray[np.int32]:
        """Ticks since the last sample, or since the page appeared if it was never sampled."""
        return self._idle.ticks

    @property
    def sampled(self) -> npt.NDArray[np.bool_]:
        """Whether the page was ever sampled."""
        return self._idle.sampled

    @property
    def beyond(self) -> Beyond:
        """Sums over the movable pages that are not shown."""
        return self._shown[1]

    def take(self, rows: npt.NDArray[np.int64]) -> PageRows:
        """Return what a plan needs of some rows."""
        number, chunk = self.number[rows], self._columns.chunk[rows]
        columns = self.chunks.columns
        return PageRows(
            columns.process[chunk],
            self._address(number, chunk),
            self.size[rows].astype(np.int64),
            self.node[rows].astype(np.int64),
            self.rate[rows],
            (number >= self._wholes) & ~columns.huge[chunk],
        )

    def find(self, process: int, address: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the row of each address of a process, -1 where none is shown."""
        if not len(self):
            return np.full(len(address), -1, np.int64)
        number = self.number_at(process, address)
        order = self._order
        at = np.minimum(np.searchsorted(self.number[order], number), len(order) - 1)
        return np.where(self.number[order[at]] == number, order[at], -1)

    def tick_share_at(
        self, process: npt.NDArray[np.int32], address: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.float64]:
        """Return the part of its process's accesses in the last tick that each row had.

        A row is given by the slot of its process and an address in it; columns of shape ``(k,)``.
        By samples; also of rows that are not shown. Costs what :mod:`hmd.heat.view.sampled_rows`
        does, and 50 ns per address.
        """
        number = self._numbers(process, address)
        batch = self._table.last_batch
        slots = np.where(number >= 0, process, -1).astype(np.int32)
        rows = AskedRows(slots, address, number >= self._wholes)
        total, had = np.zeros(len(self.processes)), np.empty(len(address))
        weigh_rows(batch.process, batch.address, self._table.sample_weights, rows, total, had)
        of_process = total[process]
        return np.divide(had, of_process, out=had, where=of_process > 0)

    def pages_by_node(self, nodes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return 4 KiB pages per process and node, shape ``(processes, nodes)``.

        First the pages that are shown and neither fixed nor pinned, then all others.
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
    def number(self) -> npt.NDArray[np.int64]:
        """Where rows are stored, as hmd.heat.view.page_columns numbers them; not for policies."""
        return self._shown[0]

    @property
    def _wholes(self) -> int:
        """The number of the first chunk that is one row."""
        return len(self.chunks.columns.owner) * CHUNK_PAGES

    def number_at(self, process: int, address: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the number of the row at each address of a process, -1 where no page is.

        Also of pages that are not shown; not for policies.
        """
        return self._numbers(np.full(len(address), process, np.int32), address)

    def _numbers(
        self, process: npt.NDArray[np.int32], address: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.int64]:
        number = np.empty(len(address), np.int64)
        number_addresses(process, address, self.chunks.index, self.chunks.columns, number)
        return number

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
        self, number: npt.NDArray[np.int64], chunk: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint64]:
        address = np.empty(len(number), np.uint64)
        gather_addresses(number, chunk, self.chunks.columns, address)
        return address

    @cached_property
    def _rows(self) -> int:
        """The number of rows of the whole table."""
        return count_rows(self.chunks.used, self.chunks.columns)

    @property
    def _is_partial(self) -> bool:
        """Whether some rows are not shown."""
        if self._chosen is not None:
            return len(self._chosen) < self._rows
        return self._rows_most is not None and self._rows > 2 * self._rows_most

    @cached_property
    def _shown(self) -> tuple[npt.NDArray[np.int64], Beyond]:
        chunks = self.chunks
        beyond = Beyond.none(len(self.processes), len(self._tier_of_node))
        if self._chosen is not None:
            return self._chosen, beyond
        if not self._is_partial:
            number = np.empty(self._rows, np.int64)
            return number[: list_rows(chunks.used, chunks.columns, number)], beyond
        number = np.empty(self._rows_most or 0, np.int64)
        selection = Selection(number, beyond, self._table.cursor)
        tiers = TierCodes(self._pinned, tier_of_code(self._tier_of_node))
        rates = self._table.rates()
        number = select_rows(chunks.used, chunks.columns, rates, tiers, selection)
        if self._also is not None:
            number = np.concatenate([number, np.setdiff1d(self._also, number)])
        return number, beyond

    @cached_property
    def _sampled(self) -> npt.NDArray[np.int64]:
        """The number of the row of each sample of the last tick, -1 where no page is."""
        batch = self._table.last_batch
        return self._numbers(batch.process, batch.address)

    @cached_property
    def _order(self) -> npt.NDArray[np.intp]:
        return np.argsort(self.number)

    @cached_property
    def _columns(self) -> PageColumns:
        columns = PageColumns.empty(len(self))
        tiers = tier_of_code(self._tier_of_node)
        gather_pages(self.number, self.chunks.columns, self._pinned, tiers, columns)
        return columns

    @cached_property
    def _rates(self) -> PageRates:
        rates = PageRates(np.empty(len(self), np.float32), np.empty(len(self), np.float32))
        gather_rates(self.number, self._table.rates(), rates)
        return rates

    @cached_property
    def _idle(self) -> IdleAge:
        return idle_age(self._columns.idle)
