# SPDX-License-Identifier: MIT
"""How the heat table is stored: chunks of 2 MiB as columns, page slots, and an index of chunks.

Rows of chunks are dense: the last chunk takes the row of one that is removed. A chunk has 47 bytes
of columns and up to 64 of the index. Counts per base page take 6 KiB more: a chunk has them while
it owns a page slot. Slots are a bounded pool; a chunk without one is *coarse*: it is counted as one
row. Row numbers are valid until ``version`` changes, those of chunks until ``order`` does: it
changes when chunks are removed or renumbered, not when chunks or page slots are added.

A chunk is found by its process slot and chunk number in a hash table with open addressing.
Kernels that pass over the whole table cost 0.3 ns per page (nodes), 2 ns per row (heat).

``idle`` columns have the time since a page's last sample in a byte. The low seven bits are a code:
single ticks up to 16, then eight steps per octave, so that a time is exact to an eighth, up to
2**18 ticks. The top bit marks a page that was never sampled since it appeared. Ageing costs about
0.5 ns per page and tick.
"""

from __future__ import annotations

from itertools import count
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import (
    Bools,
    Float32Plane,
    Float32s,
    Float64Plane,
    Float64s,
    Int8Plane,
    Int8s,
    Int16s,
    Int32s,
    Int32View,
    Int64Plane,
    Int64s,
    Uint8Plane,
    Uint8s,
    Uint64s,
    Uint64View,
    dtypes,
    inline,
    kernel,
)
from hmd.base.units import PAGE_SHIFT
from hmd.heat.settings import ABSENT, CHUNK_BYTES, CHUNK_PAGES, FIXED, PROBE_PARTS

#: The ``idle`` byte of a page that has just appeared, or is absent.
NEW: Final = 0x80
_IDLE_CODES: Final = 0x80
_EXACT_TICKS: Final = 16
_STEPS_PER_OCTAVE: Final = 8
# How many ticks a page keeps each code, and how many it had before.
_CODE_TICKS: Final = 1 << (
    np.maximum(np.arange(_IDLE_CODES) - _EXACT_TICKS, -1) // _STEPS_PER_OCTAVE + 1
)
_TICKS: Final = np.concatenate([[0], np.cumsum(_CODE_TICKS[:-1])]).astype(np.int32)

#: log2 of the bytes in a chunk.
CHUNK_SHIFT: Final = CHUNK_BYTES.bit_length() - 1
#: User addresses have at most 56 bits (five-level paging), so a chunk number has 35 or fewer.
ADDRESS_BITS: Final = 56
NUMBER_BITS: Final = ADDRESS_BITS - CHUNK_SHIFT
EMPTY: Final = -1
"""The key of a free entry of the index."""
# Fibonacci hashing (Knuth, TAOCP 3, 6.4): 2**64 over the golden ratio.
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)

#: Bins of the log2 histogram of heat: bin b counts pages of 2**(b - COLDEST) accesses per second
#: and more, below twice that; the first and the last also count what lies beyond.
HEAT_BINS: Final = 64
COLDEST: Final = 24
#: Bins of heat for the demand of groups: eight per doubling, from the same least rate on.
DEMAND_BINS: Final = 8 * HEAT_BINS

_MIN_CHUNKS: Final = 64
_MAX_REQUESTS: Final = 1024
_MAX_MINORITY: Final = 16
# No two states of two tables have the same version.
_VERSIONS: Final = count(1)

Rows = npt.NDArray[np.integer]


