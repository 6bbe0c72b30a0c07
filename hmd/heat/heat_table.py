"""The heat table: for every page of the tracked processes how hot it is and where it lies.

Takes batches of samples and answers about residency, gives rates per page. Flat arrays in
chunks of 2 MiB of address space, made on demand, 12 bytes a page. Counting a sample costs about
10 ns; cooling and rates cost what hmd.heat.cooling and hmd.heat.rates say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hmd.heat.change_detection import believe
from hmd.heat.chunks import Chunks
from hmd.heat.cooling import fold
from hmd.heat.geometry import ABSENT, CHUNK_BYTES, CHUNK_PAGES, FIXED
from hmd.heat.heat_settings import HeatSettings, HeatStats
from hmd.heat.idle_age import NEW, Idle, age, decoded, successors
from hmd.heat.page_counts import count_nodes
from hmd.heat.rates import estimate
from hmd.heat.sample_counting import KINDS, scatter
from hmd.heat.sample_windows import Clocks
from hmd.machine.process_id import ProcessId
from hmd.sample.access_batch import AccessBatch, Kind
from hmd.units import PAGE_BYTES

#: A move adds this to a page's wear; wear halves in about ten ticks.
MOVE_WEAR = 64

# How many waits for a node tell their mean, and what a tick with fewer leaves of the last one.
_WAITS_LEAST = 50.0
_WAITS_FADE = 0.8


@dataclass(frozen=True, slots=True)
class PageRates:
    """How hot pages are now, shape ``(chunks, 512)``; 0 where no page is.

    ``rate`` is in accesses a tick, times the priority of their process, ``support`` the number of
    samples behind it.
    """

    rate: npt.NDArray[np.float32]
    support: npt.NDArray[np.float32]


class PlanColumns(Protocol):
    """The columns of a plan that the table needs (:class:`hmd.decide.plan.Plan`)."""

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
        """Size of each page in 4 KiB."""
        ...

    @property
    def from_node(self) -> npt.NDArray[np.int16]:
        """Where each page was."""
        ...


class HeatTable:
    """Cooled access counts, and the node, of every page of the tracked processes.

    ``chunks`` holds the columns. A tick is one call of :meth:`update`.
    """

    def __init__(
        self, settings: HeatSettings | None = None, latency_ns: Sequence[float] = ()
    ) -> None:
        """``latency_ns`` is that of an idle node, by node id; () where it is not known.

        With it, a load counts for the part of it that it took: for the stall, not the access. So
        a page that the prefetcher streams is not as hot as one whose misses all are waited for.
        """
        self.settings = settings or HeatSettings()
        self._told_ns = tuple(latency_ns)
        self._latency_ns = np.array(latency_ns, np.float32)
        self._waits = np.zeros((len(self._latency_ns), 2), np.float64)
        self.loaded_ns: npt.NDArray[np.float64] = np.zeros(len(self._latency_ns))
        """Mean latency of late of loads that waited for a node, by node id, in ns: above that of an
        idle node as far as requests queue there. Next to 0 where nobody tells."""
        self.stats = HeatStats()
        self.chunks = Chunks()
        self.clocks = Clocks(self.settings)
        self._kind_weight = np.ones((0, KINDS), np.float32)
        self._priority = np.ones(0, np.float64)
        self._worn = False

    def expect(self, latency_ns: Sequence[float]) -> None:
        """Take nodes to be this fast from now on; heat is kept, waits are counted anew."""
        if tuple(latency_ns) == tuple(self._told_ns):
            return
        self._told_ns = tuple(latency_ns)
        self._latency_ns = np.array(latency_ns, np.float32)
        self._waits = np.zeros((len(latency_ns), 2), np.float64)
        self.loaded_ns = np.zeros(len(latency_ns))

    @property
    def processes(self) -> tuple[ProcessId, ...]:
        """The tracked processes; ``process`` columns index them."""
        return self.clocks.processes

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Follow these processes: the heat of those that stay is kept, of others dropped.

        Rows of later batches index ``processes``. All weigh alike until :meth:`weigh` is called.
        """
        if tuple(processes) == self.processes:
            return
        slots = self.clocks.track(processes)
        self.chunks.renumber(slots)
        count = len(processes)
        self.weigh(np.ones(count), np.full(count, self.settings.store_weight))
        self._measure()

    def weigh(
        self, priority: npt.NDArray[np.float64], store_weight: npt.NDArray[np.float64]
    ) -> None:
        """Let some processes count for more than others; columns of shape ``(processes,)``.

        ``priority`` multiplies the rates of a process's pages, ``store_weight`` is what its stores
        count for against loads from now on.
        """
        if not len(priority) == len(store_weight) == len(self.processes):
            raise ValueError(f"weights of {len(priority)} processes, not {len(self.processes)}")
        self._priority = priority.astype(np.float64)
        self._kind_weight = np.ones((len(priority), KINDS), np.float32)
        self._kind_weight[:, Kind.STORE] = store_weight

    def update(self, batch: AccessBatch) -> None:
        """Count a tick's samples; call it once a tick, also with an empty batch."""
        age(self.chunks.used, successors(self.clocks.tick + 1), self.chunks.columns.idle)
        sums = np.zeros((len(self.processes), 3), np.float64)
        latency_ns = self._latency_ns if _knows_latencies(batch) else self._latency_ns[:0]
        row, ignored = 0, 0
        while True:
            chunks = self.chunks
            used = np.array([chunks.used, 0], np.int64)
            row = scatter(
                row,
                batch.process,
                batch.address,
                batch.kind,
                batch.period,
                batch.weight_ns,
                self._kind_weight,
                latency_ns,
                chunks.keys,
                chunks.places,
                used,
                chunks.columns.process,
                chunks.columns.address,
                chunks.columns.recent,
                chunks.columns.recent_sum,
                chunks.columns.node,
                chunks.columns.swept,
                chunks.columns.idle,
                sums,
                self._waits,
            )
            chunks.used = int(used[0])
            ignored += int(used[1])
            if row == len(batch):
                break
            chunks.grow()
        self.stats.samples += len(batch) - ignored
        self.stats.ignored += ignored
        self.clocks.count(sums)
        self._close_waits()
        self._close_windows()
        self._heal()
        self._measure()

    def rates(self) -> PageRates:
        """Return how hot every page is now."""
        chunks, clocks = self.chunks, self.clocks
        columns = chunks.columns
        rate = np.empty((chunks.used, CHUNK_PAGES), np.float32)
        support = np.empty((chunks.used, CHUNK_PAGES), np.float32)
        estimate(
            chunks.used,
            columns.process,
            columns.huge,
            columns.node,
            columns.heat,
            columns.recent,
            columns.exposure,
            self._believed(),
            columns.heat_sum,
            columns.recent_sum,
            clocks.clock,
            clocks.window,
            clocks.unit,
            clocks.intensity * self._priority,
            rate,
            support,
        )
        return PageRates(rate, support)

    def place(
        self,
        process: int,
        addresses: npt.NDArray[np.uint64],
        node: npt.NDArray[np.int8],
        huge: npt.NDArray[np.bool_] | None = None,
    ) -> int:
        """Take note of where the pages of some chunks are; returns how many that is news of.

        ``process`` is a slot, ``addresses`` are starts of chunks, shape ``(k,)``; ``node`` has
        shape ``(k, 512)``: a node, ``ABSENT``, or ``FIXED - node`` for a page that must stay.
        ``huge`` says which chunks are huge pages, none if not given. Chunks without any page are
        dropped, or not even made.
        """
        present = (node != ABSENT).any(axis=1)
        found = self.chunks.find(process, addresses)
        missing = present & (found < 0)
        if missing.any():
            self.chunks.add(process, addresses[missing])
            found = self.chunks.find(process, addresses)
        columns, rows = self.chunks.columns, found[present]
        changed = int(np.count_nonzero(columns.node[rows] != node[present]))
        # What has come, and was not sampled before it was seen to be there, is new.
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
        """Take note of what became of a plan; all columns have shape ``(n,)``.

        ``node`` is where each page is now, below 0 where that is not known; ``stuck`` marks
        pages that could not be moved for a reason of their own: they are left alone until they
        are next swept. A page that has moved gets wear, which makes the next move dearer.
        """
        if not len(moves.address):
            return
        slots = {process: slot for slot, process in enumerate(self.processes)}
        slot_of = np.array([slots.get(p, -1) for p in moves.processes], np.int32)
        rows = slot_of[moves.process]
        for slot in np.unique(rows[rows >= 0]):
            mine = np.flatnonzero(rows == slot)
            found = self.chunks.find(int(slot), moves.address[mine])
            mine, found = mine[found >= 0], found[found >= 0]
            self._settle_pages(moves, node, stuck, mine, found)

    def _settle_pages(
        self,
        moves: PlanColumns,
        node: npt.NDArray[np.int16],
        stuck: npt.NDArray[np.bool_],
        rows: npt.NDArray[np.intp],
        found: npt.NDArray[np.int32],
    ) -> None:
        """Settle rows of one process, whose chunks are ``found``."""
        columns = self.chunks.columns
        # Unknown: the chunk is swept first of all.
        columns.swept[found[node[rows] < 0]] = 0
        here = node[rows] >= 0
        rows, found = rows[here], found[here]
        page = (moves.address[rows] % CHUNK_BYTES // PAGE_BYTES).astype(np.int64)
        where = node[rows].astype(np.int8)
        coded = np.where(stuck[rows], FIXED - where, where).astype(np.int8)
        moved = where != moves.from_node[rows]
        huge = moves.pages[rows] == CHUNK_PAGES
        present = columns.node[found[huge]] != ABSENT
        columns.node[found[huge]] = np.where(present, coded[huge, None], ABSENT)
        columns.node[found[~huge], page[~huge]] = coded[~huge]
        worn = columns.wear[found, page]
        worn[moved] = np.minimum(worn[moved], 255 - MOVE_WEAR) + MOVE_WEAR
        columns.wear[found, page] = worn
        self._worn |= bool(moved.any())

    def idle(self) -> Idle:
        """Return for how long every page was not seen in use."""
        used, columns = self.chunks.used, self.chunks.columns
        return decoded(columns.idle[:used], columns.huge[:used])

    def resident_pages(self, nodes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return pages by process and node, shape ``(processes, nodes)``.

        First those that may be moved, then those that must stay.
        """
        movable = np.zeros((len(self.processes), nodes), np.int64)
        fixed = np.zeros_like(movable)
        columns = self.chunks.columns
        count_nodes(self.chunks.used, columns.process, columns.node, movable, fixed)
        return movable, fixed

    def _close_waits(self) -> None:
        """Take over the mean waits for those nodes where enough loads tell."""
        told = self._waits[:, 0] >= _WAITS_LEAST
        self.loaded_ns[told] = self._waits[told, 1] / self._waits[told, 0]
        self.loaded_ns[~told] *= _WAITS_FADE
        self._waits[told] = 0.0

    def _close_windows(self) -> None:
        """Fold the windows that have enough samples into the history."""
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
        fold(
            chunks.used,
            columns.process,
            clocks.clock,
            window,
            keep,
            clocks.unit,
            self._believed(),
            columns.heat,
            columns.recent,
            columns.exposure,
            columns.heat_sum,
            columns.recent_sum,
        )
        clocks.close(window, keep)
        self.stats.windows += int(np.count_nonzero(window))

    def _believed(self) -> npt.NDArray[np.float32]:
        """Return the share of its history to keep, by page."""
        chunks, clocks, columns = self.chunks, self.clocks, self.chunks.columns
        kept = np.empty((chunks.used, CHUNK_PAGES), np.float32)
        believe(
            chunks.used,
            columns.process,
            clocks.clock,
            clocks.window,
            clocks.unit,
            self.settings.surprise,
            columns.heat,
            columns.recent,
            columns.exposure,
            columns.heat_sum,
            columns.recent_sum,
            kept,
        )
        return kept

    def _heal(self) -> None:
        """Let the wear of moved pages fade."""
        if self._worn:
            wear = self.chunks.columns.wear[: self.chunks.used]
            wear -= (wear >> 4) + (wear > 0)
            self._worn = bool(wear.any())

    def _measure(self) -> None:
        self.stats.chunks = self.chunks.used
        self.stats.bytes = self.chunks.nbytes


def _knows_latencies(batch: AccessBatch) -> bool:
    """Tell whether a batch's sampler measures latencies: of some loads they are not 0 then."""
    return bool(batch.weight_ns[batch.kind == Kind.LOAD].any())
