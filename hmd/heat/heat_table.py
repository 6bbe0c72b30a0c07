"""The heat table: how hot every page of the tracked processes is, and on which node it is.

Takes batches of samples and the nodes of pages, gives a view of pages with their rates
(:mod:`hmd.heat.page_view`). Stored as arrays over chunks of 2 MiB of address space, allocated on
demand, 12 bytes per page. Counting a sample costs about 10 ns; hmd.heat.cooling and
hmd.heat.rates state their own costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hmd.heat.change_detection import NodeSums, believe, node_changes
from hmd.heat.chunks import Chunks
from hmd.heat.cooling import fold
from hmd.heat.geometry import ABSENT, CHUNK_BYTES, CHUNK_PAGES, FIXED, MOVE_WEAR
from hmd.heat.heat_settings import HeatSettings, HeatStats
from hmd.heat.idle_age import NEW, age, successors
from hmd.heat.page_columns import PageRates
from hmd.heat.page_counts import count_nodes
from hmd.heat.page_view import PageView
from hmd.heat.rates import estimate
from hmd.heat.sample_counting import KINDS, SampleSums, SampleWeights, count_samples
from hmd.heat.sample_windows import Clocks
from hmd.machine.process_id import ProcessId
from hmd.machine.topology import Topology
from hmd.sample.access_batch import AccessBatch, Kind
from hmd.units import PAGE_BYTES

# Loads that waited for a node and that give a mean latency, and the share of the last mean that a
# tick with fewer of them keeps.
_WAITS_LEAST = 50.0
_WAITS_FADE = 0.8


class PlanColumns(Protocol):
    """The columns of a plan that the table reads (:class:`hmd.decide.plan.Plan`)."""

    @property
    def processes(self) -> tuple[ProcessId, ...]:
        """The processes that ``process`` indexes."""
        ...

    @property
    def process(self) -> npt.NDArray[np.int32]:
        """Index of each page's process."""
        ...

    @property
    def address(self) -> npt.NDArray[np.uint64]:
        """Start of each page."""
        ...

    @property
    def pages(self) -> npt.NDArray[np.uint32]:
        """Size of each page, in 4 KiB pages."""
        ...

    @property
    def from_node(self) -> npt.NDArray[np.int16]:
        """Node of each page before its move."""
        ...


