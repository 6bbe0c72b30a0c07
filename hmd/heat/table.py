# SPDX-License-Identifier: MIT
"""The heat table: how hot every page of the tracked processes is, and on which node it is.

Takes batches of samples and the nodes of pages, gives a view of pages with their rates
(:mod:`hmd.heat.view`). Stored as arrays over chunks of 2 MiB of address space
(:mod:`hmd.heat.chunks`): 12 bytes per page of a bounded number of chunks, and about 80 bytes for
each chunk.

On which nodes pages are is recorded page by page for chunks with page slots. A coarse chunk is
recorded where most of its pages are; after moves of parts of it, it is to be swept first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, get_args, get_type_hints

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import (
    Bools,
    Float64s,
    Int8Plane,
    Int16s,
    Int32s,
    Int64Plane,
    Int64s,
    Uint8s,
    Uint64s,
    dtypes,
)
from hmd.base.units import PAGE_BYTES
from hmd.heat.candidates import RowBins, rows_to_evacuate
from hmd.heat.changes import ChangePoints, discount
from hmd.heat.chunks import (
    NEW,
    ChunkColumns,
    Chunks,
    TableRates,
    age,
    count_nodes,
    find_nodes,
    successors,
)
from hmd.heat.counting import (
    KINDS,
    CountedSamples,
    LoadedLatencies,
    SampleSums,
    SampleWeights,
    count_samples,
)
from hmd.heat.page_slots import assign_page_slots, drop_page_slots
from hmd.heat.rates import estimate_page_rates
from hmd.heat.settings import (
    ABSENT,
    CHUNK_BYTES,
    CHUNK_PAGES,
    FIXED,
    MOVE_WEAR,
    HeatSettings,
    HeatStats,
)
from hmd.heat.view import PageView
from hmd.heat.windows import (
    SampleHistory,
    close_windows,
    estimate_coarse,
    fade_wear,
    page_retention,
)
from hmd.linux.process_table import ProcessTable
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Topology
from hmd.sample.access_batch import AccessBatch, Kind

#: Chunks whose pages are counted one by one however little memory there is: 400 KiB.
MIN_PAGE_SLOTS: Final = 64


def _bytes_per_page(bundle: type[NamedTuple]) -> int:
    """Return what each base page takes in the columns of a bundle that have pages."""
    hints = get_type_hints(bundle, include_extras=True).values()
    pairs = zip(hints, dtypes(bundle), strict=True)
    return sum(dtype.itemsize for hint, dtype in pairs if get_args(hint)[1].dimensions == 2)


DETAIL_BYTES: Final = CHUNK_PAGES * _bytes_per_page(ChunkColumns)
"""Memory of a chunk whose pages are counted one by one: 12 bytes for each page."""
TICK_BYTES: Final = CHUNK_PAGES * (
    _bytes_per_page(TableRates) + _bytes_per_page(RowBins) + np.dtype(np.float32).itemsize
)
"""What a tick needs for such a chunk: rates, bins by which rows are selected, and retention."""


class HeatTable:
    """Cooled access counts, and the node, of every page of the tracked processes.

    A tick is one call of :meth:`update`; :meth:`view` gives the pages. ``chunks`` is how they are
    stored, ``history`` what the samples of each process weigh, ``changes`` when heat has changed,
    ``cursor`` the chunk with which the next selection of candidates goes on. ``last_batch`` has the
    samples of the last update, ``counted`` what is known of them; none once the processes have
    changed.
    """

    def __init__(
        self, settings: HeatSettings | None = None, latency_ns: Sequence[float] = ()
    ) -> None:
        """``latency_ns`` is the latency of an idle node, by node id; () where it is not known.

        With it, a load counts for the share of that latency that it took.
        """
        self.settings = settings or HeatSettings()
        self._latencies = LoadedLatencies(latency_ns)
        self.stats = HeatStats()
        self.chunks = Chunks(self.settings.max_page_slots)
        self.cursor = np.zeros(1, np.int64)
        self.history = SampleHistory(self.settings)
        self.changes = ChangePoints()
        self._kind_weight = np.ones((0, KINDS), np.float32)
        self._priority = np.ones(0, np.float64)
        self._worn = False
        self.last_batch, self.counted = AccessBatch.empty(), _none_counted(0)
        self._rates: TableRates | None = None
        self._resident: tuple[Int64Plane, Int64Plane] | None = None

    def set_idle_latencies(self, latency_ns: Sequence[float]) -> None:
        """Set the latencies of idle nodes; heat is kept, measured latencies start again."""
        if self._latencies.given_ns != tuple(latency_ns):
            self._latencies = LoadedLatencies(latency_ns)

    @property
    def loaded_latency_ns(self) -> Float64s:
        """Mean latency of recent loads by node id, in ns; near 0 where not measured."""
        return self._latencies.mean_ns

    @property
    def processes(self) -> tuple[ProcessId, ...]:
        """The tracked processes, which ``process`` columns index."""
        return self.history.processes

    def track_processes(self, processes: Sequence[ProcessId]) -> None:
        """Track these processes from now on; heat of processes that stay tracked is kept.

        A batch of samples names a process by its position in ``processes``. Until
        :meth:`set_process_weights` is called, all processes have the same priority, and a store
        weighs as much as a load.
        """
        if tuple(processes) == self.processes:
            return
        self.discard_rates()
        self.last_batch, self.counted = AccessBatch.empty(), _none_counted(0)
        slots = self.history.track_processes(processes)
        self.chunks.renumber(slots)
        count = len(processes)
        self.changes.track_processes(slots, count, self.history.tick)
        self.set_process_weights(np.ones(count), np.ones(count))
        self._measure()

    def set_process_weights(self, priority: Float64s, store_weight: Float64s) -> None:
        """Set the weights of processes, shape ``(processes,)``, from now on.

        ``priority`` multiplies the rates of a process's pages; a store counts as ``store_weight``
        loads.
        """
        if not len(priority) == len(store_weight) == len(self.processes):
            raise ValueError(f"weights of {len(priority)} processes, not {len(self.processes)}")
        self.discard_rates()
        self._priority = priority.astype(np.float64)
        self._kind_weight = np.ones((len(priority), KINDS), np.float32)
        self._kind_weight[:, Kind.STORE] = store_weight

    def update(self, batch: AccessBatch, elapsed_s: float = 1.0) -> None:
        """Count the samples of a tick that took ``elapsed_s``; call it also without samples."""
        chunks, history = self.chunks, self.history
        max_weight = history.max_weight.astype(np.float32)
        idle_ns = self._latencies.idle_latencies_of(batch)
        weights = SampleWeights(self._kind_weight, max_weight, idle_ns)
        self._discount_changed(batch, weights)
        self.discard_rates()
        self.last_batch, self.counted = batch, _none_counted(len(batch))
        if not self.processes:  # nothing to count, and no kernels to load
            history.count(np.zeros((0, 4), np.float64), elapsed_s)
            self.stats.ignored += len(batch)
            return
        columns = chunks.columns
        following = successors(history.tick + 1)
        age(chunks.used, following, columns.owner, columns.idle, columns.chunk_idle)
        sums = self._count(batch, weights)
        ignored = int(sums.ignored[0])
        self.stats.samples += len(batch) - ignored
        self.stats.ignored += ignored
        history.count(sums.weights, elapsed_s)
        self._latencies.close_tick()
        self.stats.windows += close_windows(chunks, history, self.settings.change_threshold)
        lost = assign_page_slots(chunks, history.columns, history.tick)
        self.stats.page_slots_reassigned += lost
        if self._worn:
            columns = chunks.columns
            self._worn = fade_wear(columns.wear, columns.chunk_wear[: chunks.used])
        self._measure()

    def view(
        self,
        topology: Topology,
        pinned: Bools | None = None,
        max_rows: int | None = None,
        extra_rows: Int64s | None = None,
    ) -> PageView:
        """Return the resident pages as they are now; arguments as of :class:`PageView`."""
        return PageView(self, topology, pinned, max_rows, extra_rows=extra_rows)

    def rows_to_evacuate(
        self,
        topology: Topology,
        pinned: Bools,
        leaves: npt.NDArray[np.bool_],
        max_rows: int,
        *,
        longest_idle: bool = False,
    ) -> PageView:
        """Return a view of the pages that must leave their current node.

        ``leaves``, shape ``(processes, nodes)``, marks these nodes. Of more than ``max_rows`` rows
        it shows the hottest, or the ``longest_idle`` (:mod:`hmd.heat.candidates`).
        """
        chunks, rows = self.chunks, np.empty(0, np.int64)
        if leaves.any() and self.resident_pages(leaves.shape[1])[0][leaves].any():
            rates = None if longest_idle else self.rates()
            rows = rows_to_evacuate(chunks.used, chunks.columns, leaves, rates, max_rows)
        return PageView(self, topology, pinned, rows=rows)

    def rates(self) -> TableRates:
        """Return how hot pages are now; computed once per change of the table, for all views."""
        if self._rates is None:
            chunks, history = self.chunks, self.history
            columns, sums, used = chunks.columns, history.columns, chunks.used
            shapes = [columns.node.shape] * 2 + [(used,)] * 2
            rates = TableRates(*(np.empty(shape, np.float32) for shape in shapes))
            intensity = history.rate * self._priority
            threshold = self.settings.change_threshold
            resident = np.zeros(len(intensity))
            estimate_coarse(used, columns, sums, intensity, threshold, rates, resident)
            retention, spreads = page_retention(chunks, history, threshold), self.changes.spreads
            priors = estimate_page_rates(columns, sums, intensity, retention, spreads, rates)
            mean = np.divide(intensity, resident, out=np.zeros(len(resident)), where=resident > 0)
            self.changes.remember_rates(rates, mean, priors, chunks)
            self._rates = rates
        return self._rates

    def chunk_rates(self) -> Float64s:
        """Return the accesses per second of each chunk, without priorities; reads no pages."""
        used, columns, history = self.chunks.used, self.chunks.columns, self.history
        process = columns.process[:used]
        counted = columns.heat_sum[:used].astype(np.float64) + columns.recent_sum[:used]
        total = history.history_weight + history.window_weight
        per_weight = np.divide(history.rate, total, out=np.zeros_like(total), where=total > 0)
        rates: Float64s = counted * per_weight[process]
        return rates

    def sampled_nodes(self, batch: AccessBatch) -> Int16s:
        """Return where the last update found each sample's page; -1 for other batches'."""
        if batch is self.last_batch and len(self.counted.node) == len(batch):
            return self.counted.node.copy()
        return np.full(len(batch), -1, np.int16)

    def discard_rates(self) -> None:
        """Discard what follows from samples, resident pages or weights that have changed."""
        self._rates = None
        self._resident = None

    def record_nodes(
        self,
        process: int,
        addresses: Uint64s,
        node: Int8Plane,
        huge: Bools | None = None,
    ) -> int:
        """Record the nodes of some chunks' pages; returns how many differ from the record.

        ``process`` is a slot, ``addresses`` are starts of chunks, shape ``(k,)``; ``node`` has
        shape ``(k, 512)``: a node, ``ABSENT``, or ``FIXED - node`` for an unmovable page. ``huge``
        marks the chunks that are huge pages; default none. Chunks without pages are removed.
        """
        self.discard_rates()
        present = (node != ABSENT).any(axis=1)
        found = self.chunks.find(process, addresses)
        missing = present & (found < 0)
        if missing.any():
            self.chunks.add(process, addresses[missing])
            found = self.chunks.find(process, addresses)
        columns, rows, now = self.chunks.columns, found[present], node[present]
        columns.huge[rows] = False if huge is None else huge[present]
        coarse = columns.page_slot[rows] < 0
        changed = record_page_nodes(self.chunks, rows[~coarse], now[~coarse])
        changed += record_coarse_nodes(self.chunks, rows[coarse], now[coarse])
        columns.swept[rows] = self.history.tick + 1
        gone = found[~present & (found >= 0)]
        if len(gone):
            changed += int(columns.resident[gone].sum())
            self.chunks.remove(gone)
        self._measure()
        return changed

    def remove_process_chunks(self, process: int) -> None:
        """Remove all chunks of the process in a slot."""
        chunks = self.chunks
        chunks.remove(np.flatnonzero(chunks.columns.process[: chunks.used] == process))
        self.discard_rates()

    def record_moves(self, moves: PlanColumns, node: Int16s, stuck: Bools) -> None:
        """Record the outcome of a plan; all columns have shape ``(n,)``.

        ``node`` is where each page is now, below 0 where that is not known. ``stuck`` marks pages
        that cannot be moved for a reason of their own: they are unmovable until the next sweep. A
        page that has moved gets wear, which raises the cost of its next move.
        """
        if not len(moves.address):
            return
        self._resident = None
        results = MoveResults(moves, node, stuck)
        rows = ProcessTable(self.processes).slots_of(moves.processes)[moves.process]
        for slot in np.unique(rows[rows >= 0]):
            pages = np.flatnonzero(rows == slot)
            chunk = self.chunks.find(int(slot), moves.address[pages])
            self._worn |= results.record(self.chunks, pages[chunk >= 0], chunk[chunk >= 0])

    def limit_page_slots(self, limit: int) -> int:
        """Count at most ``limit`` chunks page by page from now on; returns how many lost that.

        Not fewer than ``MIN_PAGE_SLOTS``, nor more than the settings say.
        """
        chunks, lost = self.chunks, 0
        limit = min(max(limit, MIN_PAGE_SLOTS), self.settings.max_page_slots)
        if chunks.used_page_slots > limit:
            self.discard_rates()
            lost = drop_page_slots(chunks, self.history.columns, limit)
            self.stats.page_slots_dropped += lost
        chunks.limit_page_slots(limit)
        self._measure()
        return lost

    def resident_pages(self, nodes: int) -> tuple[Int64Plane, Int64Plane]:
        """Return movable and unmovable base pages per process and node, ``(processes, nodes)``."""
        if self._resident is None or self._resident[0].shape[1] != nodes:
            movable = np.zeros((len(self.processes), nodes), np.int64)
            fixed = np.zeros_like(movable)
            if self.chunks.used:
                count_nodes(self.chunks.used, self.chunks.columns, movable, fixed)
            self._resident = movable, fixed
        movable, fixed = self._resident
        return movable.copy(), fixed.copy()

    def nodes_at(self, process: Int32s, address: Uint64s) -> Int16s:
        """Return the node of the page at each address of a process, -1 where none is known."""
        node = np.empty(len(address), np.int16)
        if len(address):
            find_nodes(process, address, self.chunks.index, self.chunks.columns, node)
        return node

    def _count(self, batch: AccessBatch, weights: SampleWeights) -> SampleSums:
        """Add the samples of a batch to the chunks, with new chunks where there are none."""
        chunks = self.chunks
        samples = (batch.process, batch.address, batch.kind, batch.period, batch.latency_ns)
        by_process = np.zeros((len(self.processes), 4), np.float64)
        sums = SampleSums(np.zeros(1, np.int64), by_process, self._latencies.sums)
        before, row = chunks.used, 0
        while True:
            columns, index, state = chunks.columns, chunks.index, chunks.state
            counted = self.counted
            row = count_samples(row, samples, weights, columns, index, state, sums, counted)
            if row == len(batch):
                break
            chunks.grow()
        if chunks.used != before:
            chunks.record_added()
        return sums

    def _discount_changed(self, batch: AccessBatch, weights: SampleWeights) -> None:
        """Discount the history of processes that the samples of a tick contradict."""
        factor = self.changes.detect(batch, weights, self.chunks, self.history)
        if factor is not None:
            discount(self.chunks.used, self.chunks.columns, factor)
            self.history.discount(factor)
            self.stats.changes += int(np.count_nonzero(factor < 1.0))

    def _measure(self) -> None:
        self.stats.chunks = self.chunks.used
        self.stats.page_slots = self.chunks.used_page_slots
        self.stats.bytes = self.chunks.nbytes


def _none_counted(samples: int) -> CountedSamples:
    """Return what is known of samples before they are counted."""
    return CountedSamples(np.full(samples, -1, np.int16), np.zeros(samples, np.float32))


Rows = npt.NDArray[np.intp]


def record_page_nodes(chunks: Chunks, chunk: Int32s, node: Int8Plane) -> int:
    """Record the nodes of chunks with page slots; return how many pages differ from the record."""
    columns = chunks.columns
    slots = columns.page_slot[chunk]
    changed = int(np.count_nonzero(columns.node[slots] != node))
    # A page that came since, and was not sampled before this sweep found it, is new.
    was, present = columns.node[slots] != ABSENT, node != ABSENT
    new = ~present | (~was & (columns.idle[slots] >= NEW))
    columns.idle[slots] = np.where(new, np.uint8(NEW), columns.idle[slots])
    columns.node[slots] = node
    columns.resident[chunk] = present.sum(axis=1)
    return changed


def record_coarse_nodes(chunks: Chunks, chunk: Int32s, node: Int8Plane) -> int:
    """Record the nodes of coarse chunks, mixed ones request slots; return how many pages differ."""
    columns = chunks.columns
    code, resident = columns.chunk_node[chunk], columns.resident[chunk].astype(np.int64)
    chunks.record_nodes(chunk, node)
    now = columns.resident[chunk].astype(np.int64)
    changed = np.where(columns.chunk_node[chunk] == code, np.abs(now - resident), now)
    mixed = (columns.minority_pages[chunk] > 0) & ~columns.huge[chunk]
    chunks.request_page_slots(chunk[mixed])
    return int(changed.sum())


class PlanColumns(Protocol):
    """The columns of a plan that the table reads (:class:`hmd.policy.plan.Plan`)."""

    @property
    def processes(self) -> tuple[ProcessId, ...]:
        """The processes that ``process`` indexes."""

    @property
    def process(self) -> Int32s:
        """Index of each page's process."""

    @property
    def address(self) -> Uint64s:
        """Start of each page."""

    @property
    def pages(self) -> npt.NDArray[np.uint32]:
        """Size of each page, in base pages."""

    @property
    def from_node(self) -> Int16s:
        """Node of each page before its move."""


