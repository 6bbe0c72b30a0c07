"""The heat table: how hot every page of the tracked processes is, and on which node it is.

Takes batches of samples and the nodes of pages, gives a view of pages with their rates
(:mod:`hmd.heat.view.page_view`). Stored as arrays over chunks of 2 MiB of address space, allocated
on demand: 12 bytes per page of a bounded number of chunks, and about 80 bytes for each chunk.
Without pages of its own a chunk is counted as a whole, as a huge page is. Counting a sample costs
about 10 ns, 100 ns at 1 TiB; hmd.heat.rates.cooling and hmd.heat.rates.posterior_rates state their
own costs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hmd.heat.chunk_columns import TableRates
from hmd.heat.chunk_index import find_nodes
from hmd.heat.chunks import Chunks
from hmd.heat.geometry import ABSENT
from hmd.heat.heat_settings import HeatSettings, HeatStats
from hmd.heat.idle_age import age, successors
from hmd.heat.page_counts import count_nodes
from hmd.heat.page_detail import drop_details, grant_details
from hmd.heat.placing import place_pages, place_wholes
from hmd.heat.rates.change_points import ChangePoints, discount
from hmd.heat.rates.loaded_waits import LoadedWaits
from hmd.heat.rates.posterior_rates import PageSpreads, estimate, sum_up
from hmd.heat.rates.rate_priors import PriorSums, priors_of
from hmd.heat.rates.sample_windows import Clocks
from hmd.heat.rates.wear_fading import fade_wear
from hmd.heat.rates.window_closing import close_windows, credible
from hmd.heat.sample_counting import (
    KINDS,
    CountedSamples,
    SampleSums,
    SampleWeights,
    count_samples,
)
from hmd.heat.settling import PlanColumns, Settled
from hmd.heat.view.leaving_rows import count_leaving, leaving_codes, leaving_rows
from hmd.heat.view.page_view import PageView
from hmd.heat.whole_chunks import estimate_wholes
from hmd.machine.nodes.topology import Topology
from hmd.machine.process_id import ProcessId
from hmd.sample.access_batch import AccessBatch, Kind

LEAST_DETAILS = 64
"""Chunks whose pages are counted one by one however little memory there is: 400 KiB."""


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
        self._waits = LoadedWaits(latency_ns)
        self.stats = HeatStats()
        self.chunks = Chunks(self.settings.detail_chunks)
        self.cursor = np.zeros(1, np.int64)
        self.clocks = Clocks(self.settings)
        self._changes = ChangePoints()
        self._kind_weight = np.ones((0, KINDS), np.float32)
        self._priority = np.ones(0, np.float64)
        self._worn = False
        self.last_batch, self._counted = AccessBatch.empty(), _none_counted(0)
        """The samples of the last update; none once the processes have changed since."""
        self._rates: TableRates | None = None
        self._resident: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None

    def expect(self, latency_ns: Sequence[float]) -> None:
        """Set the latencies of idle nodes; heat is kept, measured latencies start again."""
        if not self._waits.expects(latency_ns):
            self._waits = LoadedWaits(latency_ns)

    @property
    def loaded_ns(self) -> npt.NDArray[np.float64]:
        """Mean latency of recent loads that waited for a node, by node id, in ns.

        Above that of an idle node while requests queue there. Near 0 where samples have no
        latencies.
        """
        return self._waits.mean_ns

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
        self.last_batch, self._counted = AccessBatch.empty(), _none_counted(0)
        slots = self.clocks.track(processes)
        self.chunks.renumber(slots)
        self._changes.track(slots, len(processes), self.clocks.tick)
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
        most = self.clocks.weight_most.astype(np.float32)
        weights = SampleWeights(self._kind_weight, most, self._waits.idle_of(batch))
        self._forget_refuted(batch, weights)
        self.changed()
        self.last_batch, self._counted = batch, _none_counted(len(batch))
        if not self.processes:  # nothing to count, and no kernels to load
            self.clocks.count(np.zeros((0, 4), np.float64), elapsed_s)
            self.stats.ignored += len(batch)
            return
        columns = self.chunks.columns
        following = successors(self.clocks.tick + 1)
        age(self.chunks.used, following, columns.owner, columns.idle, columns.rested)
        samples = (batch.process, batch.address, batch.kind, batch.period, batch.weight_ns)
        none = np.zeros((len(self.processes), 4), np.float64)
        sums = SampleSums(np.zeros(1, np.int64), none, self._waits.sums)
        before, counted = self.chunks.used, self._counted
        row = 0
        while True:
            chunks = self.chunks
            row = count_samples(
                row, samples, weights, chunks.columns, chunks.index, chunks.state, sums, counted
            )
            if row == len(batch):
                break
            chunks.grow()
        if chunks.used != before:
            chunks.renew()
        ignored = int(sums.ignored[0])
        self.stats.samples += len(batch) - ignored
        self.stats.ignored += ignored
        self.clocks.count(sums.weights, elapsed_s)
        self._waits.close()
        clocks = self.clocks
        self.stats.windows += close_windows(chunks, clocks, self.settings.change_threshold)
        self.stats.details_lost += grant_details(chunks, clocks.bundle, clocks.tick)
        self._fade_wear()
        self._measure()

    def view(
        self,
        topology: Topology,
        pinned: npt.NDArray[np.bool_] | None = None,
        rows_most: int | None = None,
        also: npt.NDArray[np.int64] | None = None,
    ) -> PageView:
        """Return the resident pages as they are now, with tiers by ``topology``.

        Pages of ``pinned`` processes, shape ``(processes,)``, are not movable in it. Of a table
        with more than twice ``rows_most`` rows it shows so many, those that a plan may be about
        (:mod:`hmd.heat.view.row_selection`), and the rows of the numbers ``also``; None shows all.
        """
        return PageView(self, topology, pinned, rows_most, also=also)

    def leaving(
        self,
        topology: Topology,
        pinned: npt.NDArray[np.bool_],
        leaves: npt.NDArray[np.bool_],
        rows_most: int,
        *,
        longest_idle: bool = False,
    ) -> PageView:
        """Return the pages that lie where they are not to stay, as :meth:`view` does.

        ``leaves``, shape ``(processes, nodes)``, says which those are. Of more than ``rows_most``
        rows it shows the hottest, or the ``longest_idle`` (:mod:`hmd.heat.view.leaving_rows`).
        """
        chunks, codes = self.chunks, leaving_codes(leaves)
        number = np.empty(0, np.int64)
        if leaves.any() and count_leaving(chunks.used, chunks.columns, codes):
            rates = None if longest_idle else self.rates()
            number = leaving_rows(chunks.used, chunks.columns, codes, rates, rows_most)
        return PageView(self, topology, pinned, number=number)

    def rates(self) -> TableRates:
        """Return how hot pages are now; computed once per change of the table, for all views."""
        if self._rates is None:
            chunks, clocks = self.chunks, self.clocks
            pages, used = chunks.columns.node.shape, chunks.used
            rates = TableRates(
                np.empty(pages, np.float32),
                np.empty(pages, np.float32),
                np.empty(used, np.float32),
                np.empty(used, np.float32),
            )
            intensity = clocks.rate * self._priority
            change_threshold = self.settings.change_threshold
            kept = credible(chunks, clocks, change_threshold)
            columns, bundle = chunks.columns, clocks.bundle
            resident = np.zeros(len(intensity))
            estimate_wholes(used, columns, bundle, intensity, change_threshold, rates, resident)
            sums, spreads = PriorSums.zeros(len(intensity)), PageSpreads.empty(len(columns.owner))
            sum_up(columns, bundle, kept, sums, spreads)
            priors = priors_of(sums, self._changes.spreads)
            estimate(columns, bundle, intensity, kept, priors, spreads, rates)
            mean = np.divide(intensity, resident, out=np.zeros(len(resident)), where=resident > 0)
            self._changes.know(rates, mean, priors, chunks)
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

    @property
    def lasting_ticks(self) -> npt.NDArray[np.float64]:
        """For how many ticks heat of each process is expected to last, by the changes so far.

        Infinite where it has not changed; shape ``(processes,)``.
        """
        return self._changes.lasting_ticks(self.clocks.tick)

    @property
    def sample_weights(self) -> npt.NDArray[np.float32]:
        """What each sample of ``last_batch`` counted for, 0 if it was ignored."""
        return self._counted.weight

    def sampled_nodes(self, batch: AccessBatch) -> npt.NDArray[np.int16]:
        """Return where the last update found each sample's page, -1 where not known then.

        Of another batch nothing is known; shape ``(len(batch),)``.
        """
        if batch is self.last_batch and len(self._counted.node) == len(batch):
            return self._counted.node.copy()
        return np.full(len(batch), -1, np.int16)

    def changed(self) -> None:
        """Discard the rates: samples, resident pages or weights are no longer the same."""
        self._rates = None
        self._resident = None

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
        present = (node != ABSENT).any(axis=1)
        found = self.chunks.find(process, addresses)
        missing = present & (found < 0)
        if missing.any():
            self.chunks.add(process, addresses[missing])
            found = self.chunks.find(process, addresses)
        columns, rows, now = self.chunks.columns, found[present], node[present]
        columns.huge[rows] = False if huge is None else huge[present]
        whole = columns.detail[rows] < 0
        changed = place_pages(self.chunks, rows[~whole], now[~whole])
        changed += place_wholes(self.chunks, rows[whole], now[whole])
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
        self._resident = None
        settled = Settled(moves, node, stuck)
        slots = {process: slot for slot, process in enumerate(self.processes)}
        slot_of = np.array([slots.get(p, -1) for p in moves.processes], np.int32)
        rows = slot_of[moves.process]
        for slot in np.unique(rows[rows >= 0]):
            pages = np.flatnonzero(rows == slot)
            chunk = self.chunks.find(int(slot), moves.address[pages])
            self._worn |= settled.record(self.chunks, pages[chunk >= 0], chunk[chunk >= 0])

    def bound_details(self, most: int) -> int:
        """Count at most ``most`` chunks page by page from now on; returns how many lost that.

        Not fewer than ``LEAST_DETAILS``, nor more than the settings say.
        """
        chunks, lost = self.chunks, 0
        most = min(max(most, LEAST_DETAILS), self.settings.detail_chunks)
        if chunks.details > most:
            self.changed()
            lost = drop_details(chunks, self.clocks.bundle, most)
            self.stats.details_dropped += lost
        chunks.bound_details(most)
        self._measure()
        return lost

    def resident_pages(self, nodes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return 4 KiB pages per process and node, shape ``(processes, nodes)``.

        First the movable ones, then the unmovable ones.
        """
        if self._resident is None or self._resident[0].shape[1] != nodes:
            movable = np.zeros((len(self.processes), nodes), np.int64)
            fixed = np.zeros_like(movable)
            if self.chunks.used:
                count_nodes(self.chunks.used, self.chunks.columns, movable, fixed)
            self._resident = movable, fixed
        movable, fixed = self._resident
        return movable.copy(), fixed.copy()

    def nodes_at(
        self, process: npt.NDArray[np.int32], address: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.int16]:
        """Return the node of the page at each address of a process, -1 where none is known.

        All columns have shape ``(n,)``, ``process`` are slots. Costs about 3 ns per page.
        """
        node = np.empty(len(address), np.int16)
        if len(address):
            find_nodes(process, address, self.chunks.index, self.chunks.columns, node)
        return node

    def _forget_refuted(self, batch: AccessBatch, weights: SampleWeights) -> None:
        """Discount the past of processes that the samples of a tick refute."""
        part = self._changes.kept(batch, weights, self.chunks, self.clocks)
        if part is not None:
            discount(self.chunks.used, self.chunks.columns, part)
            self.clocks.discount(part)
            self.stats.changes += int(np.count_nonzero(part < 1.0))

    def _fade_wear(self) -> None:
        """Reduce the wear of moved pages."""
        if self._worn:
            columns = self.chunks.columns
            self._worn = fade_wear(columns.wear, columns.worn[: self.chunks.used])

    def _measure(self) -> None:
        self.stats.chunks = self.chunks.used
        self.stats.details = self.chunks.details
        self.stats.bytes = self.chunks.nbytes


def _none_counted(samples: int) -> CountedSamples:
    """Return what is known of samples before they are counted."""
    return CountedSamples(np.full(samples, -1, np.int16), np.zeros(samples, np.float32))