class HeatTable:
    """Cooled access counts, and the node, of every page of the tracked processes.

    A tick is one call of :meth:`update`. :meth:`view` gives the pages; ``chunks`` is how they are
    stored.
    """

    def __init__(
        self, settings: HeatSettings | None = None, latency_ns: Sequence[float] = ()
    ) -> None:
        """``latency_ns`` is the latency of an idle node, by node id; () where it is not known.

        With it, a load counts for the share of that latency that it took: for the stall, not the
        access. A page that the prefetcher streams is then colder than one whose misses stall.
        """
        self.settings = settings or HeatSettings()
        self._idle_ns = tuple(latency_ns)
        self._latency_ns = np.array(latency_ns, np.float32)
        self._waits = np.zeros((len(self._latency_ns), 2), np.float64)
        self.loaded_ns: npt.NDArray[np.float64] = np.zeros(len(self._latency_ns))
        """Mean latency of recent loads that waited for a node, by node id, in ns: above that of an
        idle node while requests queue there. Near 0 where samples have no latencies."""
        self.stats = HeatStats()
        self.chunks = Chunks()
        self.clocks = Clocks(self.settings)
        self._kind_weight = np.ones((0, KINDS), np.float32)
        self._priority = np.ones(0, np.float64)
        self._worn = False
        self._nodes = 1
        self._rates: PageRates | None = None

    def expect(self, latency_ns: Sequence[float]) -> None:
        """Set the latencies of idle nodes; heat is kept, measured latencies start again."""
        if tuple(latency_ns) == tuple(self._idle_ns):
            return
        self._idle_ns = tuple(latency_ns)
        self._latency_ns = np.array(latency_ns, np.float32)
        self._waits = np.zeros((len(latency_ns), 2), np.float64)
        self.loaded_ns = np.zeros(len(latency_ns))

    @property
    def processes(self) -> tuple[ProcessId, ...]:
        """The tracked processes, which ``process`` columns index."""
        return self.clocks.processes

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Track these processes from now on; heat of processes that stay tracked is kept.

        Rows of later batches index ``processes``. All have equal priority until :meth:`weigh` is
        called.
        """
        if tuple(processes) == self.processes:
            return
        self.changed()
        slots = self.clocks.track(processes)
        self.chunks.renumber(slots)
        count = len(processes)
        self.weigh(np.ones(count), np.full(count, self.settings.store_weight))
        self._measure()

    def weigh(
        self, priority: npt.NDArray[np.float64], store_weight: npt.NDArray[np.float64]
    ) -> None:
        """Set the weights of processes; columns of shape ``(processes,)``.

        ``priority`` multiplies the rates of a process's pages. ``store_weight`` is what a store of
        the process counts for compared with a load, from now on.
        """
        if not len(priority) == len(store_weight) == len(self.processes):
            raise ValueError(f"weights of {len(priority)} processes, not {len(self.processes)}")
        self.changed()
        self._priority = priority.astype(np.float64)
        self._kind_weight = np.ones((len(priority), KINDS), np.float32)
        self._kind_weight[:, Kind.STORE] = store_weight

    def update(self, batch: AccessBatch, elapsed_s: float = 1.0) -> None:
        """Count the samples of a tick that took ``elapsed_s``; call it also without samples."""
        self.changed()
        age(self.chunks.used, successors(self.clocks.tick + 1), self.chunks.columns.idle)
        samples = (batch.process, batch.address, batch.kind, batch.period, batch.weight_ns)
        latency_ns = self._latency_ns if _has_latencies(batch) else self._latency_ns[:0]
        weights = SampleWeights(self._kind_weight, latency_ns)
        used = np.array([self.chunks.used, 0], np.int64)
        sums = SampleSums(used, np.zeros((len(self.processes), 3), np.float64), self._waits)
        row = 0
        while True:
            chunks = self.chunks
            row = count_samples(row, samples, weights, chunks.columns, chunks.index, sums)
            chunks.used = int(used[0])
            if row == len(batch):
                break
            chunks.grow()
        ignored = int(used[1])
        self.stats.samples += len(batch) - ignored
        self.stats.ignored += ignored
        self.clocks.count(sums.weights, elapsed_s)
        self._close_waits()
        self._close_windows()
        self._fade_wear()
        self._measure()

    def view(self, topology: Topology, pinned: npt.NDArray[np.bool_] | None = None) -> PageView:
        """Return the resident pages as they are now, with tiers by ``topology``.

        Pages of ``pinned`` processes, shape ``(processes,)``, are not movable in it.
        """
        return PageView(self, topology, pinned)

    def rates(self, first: npt.NDArray[np.int64]) -> PageRates:
        """Return how hot pages are now; ``first`` is the first row of each chunk, and the end.

        They are computed once per change of the table, for all views.
        """
        if self._rates is None:
            rows, clocks = int(first[-1]), self.clocks
            rates = PageRates(np.empty(rows, np.float32), np.empty(rows, np.float32))
            intensity = clocks.rate * self._priority
            columns = self.chunks.columns
            kept = self._credible(NodeSums.zeros(len(self.processes), self._nodes))
            estimate(columns, clocks.bundle, intensity, kept, first, rates)
            self._rates = rates
        return self._rates

    def chunk_rates(self) -> npt.NDArray[np.float64]:
        """Return the accesses per second of each chunk, without priorities; shape ``(chunks,)``.

        Costs a tenth of the rates of a view, since it reads no pages.
        """
        used, columns, clocks = self.chunks.used, self.chunks.columns, self.clocks
        process = columns.process[:used]
        counted = columns.heat_sum[:used].astype(np.float64) + columns.recent_sum[:used]
        total = clocks.clock + clocks.window
        per_weight = np.divide(clocks.rate, total, out=np.zeros_like(total), where=total > 0)
        rates: npt.NDArray[np.float64] = counted * per_weight[process]
        return rates

    def changed(self) -> None:
        """Discard the rates: samples, resident pages or weights are no longer the same."""
        self._rates = None

    def place(
        self,
        process: int,
        addresses: npt.NDArray[np.uint64],
        node: npt.NDArray[np.int8],
        huge: npt.NDArray[np.bool_] | None = None,
    ) -> int:
        """Record the nodes of some chunks' pages; returns how many differ from the record.

        ``process`` is a slot, ``addresses`` are starts of chunks, shape ``(k,)``; ``node`` has
        shape ``(k, 512)``: a node, ``ABSENT``, or ``FIXED - node`` for an unmovable page. ``huge``
        marks the chunks that are huge pages; default none. Chunks without pages are removed.
        """
        self.changed()
        self._note_nodes(node)
        present = (node != ABSENT).any(axis=1)
        found = self.chunks.find(process, addresses)
        missing = present & (found < 0)
        if missing.any():
            self.chunks.add(process, addresses[missing])
            found = self.chunks.find(process, addresses)
        columns, rows = self.chunks.columns, found[present]
        changed = int(np.count_nonzero(columns.node[rows] != node[present]))
        # A page that came since, and was not sampled before this sweep found it, is new.
        was, there = columns.node[rows] != ABSENT, node[present] != ABSENT
        new = ~there | (~was & (columns.idle[rows] >= NEW))
        columns.idle[rows] = np.where(new, np.uint8(NEW), columns.idle[rows])
        columns.node[rows] = node[present]
        columns.huge[rows] = False if huge is None else huge[present]
        columns.resident[rows] = (node[present] != ABSENT).sum(axis=1)
        columns.swept[rows] = self.clocks.tick + 1
        gone = found[~present & (found >= 0)]
        if len(gone):
            changed += int(columns.resident[gone].sum())
            self.chunks.remove(gone)
        self._measure()
        return changed

    def settle(
        self, moves: PlanColumns, node: npt.NDArray[np.int16], stuck: npt.NDArray[np.bool_]
    ) -> None:
        """Record the outcome of a plan; all columns have shape ``(n,)``.

        ``node`` is where each page is now, below 0 where that is not known. ``stuck`` marks pages
        that cannot be moved for a reason of their own: they are unmovable until the next sweep. A
        page that has moved gets wear, which raises the cost of its next move.
        """
        if not len(moves.address):
            return
        slots = {process: slot for slot, process in enumerate(self.processes)}
        slot_of = np.array([slots.get(p, -1) for p in moves.processes], np.int32)
        rows = slot_of[moves.process]
        for slot in np.unique(rows[rows >= 0]):
            pages = np.flatnonzero(rows == slot)
            chunk = self.chunks.find(int(slot), moves.address[pages])
            pages, chunk = pages[chunk >= 0], chunk[chunk >= 0]
            self._settle_pages(moves, node, stuck, pages, chunk)

    def _settle_pages(
        self,
        moves: PlanColumns,
        node: npt.NDArray[np.int16],
        stuck: npt.NDArray[np.bool_],
        rows: npt.NDArray[np.intp],
        chunk: npt.NDArray[np.int32],
    ) -> None:
        """Record the outcome of rows of one process; ``chunk`` has the table's row of each."""
        columns = self.chunks.columns
        # A page whose node is not known: its chunk is swept first.
        columns.swept[chunk[node[rows] < 0]] = 0
        known = node[rows] >= 0
        rows, chunk = rows[known], chunk[known]
        page = (moves.address[rows] % CHUNK_BYTES // PAGE_BYTES).astype(np.int64)
        here = node[rows].astype(np.int8)
        coded = np.where(stuck[rows], FIXED - here, here).astype(np.int8)
        self._note_nodes(coded)
        moved = here != moves.from_node[rows]
        huge = moves.pages[rows] == CHUNK_PAGES
        present = columns.node[chunk[huge]] != ABSENT
        columns.node[chunk[huge]] = np.where(present, coded[huge, None], ABSENT)
        columns.node[chunk[~huge], page[~huge]] = coded[~huge]
        worn = columns.wear[chunk, page]
        worn[moved] = np.minimum(worn[moved], 255 - MOVE_WEAR) + MOVE_WEAR
        columns.wear[chunk, page] = worn
        self._worn |= bool(moved.any())

    def resident_pages(self, nodes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return 4 KiB pages per process and node, shape ``(processes, nodes)``.

        First the movable ones, then the unmovable ones.
        """
        movable = np.zeros((len(self.processes), nodes), np.int64)
        fixed = np.zeros_like(movable)
        used, columns = self.chunks.used, self.chunks.columns
        count_nodes(columns.process[:used], columns.node, movable, fixed)
        return movable, fixed

    def _close_waits(self) -> None:
        """Set the loaded latency of the nodes for which enough loads waited."""
        enough = self._waits[:, 0] >= _WAITS_LEAST
        self.loaded_ns[enough] = self._waits[enough, 1] / self._waits[enough, 0]
        self.loaded_ns[~enough] *= _WAITS_FADE
        self._waits[enough] = 0.0

    def _close_windows(self) -> None:
        """Add the windows that have enough samples to the history."""
        chunks, clocks = self.chunks, self.clocks
        columns = chunks.columns
        resident = np.bincount(
            columns.process[: chunks.used],
            weights=columns.resident[: chunks.used],
            minlength=len(self.processes),
        ).astype(np.float64)
        window, keep = clocks.due(resident)
        if not window.any():
            return
        nodes = NodeSums.zeros(len(self.processes), self._nodes)
        kept = self._credible(nodes)
        change = np.ones_like(nodes.counted)
        node_changes(nodes, self.settings.surprise, change)
        fold(chunks.used, columns, clocks.bundle, window, keep, kept, change)
        clocks.close(window, keep)
        self.stats.windows += int(np.count_nonzero(window))

    def _credible(self, nodes: NodeSums) -> npt.NDArray[np.float32]:
        """Return the share of its history to keep of each page, shape ``(chunks, 512)``.

        ``nodes``, shape ``(processes, nodes)``, gets the sums of the window.
        """
        used = self.chunks.used
        kept = np.empty((used, CHUNK_PAGES), np.float32)
        columns, surprise = self.chunks.columns, self.settings.surprise
        believe(used, columns, self.clocks.bundle, surprise, kept, nodes)
        return kept

    def _note_nodes(self, codes: npt.NDArray[np.int8]) -> None:
        """Make the sums by node as wide as the highest node of a ``node`` column."""
        if codes.size:
            highest = max(int(codes.max()), FIXED - int(codes.min()))
            self._nodes = max(self._nodes, highest + 1)

    def _fade_wear(self) -> None:
        """Reduce the wear of moved pages."""
        if self._worn:
            wear = self.chunks.columns.wear[: self.chunks.used]
            wear -= (wear >> 4) + (wear > 0)
            self._worn = bool(wear.any())

    def _measure(self) -> None:
        self.stats.chunks = self.chunks.used
        self.stats.bytes = self.chunks.nbytes


def _has_latencies(batch: AccessBatch) -> bool:
    """Return whether the sampler measures latencies: some loads then have one above 0."""
    return bool(batch.weight_ns[batch.kind == Kind.LOAD].any())