class MoveResults(NamedTuple):
    """The outcome of a plan; columns as of :meth:`HeatTable.record_moves`."""

    moves: PlanColumns
    node: Int16s
    stuck: Bools

    def record(self, chunks: Chunks, rows: Rows, chunk: Int32s) -> bool:
        """Record some rows, each of a ``chunk`` of the table; return whether any page moved."""
        columns, node = chunks.columns, self.node
        # A page whose node is not known: its chunk is swept first.
        columns.swept[chunk[node[rows] < 0]] = 0
        known = node[rows] >= 0
        rows, chunk = rows[known], chunk[known]
        moved = node[rows] != self.moves.from_node[rows]
        coarse = columns.page_slot[chunk] < 0
        self._record_pages(chunks, rows[~coarse], chunk[~coarse], moved[~coarse])
        self._record_coarse(chunks, rows[coarse], chunk[coarse])
        return bool(moved.any())

    def _record_pages(self, chunks: Chunks, rows: Rows, chunk: Int32s, moved: Bools) -> None:
        """Record pages of chunks with page slots."""
        columns, moves = chunks.columns, self.moves
        slot = columns.page_slot[chunk]
        page = (moves.address[rows] % CHUNK_BYTES // PAGE_BYTES).astype(np.int64)
        node = self.node[rows].astype(np.int8)
        code = np.where(self.stuck[rows], FIXED - node, node).astype(np.int8)
        huge = moves.pages[rows] == CHUNK_PAGES
        present = columns.node[slot[huge]] != ABSENT
        columns.node[slot[huge]] = np.where(present, code[huge, None], ABSENT)
        # A page that the table lacks, as a policy from elsewhere may plan, is not added: the
        # resident pages of a chunk are counted where it is swept.
        base = slot[~huge], page[~huge]
        columns.node[base] = np.where(columns.node[base] != ABSENT, code[~huge], ABSENT)
        columns.wear[slot, page] = _add_wear(columns.wear[slot, page], moved)

    def _record_coarse(self, chunks: Chunks, rows: Rows, chunk: Int32s) -> None:
        """Record pages of coarse chunks, once per chunk."""
        if not len(rows):
            return
        columns, moves = chunks.columns, self.moves
        node = self.node[rows].astype(np.int64)
        found, first, index = np.unique(chunk, return_index=True, return_inverse=True)
        pages = np.bincount(index, moves.pages[rows]).astype(np.int64)
        target = node[first]
        alike = np.bincount(index, node == target[index]) == np.bincount(index)
        stuck = np.bincount(index, self.stuck[rows]) > 0
        together = alike & ~stuck & (pages >= columns.resident[found])
        moved = target != moves.from_node[rows[first]]
        arrived = found[together]
        columns.chunk_node[arrived], columns.minority_pages[arrived] = target[together], 0
        columns.chunk_wear[arrived] = _add_wear(columns.chunk_wear[arrived], moved[together])
        # The others are on several nodes: no more moves before they were swept.
        split = found[~together]
        code = columns.chunk_node[split]
        columns.chunk_node[split] = np.where(code >= 0, FIXED - code, code)
        columns.swept[split] = 0
        chunks.request_page_slots(split)


def _add_wear(wear: Uint8s, moved: Bools) -> Uint8s:
    """Return the wear of pages after some of them have moved."""
    return np.where(moved, np.minimum(wear, 255 - MOVE_WEAR) + MOVE_WEAR, wear).astype(np.uint8)