class ChunkColumns(NamedTuple):
    """All chunks, and the pages of those that own a page slot.

    Per chunk, shape ``(capacity,)``:
        process: slot of the process.
        address: first byte.
        huge: whether it is one huge page.
        heat_sum, recent_sum: sums of ``heat`` and ``recent`` over its pages.
        resident: number of resident pages.
        swept: tick after which it was last swept, from 1 on; 0: never, or out of date.
        page_slot: its page slot, -1 for a coarse chunk.
    Per coarse chunk:
        chunk_exposure, chunk_node, chunk_wear, chunk_idle: as of the pages below.
        minority_pages: resident pages with another ``node`` than ``chunk_node``.
        probe_bitmap: the parts of the chunk that the last ``probe_samples`` samples hit.
        last_probe_hits: how many parts the last full probe hit (hmd.heat.counting).
    Per page slot, shape ``(slots,)``:
        owner: its chunk, -1 if it is free.
        owner_since: the tick since which it has been.
    Per page, shape ``(slots, 512)``:
        heat: weight of cooled samples.
        recent: weight of the samples in the open window.
        exposure: the share of the process's history over which ``heat`` was counted, in 1/255.
        node: its node; ``ABSENT``; ``FIXED - node`` for an unmovable page.
        wear: what recent moves have added.
        idle: time since the last sample, as above.
    """

    process: Int32s
    address: Uint64s
    huge: Bools
    heat_sum: Float32s
    recent_sum: Float32s
    resident: Int16s
    swept: Int32s
    page_slot: Int32s
    chunk_exposure: Uint8s
    chunk_node: Int8s
    chunk_wear: Uint8s
    chunk_idle: Uint8s
    minority_pages: Int16s
    probe_bitmap: Uint64s
    probe_samples: Uint8s
    last_probe_hits: Uint8s
    owner: Int32s
    owner_since: Int32s
    heat: Float32Plane
    recent: Float32Plane
    exposure: Uint8Plane
    node: Int8Plane
    wear: Uint8Plane
    idle: Uint8Plane

    @classmethod
    def blank(cls, capacity: int, slots: int) -> ChunkColumns:
        """Return columns of chunks without heat or pages, and of free page slots."""
        shapes = [(capacity,)] * _CHUNK_FIELDS + [(slots,)] * 2 + [(slots, CHUNK_PAGES)] * 6
        pairs = zip(shapes, dtypes(cls), strict=True)  # type: ignore[arg-type]
        columns = cls(*(np.zeros(shape, dtype) for shape, dtype in pairs))
        for name, value in _BLANK.items():
            getattr(columns, name)[:] = value
        return columns

    @property
    def of_chunks(self) -> tuple[npt.NDArray[np.generic], ...]:
        """The columns per chunk."""
        return self[:_CHUNK_FIELDS]

    @property
    def of_pages(self) -> tuple[npt.NDArray[np.generic], ...]:
        """The columns per page slot."""
        return self[_CHUNK_FIELDS:]


_CHUNK_FIELDS: Final = ChunkColumns._fields.index("owner")
_BLANK: Final = {
    "page_slot": -1,
    "chunk_node": ABSENT,
    "chunk_idle": NEW,
    "last_probe_hits": PROBE_PARTS,
    "owner": -1,
    "node": ABSENT,
    "idle": NEW,
}


class ChunkIndex(NamedTuple):
    """A hash index from chunks to their rows: open addressing, linear probing.

    ``entries`` has a key and a row of :class:`ChunkColumns` in turn, so that a look-up needs one
    line of the cache. Keys are below 0 where free; their number is a power of two.
    """

    entries: Int64s

    @classmethod
    def empty(cls, chunks: int) -> ChunkIndex:
        """Return an index that is at most half full with so many chunks."""
        return cls(np.full(4 * (1 << (chunks - 1).bit_length()), EMPTY, np.int64))


class ChunkCounts(NamedTuple):
    """How the rows of a table are used.

    ``counts`` has the number of chunks, of free page slots and of ``requests``. ``free`` are the
    free page slots, the next one last; ``requests`` the chunks that request one.
    """

    counts: Int64s
    free: Int32s
    requests: Int32s


class HistoryColumns(NamedTuple):
    """What each process's samples add up to; shape ``(processes,)``.

    The cooled weight of all samples before the open window, that of the samples in it, and that of
    one sample.
    """

    history_weight: Float64s
    window_weight: Float64s
    effective_sample_weight: Float64s


class TableRates(NamedTuple):
    """How hot pages are, where the table keeps them.

    Rates are in accesses per second and base page, times the priority of the process; ``samples``
    are the effective samples on which they rest. Shapes are ``(slots, 512)`` for pages and
    ``(chunks,)`` for chunks that are one row of a view.
    """

    page_rate: Float32Plane
    page_samples: Float32Plane
    chunk_rate: Float32s
    chunk_samples: Float32s


