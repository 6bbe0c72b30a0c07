# SPDX-License-Identifier: MIT
"""The resident pages of the tracked processes at one tick, as policies see them.

A view hides how heat is stored. Its columns are flat, have shape ``(n,)`` and are computed when
they are first read: a policy pays for those that it uses, and :meth:`PageView.take` gives all that
a plan needs for some rows alone. Row numbers are valid for one tick;
:class:`hmd.heat.page_state.PageState` keeps values per page across ticks.

A row is an extent of pages that is counted as one: a base page, a huge page, or what is resident of
a coarse chunk of 2 MiB. Policies read the number of pages from ``size`` and rely on nothing else.

A view of a large table shows the candidates for moves (:mod:`hmd.heat.candidates`), and has the
totals of all others in ``unshown``. For moves that are no policy's, a view shows the pages that
must leave their node, without totals.

Each row has a storage index. A base page: ``page_slot * 512 + page``. A chunk that is one row,
since it is a huge page or coarse: ``page_slots * 512 + chunk``. Absent pages have no row. Costs
about 1 ns per row to list and 3 ns to gather; :mod:`hmd.heat.rates` states the cost of rates.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import (
    Bools,
    Float32s,
    Float64s,
    Int8s,
    Int32s,
    Int32View,
    Int64Plane,
    Int64s,
    Uint8s,
    Uint16s,
    Uint64s,
    Uint64View,
    inline,
    kernel,
    zeros,
)
from hmd.base.units import PAGE_BYTES, PAGE_SHIFT
from hmd.heat.candidates import Selection, TierCodes, UnshownTotals, select_rows
from hmd.heat.chunks import (
    ADDRESS_BITS,
    EMPTY,
    NEW,
    ChunkColumns,
    Chunks,
    TableRates,
    find_position,
    find_storage,
    huge_page_idle,
    idle_ticks,
    is_mixed,
    node_of,
)
from hmd.heat.counting import add_accesses
from hmd.heat.settings import ABSENT, CHUNK_BYTES, CHUNK_PAGES
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Topology

if TYPE_CHECKING:
    from hmd.heat.table import HeatTable

_CHUNK_MASK: Final = np.uint64(CHUNK_BYTES - 1)
# A key has a bit for rows that are chunks, and the page number.
_PAGE_BITS: Final = ADDRESS_BITS - PAGE_SHIFT


class PageColumns(NamedTuple):
    """What a view has of every page, apart from heat; shape ``(n,)``.

    ``chunk`` is the row of its chunk. ``size`` is in base pages; ``tier`` is -1 for pages that are
    not movable, ``node`` where a page lies, ``idle`` as hmd.heat.chunks encodes it.
    """

    chunk: Int64s
    size: Uint16s
    tier: Int8s
    node: Int8s
    wear: Uint8s
    idle: Uint8s


class PageRates(NamedTuple):
    """How hot pages are; shape ``(n,)``. Units are those of :class:`hmd.heat.chunks.TableRates`."""

    rate: Float32s
    effective_samples: Float32s


class AskedRows(NamedTuple):
    """Rows whose samples are summed; shape ``(k,)``.

    ``process``: slot, negative to skip the row. ``address``: first byte. ``whole``: whether the row
    has all samples of its chunk of 2 MiB.
    """

    process: Int32s
    address: Uint64s
    whole: Bools


@kernel
def count_rows(chunks: int, columns: ChunkColumns) -> int:
    """Return the number of rows that all pages of the table take."""
    rows = 0
    for chunk in range(chunks):
        resident = int(columns.resident[chunk])
        one = int(columns.huge[chunk]) | int(columns.page_slot[chunk] < 0)
        rows += min(resident, 1) if one else resident
    return rows


@kernel
def count_shown(process: Int32s, pages: PageColumns, count: Int64Plane) -> None:
    """Add the base pages of movable rows to ``count``, shape ``(processes, nodes)``."""
    for row in range(len(process)):
        node = pages.node[row]
        if pages.tier[row] >= 0 and node < count.shape[1]:
            count[process[row], node] += pages.size[row]


@kernel
def list_rows(chunks: int, columns: ChunkColumns, storage_index: Int64s) -> int:
    """Fill the storage indexes of all rows, by chunk and page; return how many there are."""
    end = 0
    first_chunk = len(columns.owner) * CHUNK_PAGES
    for chunk in range(chunks):
        slot = columns.page_slot[chunk]
        if columns.resident[chunk] == 0:
            continue
        if slot < 0 or columns.huge[chunk]:
            storage_index[end] = first_chunk + chunk
            end += 1
            continue
        for i in range(CHUNK_PAGES):
            if columns.node[slot, i] != ABSENT:
                storage_index[end] = slot * CHUNK_PAGES + i
                end += 1
    return end


@kernel
def gather_pages(
    storage_index: Int64s,
    columns: ChunkColumns,
    pinned: Bools,
    tier_of_code: Int8s,
    pages: PageColumns,
) -> None:
    """Fill ``pages``; ``pinned`` is by process, ``tier_of_code`` by byte, -1 if unmovable."""
    first_chunk = len(columns.owner) * CHUNK_PAGES
    for at in range(len(storage_index)):
        stays = False
        if storage_index[at] < first_chunk:
            slot, page = storage_index[at] // CHUNK_PAGES, storage_index[at] % CHUNK_PAGES
            chunk = np.int64(columns.owner[slot])
            code, size = columns.node[slot, page], 1
            pages.wear[at], pages.idle[at] = columns.wear[slot, page], columns.idle[slot, page]
        else:
            chunk = storage_index[at] - first_chunk
            slot = np.int64(columns.page_slot[chunk])
            if slot < 0:
                code = columns.chunk_node[chunk]
                size = columns.resident[chunk] - columns.minority_pages[chunk]
                pages.wear[at], pages.idle[at] = (
                    columns.chunk_wear[chunk],
                    columns.chunk_idle[chunk],
                )
                stays = is_mixed(columns.minority_pages[chunk], columns.resident[chunk])
            else:
                code, size = columns.node[slot, 0], CHUNK_PAGES
                pages.wear[at], pages.idle[at] = (
                    columns.wear[slot, 0],
                    huge_page_idle(slot, columns),
                )
        stays |= pinned[columns.process[chunk]]
        pages.chunk[at], pages.size[at] = chunk, size
        pages.tier[at] = -1 if stays else tier_of_code[int(code) & 255]
        pages.node[at] = node_of(code)


@kernel
def gather_addresses(
    storage_index: Int64s, chunk: Int64s, columns: ChunkColumns, address: Uint64s
) -> None:
    """Fill ``address`` with that of the first byte of each row, which is in ``chunk``."""
    first_chunk = len(columns.owner) * CHUNK_PAGES
    for at in range(len(storage_index)):
        page = storage_index[at] & (CHUNK_PAGES - 1) if storage_index[at] < first_chunk else 0
        address[at] = columns.address[chunk[at]] + np.uint64(page) * np.uint64(PAGE_BYTES)


@kernel
def gather_rates(storage_index: Int64s, table: TableRates, pages: PageRates) -> None:
    """Fill ``pages`` from the rates of the table."""
    rate, samples = table.page_rate.reshape(-1), table.page_samples.reshape(-1)
    first_chunk = len(rate)
    for at in range(len(storage_index)):
        if storage_index[at] < first_chunk:
            pages.rate[at] = rate[storage_index[at]]
            pages.effective_samples[at] = samples[storage_index[at]]
        else:
            pages.rate[at] = table.chunk_rate[storage_index[at] - first_chunk]
            pages.effective_samples[at] = table.chunk_samples[storage_index[at] - first_chunk]


@inline
def _row_key(slot: np.int64, address: np.uint64, whole: bool) -> np.int64:
    first = address & ~_CHUNK_MASK if whole else address
    page = np.int64(first >> np.uint64(PAGE_SHIFT))
    return (((slot << _PAGE_BITS) | page) << 1) | np.int64(whole)


@kernel
def weigh_rows(
    process: Int32View,
    address: Uint64View,
    weight: Float32s,
    rows: AskedRows,
    totals: Float64s,
    row_weight: Float64s,
) -> None:
    """Fill ``row_weight``, shape ``(k,)``, and add to ``totals``, shape ``(processes,)``.

    ``process``, ``address`` and ``weight`` are of samples. A row may be asked for several times.
    Rows are in a hash table of their own, which the cache holds: 5 ns per sample and 30 ns per row.
    """
    size = 64
    while size < 2 * len(row_weight):
        size *= 2
    # Keys at even positions, as hmd.heat.chunks looks them up; the sum of each is at half of that.
    keys, sums = np.full(2 * size, EMPTY, np.int64), np.zeros(size, np.float64)
    for row in range(len(row_weight)):
        if rows.process[row] >= 0:
            key = _row_key(np.int64(rows.process[row]), rows.address[row], rows.whole[row])
            keys[find_position(keys, key)] = key
    for i in range(len(weight)):
        slot = np.int64(process[i])
        if slot < 0 or slot >= len(totals):
            continue
        totals[slot] += weight[i]
        if address[i] >> np.uint64(ADDRESS_BITS):
            continue
        for whole in (False, True):
            at = find_position(keys, _row_key(slot, address[i], whole))
            if keys[at] != EMPTY:
                sums[at // 2] += weight[i]
    for row in range(len(row_weight)):
        row_weight[row] = 0.0
        if rows.process[row] >= 0:
            key = _row_key(np.int64(rows.process[row]), rows.address[row], rows.whole[row])
            row_weight[row] = sums[find_position(keys, key) // 2]


class PageRows(NamedTuple):
    """Some rows of a view; columns of shape ``(k,)`` as :class:`PageView` has them.

    The base pages of a row that ``moves_as_base_pages`` move one by one.
    """

    process: Int32s
    address: Uint64s
    size: Int64s
    node: Int64s
    rate: Float32s
    moves_as_base_pages: Bools


class PageView:
    """The pages of a heat table, as it is until it next changes."""

    def __init__(
        self,
        table: HeatTable,
        topology: Topology,
        pinned: Bools | None = None,
        max_rows: int | None = None,
        rows: Int64s | None = None,
        extra_rows: Int64s | None = None,
    ) -> None:
        """Take tiers from ``topology``; pages of ``pinned`` processes, by slot, are not movable.

        If the table has more than ``2 * max_rows`` rows, only ``max_rows`` candidates are shown,
        plus ``extra_rows``; with ``rows``, only these. Both are storage indexes.
        """
        self._table = table
        self._max_rows, self._chosen, self._extra_rows = max_rows, rows, extra_rows
        self._by_node: dict[int, tuple[Int64Plane, Int64Plane]] = {}
        self._pinned = np.zeros(len(table.processes), np.bool_) if pinned is None else pinned
        self._nodes = max(len(topology.latency_ns), 1)
        # By the byte of each code of a ``node`` column; -1 of those that are unmovable.
        self._tier_of_code = np.full(256, -1, np.int8)
        for tier, nodes in enumerate(topology.tiers):
            self._tier_of_code[list(nodes)] = tier

    def __len__(self) -> int:
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
    def process_rate(self) -> Float64s:
        """Accesses per second of each process, without its priority; shape ``(processes,)``."""
        return self._table.history.rate

    @property
    def unchanged_ticks(self) -> Float64s:
        """Ticks since heat of each process has changed, infinite if never; ``(processes,)``."""
        return self._table.changes.unchanged_ticks(self.tick)

    @property
    def heat_lifetime_ticks(self) -> Float64s:
        """Ticks for which heat is expected to last, by process; infinite if it never changed."""
        return self._table.changes.heat_lifetime_ticks(self.tick)

    @cached_property
    def process_samples(self) -> Int64s:
        """Number of samples of each process in the last tick, shape ``(processes,)``."""
        slot = self._table.last_batch.process
        return np.bincount(slot[slot >= 0], minlength=len(self.processes))[: len(self.processes)]

    @property
    def loaded_latency_ns(self) -> Float64s:
        """Mean latency of each node in recent samples, by node id; near 0 where not measured."""
        return self._table.loaded_latency_ns

    @property
    def size(self) -> Uint16s:
        """Number of base pages."""
        return self._columns.size

    @property
    def tier(self) -> Int8s:
        """Rank of the tier, 0 the fastest; -1 for pages that a policy may not move.

        Those are unmovable, of pinned processes, or on a node of no tier.
        """
        return self._columns.tier

    @property
    def wear(self) -> Uint8s:
        """What recent moves have added: ``MOVE_WEAR`` each, which fades."""
        return self._columns.wear

    @cached_property
    def movable(self) -> Bools:
        """Whether a policy may move the page."""
        movable: Bools = self.tier >= 0
        return movable

    @property
    def rate(self) -> Float32s:
        """Accesses per second and base page, times the priority of the process."""
        return self._rates.rate

    @cached_property
    def accesses(self) -> Float64s:
        """Accesses per second of each process, also of rows not shown, times its priority."""
        total: Float64s = self.unshown.accesses.sum(axis=1)
        add_accesses(self.process, self.size, self.rate, total)
        return total

    @property
    def effective_samples(self) -> Float32s:
        """Effective number of samples behind ``rate``."""
        return self._rates.effective_samples

    @cached_property
    def tick_samples(self) -> Float32s:
        """Samples in the last tick; about 50 ns per sample and 2 ns per page of the table."""
        batch = self._table.last_batch
        index = self._storage_of(batch.process, batch.address)
        count = np.bincount(index[index >= 0], minlength=self._first_chunk + self.chunks.used)
        return count[self.storage_index].astype(np.float32)

    @cached_property
    def process(self) -> Int32s:
        """Index into ``processes``."""
        return self.chunks.columns.process[self._columns.chunk]

    @cached_property
    def address(self) -> Uint64s:
        """Address of the first byte."""
        return self._address(self.storage_index, self._columns.chunk)

    @property
    def node(self) -> Int8s:
        """Node id."""
        return self._columns.node

    @cached_property
    def idle_ticks(self) -> Int32s:
        """Ticks since the last sample, or since the page appeared if it was never sampled."""
        return idle_ticks(self._columns.idle)

    @property
    def sampled(self) -> Bools:
        """Whether the page was ever sampled."""
        return self._columns.idle < NEW

    @property
    def unshown(self) -> UnshownTotals:
        """Totals of the movable pages that are not shown."""
        return self._shown[1]

    def take(self, rows: Int64s) -> PageRows:
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

    def find(self, process: int, address: Uint64s) -> Int64s:
        """Return the row of each address of a process, -1 where none is shown."""
        if not len(self):
            return np.full(len(address), -1, np.int64)
        index = self.storage_index_at(process, address)
        order = self._order
        at = np.minimum(np.searchsorted(self.storage_index[order], index), len(order) - 1)
        return np.where(self.storage_index[order[at]] == index, order[at], -1)

    def tick_share_at(self, process: Int32s, address: Uint64s) -> Float64s:
        """Return the share of its process's sampled accesses in the last tick that each row had.

        A row, shown or not, is given by the slot of its process and an address in it; shape
        ``(k,)``. Costs 50 ns per address and what :func:`weigh_rows` does.
        """
        index = self._storage_of(process, address)
        batch = self._table.last_batch
        slots = np.where(index >= 0, process, -1).astype(np.int32)
        rows = AskedRows(slots, address, index >= self._first_chunk)
        total, weight = np.zeros(len(self.processes)), np.empty(len(address))
        weigh_rows(batch.process, batch.address, self._table.counted.weight, rows, total, weight)
        of_process = total[process]
        return np.divide(weight, of_process, out=weight, where=of_process > 0)

    def samples_of(self, process: int) -> tuple[Uint64s, Float64s]:
        """Return the samples of a process in the last tick: addresses, and accesses of each."""
        of_process = self._table.last_batch.process == process
        weight = self._table.counted.weight[of_process].astype(np.float64)
        return self._table.last_batch.address[of_process], weight

    def pages_by_node(self, nodes: int) -> tuple[Int64Plane, Int64Plane]:
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
    def storage_index(self) -> Int64s:
        """Where rows are stored (:mod:`hmd.heat.view`); not for policies."""
        return self._shown[0]

    def storage_index_at(self, process: int, address: Uint64s) -> Int64s:
        """Return the storage index at addresses, also of rows not shown; not for policies."""
        return self._storage_of(np.full(len(address), process, np.int32), address)

    @property
    def _first_chunk(self) -> int:
        """The storage index of the first chunk that is one row."""
        return self.chunks.page_slots * CHUNK_PAGES

    def _storage_of(self, process: Int32s, address: Uint64s) -> Int64s:
        index = np.empty(len(address), np.int64)
        find_storage(process, address, self.chunks.index, self.chunks.columns, index)
        return index

    def _count_by_node(self, nodes: int) -> tuple[Int64Plane, Int64Plane]:
        movable, fixed = self._table.resident_pages(nodes)
        fixed[self._pinned] += movable[self._pinned]
        movable[self._pinned] = 0
        if self._is_partial:
            every = movable + fixed
            movable = np.zeros_like(every)
            count_shown(self.process, self._columns, movable)
            fixed = every - movable
        return movable, fixed

    def _address(self, storage_index: Int64s, chunk: Int64s) -> Uint64s:
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
    def _shown(self) -> tuple[Int64s, UnshownTotals]:
        chunks = self.chunks
        unshown = zeros(UnshownTotals, len(self.processes), self._nodes)
        if self._chosen is not None:
            return self._chosen, unshown
        if not self._is_partial:
            index = np.empty(self._table_rows, np.int64)
            return index[: list_rows(chunks.used, chunks.columns, index)], unshown
        selection = Selection(np.empty(self._max_rows or 0, np.int64), unshown, self._table.cursor)
        tiers = TierCodes(self._pinned, self._tier_of_code)
        index = select_rows(chunks.used, chunks.columns, self._table.rates(), tiers, selection)
        if self._extra_rows is not None:
            index = np.concatenate([index, np.setdiff1d(self._extra_rows, index)])
        return index, unshown

    @cached_property
    def _order(self) -> npt.NDArray[np.intp]:
        return np.argsort(self.storage_index)

    @cached_property
    def _columns(self) -> PageColumns:
        columns, pinned = zeros(PageColumns, len(self)), self._pinned
        gather_pages(self.storage_index, self.chunks.columns, pinned, self._tier_of_code, columns)
        return columns

    @cached_property
    def _rates(self) -> PageRates:
        rates = zeros(PageRates, len(self))
        gather_rates(self.storage_index, self._table.rates(), rates)
        return rates