def successors(tick: int) -> npt.NDArray[np.uint8]:
    """Return the ``idle`` byte that follows each byte at a tick, shape ``(256,)``."""
    code = np.arange(_IDLE_CODES)
    # All pages of one code advance together.
    following = np.minimum(code + (tick % _CODE_TICKS == 0), _IDLE_CODES - 1)
    return np.concatenate([following, following + NEW]).astype(np.uint8)


def idle_ticks(idle: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """Return the ticks that ``idle`` bytes encode: above 16 at most an eighth too many."""
    ticks: npt.NDArray[np.int32] = _TICKS[idle & (NEW - 1)]
    return ticks


@kernel
def age(
    chunks: int, following: Uint8s, owner: Int32s, idle: Uint8Plane, chunk_idle: Uint8s
) -> None:
    """Age every page, and every chunk, by a tick; ``following`` comes from :func:`successors`."""
    for slot in range(len(owner)):
        if owner[slot] >= 0:
            for i in range(idle.shape[1]):
                idle[slot, i] = following[idle[slot, i]]
    for chunk in range(chunks):
        chunk_idle[chunk] = following[chunk_idle[chunk]]


@inline
def node_of(code: np.int64) -> np.int64:
    """Return the node of a page, whether it may move or not; ``ABSENT`` where it has none."""
    return FIXED - code if code <= FIXED else code


@inline
def chunk_key(process: int | np.integer, address: np.uint64) -> np.int64:
    """Return the key of the chunk of an address."""
    number = np.int64(address >> np.uint64(CHUNK_SHIFT))
    return (np.int64(process) << NUMBER_BITS) | number


@inline
def page_in_chunk(address: np.uint64) -> np.int64:
    """Return which of its chunk's pages an address is in."""
    return np.int64(address >> np.uint64(PAGE_SHIFT)) & (CHUNK_PAGES - 1)


@inline
def first_position(entries: Int64s, key: np.int64) -> np.int64:
    """Return where among the entries the search for ``key`` begins."""
    # The highest bits: neighbours lie apart.
    high = (np.uint64(key) * _GOLDEN) >> np.uint64(32)
    return 2 * np.int64((high * np.uint64(len(entries) // 2)) >> np.uint64(32))


@inline
def find_position(entries: Int64s, key: np.int64) -> np.int64:
    """Return where among the entries ``key`` is, or belongs; its row follows."""
    at = first_position(entries, key)
    while entries[at] != key and entries[at] != EMPTY:
        at = (at + 2) & (len(entries) - 1)
    return at


@inline
def find_row(entries: Int64s, key: np.int64) -> np.int64:
    """Return the row of a chunk, -1 where it is not known."""
    at = find_position(entries, key)
    return np.int64(-1) if entries[at] == EMPTY else entries[at + 1]


@kernel
def insert_chunks(
    begin: int, end: int, process: Int32s, address: Uint64s, index: ChunkIndex
) -> None:
    """Add the chunks of some rows to an index, which must have more positions than chunks."""
    entries = index.entries
    for chunk in range(begin, end):
        key = chunk_key(process[chunk], address[chunk])
        at = find_position(entries, key)
        entries[at], entries[at + 1] = key, chunk


@kernel
def find_chunks(process: int, addresses: Uint64View, index: ChunkIndex, found: Int32s) -> None:
    """Set ``found`` to the row of each address's chunk, -1 where there is none."""
    for i in range(len(addresses)):
        found[i] = find_row(index.entries, chunk_key(process, addresses[i]))


@kernel
def find_nodes(
    process: Int32View,
    address: Uint64View,
    index: ChunkIndex,
    columns: ChunkColumns,
    found: Int16s,
) -> None:
    """Set ``found`` to the node of each address's page, -1 where it is not known."""
    chunk, last = np.int64(-1), np.int64(-1)
    for i in range(len(address)):
        key = chunk_key(process[i], address[i])
        if key != last:
            chunk, last = find_row(index.entries, key), key
        found[i] = -1
        if chunk >= 0:
            slot = np.int64(columns.page_slot[chunk])
            page = page_in_chunk(address[i])
            found[i] = node_of(
                np.int64(columns.node[slot, page] if slot >= 0 else columns.chunk_node[chunk])
            )


@kernel
def find_storage(
    process: Int32View,
    address: Uint64View,
    index: ChunkIndex,
    columns: ChunkColumns,
    found: Int64s,
) -> None:
    """Set ``found`` to the storage index of each address, -1 where none is known."""
    first_chunk = len(columns.owner) * CHUNK_PAGES
    for i in range(len(address)):
        found[i] = -1
        if process[i] < 0 or address[i] >> np.uint64(ADDRESS_BITS):
            continue
        chunk = find_row(index.entries, chunk_key(process[i], address[i]))
        if chunk < 0:
            continue
        slot, huge = np.int64(columns.page_slot[chunk]), columns.huge[chunk]
        page = page_in_chunk(address[i])
        node = columns.chunk_node[chunk]
        if slot >= 0:
            node = columns.node[slot, 0 if huge else page]
        if node != ABSENT:
            found[i] = first_chunk + chunk if slot < 0 or huge else slot * CHUNK_PAGES + page


@inline
def _add(code: int, pages: int, process: int, movable: Int64Plane, fixed: Int64Plane) -> None:
    if 0 <= code < movable.shape[1]:
        movable[process, code] += pages
    elif code <= FIXED and FIXED - code < movable.shape[1]:
        fixed[process, FIXED - code] += pages


@kernel
def count_nodes(chunks: int, columns: ChunkColumns, movable: Int64Plane, fixed: Int64Plane) -> None:
    """Add each process's pages on each node to ``movable`` or, those that must stay, to ``fixed``.

    Results have shape ``(processes, nodes)``. A coarse chunk counts on the node of most of its
    pages.
    """
    process, node = columns.process, columns.node
    # Neighbours mostly lie on one node: their pages are added up before they are stored.
    pages, last_code, last_process = 0, ABSENT, 0
    for chunk in range(chunks):
        p, slot = process[chunk], columns.page_slot[chunk]
        if slot < 0:
            code = columns.chunk_node[chunk]
            if code != last_code or p != last_process:
                _add(last_code, pages, last_process, movable, fixed)
                pages, last_code, last_process = 0, int(code), int(p)
            pages += int(columns.resident[chunk])
            continue
        # A pass per code that occurs, which compares many pages at a time.
        left = 0
        for i in range(CHUNK_PAGES):
            left += int(node[slot, i] != ABSENT)
        for on in range(movable.shape[1]):
            if left <= 0:
                break
            free, stuck = 0, 0
            for i in range(CHUNK_PAGES):
                free += int(node[slot, i] == on)
                stuck += int(node[slot, i] == FIXED - on)
            movable[p, on] += free
            fixed[p, on] += stuck
            left -= free + stuck
    _add(last_code, pages, last_process, movable, fixed)


@kernel
def summarise(node: Int8Plane, majority: Int8s, resident: Int16s, minority_pages: Int16s) -> None:
    """Set the code of most pages of each chunk, its resident pages, and those of other codes.

    ``node`` has shape ``(k, 512)``, results ``(k,)``; a chunk without pages is ``ABSENT``.
    """
    pages_of = np.zeros(256, np.int64)
    for chunk in range(len(node)):
        pages_of[:] = 0
        for i in range(CHUNK_PAGES):
            pages_of[int(node[chunk, i]) & 255] += 1
        present = CHUNK_PAGES - pages_of[ABSENT & 255]
        pages_of[ABSENT & 255] = 0
        code = np.argmax(pages_of)
        resident[chunk] = present
        minority_pages[chunk] = present - pages_of[code]
        majority[chunk] = ABSENT if present == 0 else np.int8(np.uint8(code))


@inline
def _heat_bin(rate: np.float32) -> int:
    """Return the bin of a rate, from its exponent."""
    exponent = int(np.float32(rate).view(np.int32) >> np.int32(23)) - 127
    return min(max(exponent + COLDEST, 0), HEAT_BINS - 1)


@kernel
def count_heat(chunks: int, columns: ChunkColumns, rates: TableRates, bins: Int64Plane) -> None:
    """Add pages to ``bins``, shape ``(nodes, HEAT_BINS)``, by node and log2 of their rate."""
    for chunk in range(chunks):
        slot = columns.page_slot[chunk]
        if slot < 0 or columns.huge[chunk]:
            node = node_of(columns.chunk_node[chunk] if slot < 0 else columns.node[slot, 0])
            if 0 <= node < len(bins):
                bins[node, _heat_bin(rates.chunk_rate[chunk])] += columns.resident[chunk]
            continue
        for i in range(CHUNK_PAGES):
            node = node_of(columns.node[slot, i])
            if 0 <= node < len(bins):
                bins[node, _heat_bin(rates.page_rate[slot, i])] += 1


class DemandCounts(NamedTuple):
    """What groups of processes access, by how hot its pages are.

    ``pages`` and ``accesses`` per second, with priorities, have shape ``(groups, DEMAND_BINS)``,
    the hottest pages in the last bin; ``node_pages`` and ``node_accesses`` are by node, shape
    ``(groups, nodes)``.
    """

    pages: Int64Plane
    accesses: Float64Plane
    node_pages: Int64Plane
    node_accesses: Float64Plane


@inline
def _add_demand(
    counts: DemandCounts, group: int, node: np.int64, rate: np.float32, pages: np.int64
) -> None:
    eighth = int(np.float32(rate).view(np.int32) >> np.int32(20)) - (127 - COLDEST) * 8
    at = min(max(eighth, 0), DEMAND_BINS - 1)
    counts.pages[group, at] += pages
    counts.accesses[group, at] += rate * pages
    counts.node_pages[group, node] += pages
    counts.node_accesses[group, node] += rate * pages


@kernel
def count_demand(
    chunks: int, columns: ChunkColumns, rates: TableRates, group: Int32s, counts: DemandCounts
) -> None:
    """Add the pages of all processes to the counts of their ``group``, shape ``(processes,)``."""
    nodes = counts.node_pages.shape[1]
    for chunk in range(chunks):
        slot, own = columns.page_slot[chunk], group[columns.process[chunk]]
        if slot < 0 or columns.huge[chunk]:
            node = node_of(columns.chunk_node[chunk] if slot < 0 else columns.node[slot, 0])
            if 0 <= node < nodes:
                present = np.int64(columns.resident[chunk])
                _add_demand(counts, own, node, rates.chunk_rate[chunk], present)
            continue
        for i in range(CHUNK_PAGES):
            node = node_of(columns.node[slot, i])
            if 0 <= node < nodes:
                _add_demand(counts, own, node, rates.page_rate[slot, i], np.int64(1))


class Chunks:
    """The chunks of all processes: ``columns`` up to row ``used``, and their ``index``."""

    def __init__(self, max_page_slots: int) -> None:
        self._max_slots = max(max_page_slots, 1)
        self.version = self.order = next(_VERSIONS)
        self.columns = ChunkColumns.blank(_MIN_CHUNKS, min(_MIN_CHUNKS, self._max_slots))
        self.state = ChunkCounts(
            np.zeros(3, np.int64), np.empty(0, np.int32), np.zeros(_MAX_REQUESTS, np.int32)
        )
        self._free(np.arange(self.page_slots))
        self._rebuild_index()

    @property
    def used(self) -> int:
        """The number of chunks."""
        return int(self.state.counts[0])

    @property
    def page_slots(self) -> int:
        """The number of page slots, used and free."""
        return len(self.columns.owner)

    @property
    def used_page_slots(self) -> int:
        """The number of chunks that have a page slot."""
        return self.page_slots - int(self.state.counts[1])

    @property
    def nbytes(self) -> int:
        """Bytes of all columns and of the index."""
        return sum(array.nbytes for array in (*self.columns, *self.index))

    def find(self, process: int, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
        """Return the row of each address's chunk, -1 where there is none."""
        found = np.empty(len(addresses), np.int32)
        find_chunks(process, addresses, self.index, found)
        return found

    def add(self, process: int, addresses: npt.NDArray[np.uint64]) -> None:
        """Add chunks at these starts, which must be new and distinct."""
        begin, end = self.used, self.used + len(addresses)
        if end > len(self.columns.process):
            self._resize(max(2 * len(self.columns.process), end))
        self.columns.process[begin:end] = process
        self.columns.address[begin:end] = addresses
        self.state.counts[0] = end
        insert_chunks(begin, end, self.columns.process, self.columns.address, self.index)
        self.assign_page_slots(np.arange(begin, min(end, begin + int(self.state.counts[1]))))

    def record_added(self) -> None:
        """Note that counting has added chunks."""
        self.version = next(_VERSIONS)

    def grow(self) -> None:
        """Double the capacity."""
        self._resize(2 * len(self.columns.process))

    def remove(self, rows: Rows) -> None:
        """Remove these chunks; the last ones take their rows."""
        if not len(rows):
            return
        columns, used = self.columns, self.used
        slots = columns.page_slot[rows]
        self._free(slots[slots >= 0])
        stays = np.ones(used, np.bool_)
        stays[rows] = False
        left = int(np.count_nonzero(stays))
        holes = np.flatnonzero(~stays[:left])
        movers = left + np.flatnonzero(stays[left:])
        for column, empty in zip(columns.of_chunks, _NO_CHUNK.of_chunks, strict=True):
            column[holes] = column[movers]
            column[left:used] = empty
        moved = columns.page_slot[holes]
        columns.owner[moved[moved >= 0]] = holes[moved >= 0]
        self.state.counts[0], self.state.counts[2] = left, 0
        if left < len(columns.process) // 4:
            self._resize(max(_MIN_CHUNKS, len(columns.process) // 2))
        else:
            self._rebuild_index()
        self.version = self.order = next(_VERSIONS)

    def renumber(self, slots: npt.NDArray[np.int32]) -> None:
        """Give process ``p`` the slot ``slots[p]``; chunks of slot -1 are removed."""
        process = self.columns.process[: self.used]
        process[:] = slots[process] if len(slots) else -1
        gone = np.flatnonzero(process < 0)
        self.remove(gone)
        if not len(gone):
            self._rebuild_index()
        self.version = self.order = next(_VERSIONS)

    def request_page_slots(self, rows: Rows) -> None:
        """Note that these chunks request page slots, as far as there is room to note it."""
        counts, requests = self.state.counts, self.state.requests
        some = rows[: len(requests) - int(counts[2])]
        requests[counts[2] : counts[2] + len(some)] = some
        counts[2] += len(some)

    def assign_page_slots(self, rows: Rows, tick: int = 0) -> None:
        """Give free page slots to coarse chunks; those whose pages may differ are to be swept."""
        columns, counts = self.columns, self.state.counts
        counts[1] -= len(rows)
        slots = self.state.free[counts[1] : counts[1] + len(rows)][::-1].copy()
        columns.page_slot[rows], columns.owner[slots] = slots, rows
        columns.owner_since[slots] = tick
        uniform = (columns.minority_pages[rows] == 0) & (columns.resident[rows] == CHUNK_PAGES)
        share = np.float32(1 / CHUNK_PAGES)
        columns.heat[slots] = (columns.heat_sum[rows] * share)[:, None]
        columns.recent[slots] = (columns.recent_sum[rows] * share)[:, None]
        columns.exposure[slots] = columns.chunk_exposure[rows, None]
        columns.node[slots] = np.where(uniform, columns.chunk_node[rows], ABSENT)[:, None]
        columns.wear[slots] = columns.chunk_wear[rows, None]
        columns.idle[slots] = columns.chunk_idle[rows, None]
        columns.resident[rows[~uniform]] = 0
        columns.swept[rows[~uniform]] = 0
        self.version = next(_VERSIONS)

    def take_page_slots(self, rows: Rows) -> None:
        """Make chunks that own page slots coarse."""
        columns = self.columns
        slots = columns.page_slot[rows]
        columns.chunk_exposure[rows] = columns.exposure[slots].mean(axis=1).astype(np.uint8)
        columns.chunk_wear[rows] = columns.wear[slots].max(axis=1)
        columns.chunk_idle[rows] = columns.idle[slots].min(axis=1)
        self.record_nodes(rows, columns.node[slots])
        columns.probe_bitmap[rows], columns.probe_samples[rows] = 0, 0
        columns.last_probe_hits[rows] = PROBE_PARTS
        columns.page_slot[rows] = -1
        self._free(slots)
        self.version = next(_VERSIONS)

    def limit_page_slots(self, limit: int) -> None:
        """Have at most so many page slots from now on; no more than that may be in use.

        Slots beyond it are freed, or as many are added as chunks can use, unless they are few:
        column by column, so that no more than one is there twice.
        """
        self._max_slots = max(limit, 1)
        before, slots = self.page_slots, min(len(self.columns.process), self._max_slots)
        if before <= slots <= before + before // 16:
            return
        used = np.flatnonzero(self.columns.owner >= 0)[:slots]
        names = ChunkColumns._fields[_CHUNK_FIELDS:]
        for name, empty in zip(names, _NO_CHUNK.of_pages, strict=True):
            column = np.repeat(empty, slots, axis=0)
            column[: len(used)] = getattr(self.columns, name)[used]
            self.columns = self.columns._replace(**{name: column})
        self.columns.page_slot[self.columns.owner[: len(used)]] = np.arange(len(used))
        self.state.counts[1] = 0
        self._free(np.arange(len(used), slots))
        self.version = next(_VERSIONS)

    def record_nodes(self, rows: Rows, node: npt.NDArray[np.int8]) -> None:
        """Record the nodes of coarse chunks; ``node`` has shape ``(k, 512)``."""
        columns = self.columns
        majority, resident = np.empty(len(rows), np.int8), np.empty(len(rows), np.int16)
        minority_pages = np.empty(len(rows), np.int16)
        summarise(np.ascontiguousarray(node), majority, resident, minority_pages)
        columns.chunk_node[rows], columns.resident[rows] = majority, resident
        columns.minority_pages[rows] = minority_pages

    def _free(self, slots: Rows) -> None:
        """Take back page slots, and clear them."""
        columns, counts = self.columns, self.state.counts
        for column, empty in zip(columns.of_pages, _NO_CHUNK.of_pages, strict=True):
            column[slots] = empty
        free = np.sort(np.concatenate([self.state.free[: counts[1]], slots]))
        counts[1] = len(free)
        # The lowest slot is the next.
        padded = np.zeros(self.page_slots, np.int32)
        padded[: len(free)] = free[::-1]
        self.state = self.state._replace(free=padded)

    def _resize(self, capacity: int) -> None:
        """Change the capacity; page slots remain."""
        old, slots = self.columns, self.page_slots
        new = ChunkColumns.blank(capacity, max(min(capacity, self._max_slots), slots))
        for column, larger in zip(old.of_chunks, new.of_chunks, strict=True):
            larger[: self.used] = column[: self.used]
        if len(new.owner) > slots:
            for column, larger in zip(old.of_pages, new.of_pages, strict=True):
                larger[:slots] = column
            self.columns = new
            self._free(np.arange(slots, len(new.owner)))
        else:
            self.columns = ChunkColumns(*new.of_chunks, *old.of_pages)  # type: ignore[arg-type]
        self._rebuild_index()
        self.version = next(_VERSIONS)

    def _rebuild_index(self) -> None:
        self.index = ChunkIndex.empty(len(self.columns.process))
        if self.used:  # else there are no kernels to load
            insert_chunks(0, self.used, self.columns.process, self.columns.address, self.index)


_NO_CHUNK: Final = ChunkColumns.blank(1, 1)


@inline
def is_mixed(minority_pages: int, resident: int) -> bool:
    """Return whether too many pages of a coarse chunk are elsewhere for it to move as one row."""
    return bool(minority_pages * _MAX_MINORITY > resident)


@inline
def huge_page_idle(slot: np.int64, columns: ChunkColumns) -> np.uint8:
    """Return the idle time of a huge page: that of the page in it which was sampled last."""
    youngest: np.uint8 = columns.idle[slot, 0]
    for i in range(CHUNK_PAGES):
        youngest = min(youngest, columns.idle[slot, i])
    return youngest
