"""hmd's estimator: the runtime of a program with its pages placed in any way, from two runs.

Both runs are met exactly: all slow and all fast are what was recorded. In between, the time that
a window gains from the fast tier has two parts.

Waits for memory are proportional to the waits that slow misses begin (``hmd.estimate.overlap``),
times what the slow tier's latency is under the load that the layout leaves it: measured with all
slow, idle with none, and rising with the ``load_power`` of the load in between.

Queues of streams (prefetched lines, stores) appear where the sum of what streams at once ask of
the slow tier is more than its bandwidth, reads and writes apart. That is so where all of some
``streams`` pages under way are slow, or the slow tier's share of the traffic alone takes longer
than the window.

The defaults of ``Coefficients`` were chosen on ten programs of the suite; ``make
bench-estimator`` judges each program with those that are best on all the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from hmd.estimate.estimate import Estimate
from hmd.estimate.layout import Layout
from hmd.estimate.overlap import CLASSES, Pairs, both_slow, classes, neighbours, steepness
from hmd.estimate.runs import Run, Runs
from hmd.estimate.tally import Access

Floats = npt.NDArray[np.float64]

FILL_BUFFERS = 12
_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Coefficients:
    """What is fitted.

    ``overlap`` is the share of measured neighbours that count, ``load_power`` how steeply the
    slow tier's latency rises with its load, ``streams`` how many streams are under way at once.
    """

    overlap: float = 1.0
    most_overlap: float = 24.0
    load_power: float = 2.0
    streams: float = 2.0


class Rows(StrEnum):
    """Whose samples tell what a page's accesses are; where the fast run has none, the slow one's.

    Those of both are the most. Layouts made from one run's samples are priced with the other's:
    what is hottest in one draw of samples is so by luck in part.
    """

    BOTH = "both"
    SLOW = "slow"
    FAST = "fast"


@dataclass(frozen=True, slots=True)
class Terms:
    """Parts of the model, each of which can be left out to see what it buys."""

    overlap: bool = True
    correlation: bool = True
    structures: bool = True
    load: bool = True
    streams: bool = True
    rows: Rows = Rows.BOTH


@dataclass(frozen=True, slots=True)
class SlowMass:
    """What a layout leaves in slow memory: accesses by cell, slow pair members by class.

    ``cells``: loads by window and class; then by window stores, streamed loads, streamed stores.
    ``members`` and ``both`` as :func:`hmd.estimate.overlap.both_slow` takes them.
    """

    cells: Floats
    members: Floats
    both: Floats


@dataclass(frozen=True, slots=True)
class Model:
    """A program's two runs, ready to price layouts.

    Rows, of shape ``(rows,)``: ``accesses`` to a ``page``, in a ``cell`` (as in ``SlowMass``), by
    so many ``samples``.
    ``total`` are their sums by cell. By window, ``(windows,)``: how long both runs took, their
    latencies of loads, and of the difference in time what was waits for loads (``waiting_ns``),
    for fill buffers that stores held (``holding_ns``) and queues of streams (``queueing_ns``).
    ``k_less_1``, ``(windows, classes)``, is how many misses overlap with one.
    """

    page: npt.NDArray[np.int32]
    cell: npt.NDArray[np.int32]
    samples: npt.NDArray[np.int32]
    accesses: npt.NDArray[np.float32]
    pages: int
    slow_ns: Floats
    fast_ns: Floats
    slow_latency_ns: Floats
    fast_latency_ns: Floats
    idle_latency_ns: float
    total: Floats
    waiting_ns: Floats
    holding_ns: Floats
    queueing_ns: Floats
    k_less_1: Floats
    pairs: Pairs
    write_cost: float
    coefficients: Coefficients = field(default_factory=Coefficients)
    terms: Terms = field(default_factory=Terms)

    @property
    def windows(self) -> int:
        """Number of windows."""
        return len(self.slow_ns)

    def sums(self) -> Floats:
        """Return the rows' accesses by cell."""
        return np.bincount(self.cell, self.accesses, len(self.total)).astype(np.float64)

    def window_of_rows(self) -> npt.NDArray[np.int32]:
        """Return each row's window."""
        loads = self.windows * CLASSES
        beyond = (self.cell - loads) % self.windows
        return np.where(self.cell < loads, self.cell // CLASSES, beyond).astype(np.int32)

    def slow_mass(self, slow: npt.NDArray[np.float32]) -> SlowMass:
        """Return what lies in slow memory where so much of each page does, ``(pages,)``."""
        from hmd.estimate.mass import add_pairs, add_slow

        cells = np.zeros(self.windows * (CLASSES + 3))
        add_slow(self.page, self.cell, self.accesses, slow, cells)
        members, both = np.zeros(CLASSES), np.zeros(CLASSES)
        pairs = self.pairs
        add_pairs(pairs.page_a, pairs.page_b, pairs.class_a, pairs.class_b, slow, members, both)
        return SlowMass(cells, members, both)

    def estimate(self, layout: Layout) -> Estimate:
        """Return the run with the pages of ``layout`` (True) in fast memory."""
        return self.price(self.slow_mass((~layout).astype(np.float32)))

    def price(self, mass: SlowMass) -> Estimate:
        """Return the run of what lies in slow memory."""
        slow, held, streamed, stored = _split(mass.cells, self.windows)
        misses, all_held, all_streamed, all_stored = _split(self.total, self.windows)
        lines = misses.sum(1) + all_held + all_streamed + all_stored
        # A window without a sample is like the rest.
        mean = float(mass.cells.sum()) / max(float(lines.sum()), 1e-12)
        traffic = _share(slow.sum(1) + held + streamed + stored, lines, otherwise=mean)
        share = _share(slow.sum(1), misses.sum(1), otherwise=traffic)
        waits = self._waits(slow, share, mass)
        written = _share(held + stored, all_held + all_stored, otherwise=traffic)
        queues = self._queues(traffic, written)
        holds = _share(held, all_held, otherwise=traffic)
        window_ns = self._loaded(waits, holds, queues, traffic)
        return Estimate(float(window_ns.sum()), window_ns)

    def _waits(self, slow: Floats, share: Floats, mass: SlowMass) -> Floats:
        """Return the share of all slow's waits for memory that remains, ``(windows,)``."""
        if not self.terms.overlap:
            return share
        alike = (
            both_slow(self.pairs, mass.members, mass.both, share)
            if self.terms.correlation
            else np.repeat(share[:, None], CLASSES, axis=1)
        )
        others = self.k_less_1 * self.coefficients.overlap
        others = others / (1 + others / self.coefficients.most_overlap)
        remaining = (slow / (1 + others * alike)).sum(1)
        full = (_split(self.total, self.windows)[0] / (1 + others)).sum(1)
        return np.asarray(np.clip(_share(remaining, full, otherwise=share), 0.0, 1.0))

    def _queues(self, traffic: Floats, stores: Floats) -> Floats:
        """Return the time that streams wait for the slow tier's bandwidth, ``(windows,)``."""
        queueing, streams = self.queueing_ns, self.coefficients.streams
        if not self.terms.streams:
            return queueing * traffic
        misses, held, streamed, stored = _split(self.total, self.windows)
        writes = held + stored
        reads = misses.sum(1) + streamed + writes
        writes = writes * self.write_cost
        # Of a window without a sample nobody knows which of the two fills the tier.
        most = np.maximum(reads, writes)
        reads, writes = _share(reads, most, otherwise=1.0), _share(writes, most, otherwise=1.0)
        at_once = np.maximum(reads * traffic**streams, writes * stores**streams)
        saturated_ns = self.fast_ns + queueing
        sustained = np.maximum(reads * traffic, writes * stores) * saturated_ns - self.fast_ns
        return np.asarray(np.maximum(queueing * at_once, np.where(queueing > 0, sustained, 0.0)))

    def _loaded(self, waits: Floats, holds: Floats, queues: Floats, traffic: Floats) -> Floats:
        """Return windows' times, with the slow tier's latency at the load that results."""
        rest = np.minimum(self.slow_ns - self.fast_ns, 0.0) * traffic
        exposed = self.waiting_ns * waits + self.holding_ns * holds
        window_ns = self.fast_ns + exposed + queues
        if self.terms.load and self.idle_latency_ns > 0:
            most = np.maximum(self.slow_latency_ns, self.fast_latency_ns + 1)
            idle = np.minimum(self.idle_latency_ns, most)
            for _ in range(_ROUNDS):
                load = np.clip(traffic * self.slow_ns / np.maximum(window_ns, 1e-9), 0.0, 1.0)
                latency = idle + (most - idle) * load**self.coefficients.load_power
                factor = (latency - self.fast_latency_ns) / (most - self.fast_latency_ns)
                window_ns = self.fast_ns + exposed * np.clip(factor, 0.0, 1.0) + queues
        return np.asarray(window_ns + rest)


def build_model(
    runs: Runs, coefficients: Coefficients | None = None, terms: Terms | None = None
) -> Model:
    """Return the model of a program from its two recorded runs."""
    terms = terms or Terms()
    wanted = {
        Rows.BOTH: (runs.slow, runs.fast),
        Rows.SLOW: (runs.slow,),
        Rows.FAST: (runs.fast,),
    }[terms.rows]
    used = [run for run in wanted if len(run.page)] or [runs.slow]
    page = np.concatenate([run.page for run in used])
    window = np.concatenate([run.window for run in used])
    accesses = (np.concatenate([run.accesses for run in used]) / len(used)).astype(np.float32)
    samples = np.concatenate([run.samples for run in used])
    access = np.concatenate([run.access for run in used])
    waits = access == Access.LOAD
    windows, pages = runs.windows, len(runs.pages)
    of_page = (
        classes(page[waits], accesses[waits], pages)
        if terms.structures
        else np.zeros(pages, np.int32)
    )
    cell = np.where(
        waits,
        window * CLASSES + of_page[page],
        windows * (CLASSES + access.astype(np.int32) - 1) + window,
    ).astype(np.int32)
    total = np.bincount(cell, accesses, windows * (CLASSES + 3)).astype(np.float64)
    misses = _split(total, windows)[0]
    pairs = _pairs_of(used, of_page)
    longer = np.maximum(runs.slow.ns - runs.fast.ns, 0.0)
    gap = np.maximum(runs.slow.latency_ns - runs.fast.latency_ns, 1.0)
    if not runs.slow.latency_ns.any():
        # Unknown: no misses overlap.
        gap = np.maximum(longer / np.maximum(misses.sum(1), 1.0), 1e-9)
    sampled = np.bincount(of_page[page[waits]], samples[waits], CLASSES).astype(np.float64)
    period = float(accesses[waits].sum()) * len(used) / max(float(sampled.sum()), 1.0)
    k_less_1 = neighbours(pairs, sampled, period)
    waiting, holding, queueing = _parts(runs, longer, misses, k_less_1, gap)
    if pairs.enough:
        k_less_1 = steepness(misses, k_less_1, waiting / gap)[:, None] * k_less_1
    else:
        alone = np.clip(misses.sum(1) / np.maximum(waiting / gap, 1e-9), 1.0, 64.0) - 1
        k_less_1 = np.repeat(alone[:, None], CLASSES, axis=1)
    speeds = runs.speeds
    return Model(
        page=page,
        cell=cell,
        samples=samples,
        accesses=accesses,
        pages=pages,
        slow_ns=runs.slow.ns,
        fast_ns=runs.fast.ns,
        slow_latency_ns=runs.slow.latency_ns,
        fast_latency_ns=runs.fast.latency_ns,
        idle_latency_ns=speeds.slow_latency_ns,
        total=total,
        waiting_ns=waiting,
        holding_ns=holding,
        queueing_ns=queueing,
        k_less_1=k_less_1,
        pairs=pairs,
        write_cost=speeds.slow_read_bytes_per_ns / speeds.slow_write_bytes_per_ns
        if speeds.slow_write_bytes_per_ns > 0
        else 1.0,
        coefficients=coefficients or Coefficients(),
        terms=terms,
    )


def _split(cells: Floats, windows: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Return loads, ``(windows, classes)``, stores, streamed loads and stores, ``(windows,)``."""
    loads, rest = cells[: windows * CLASSES], cells[windows * CLASSES :]
    held, streamed, stored = rest.reshape(3, windows)
    return loads.reshape(windows, CLASSES), held, streamed, stored


def _parts(
    runs: Runs, longer: Floats, misses: Floats, k_less_1: Floats, gap: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return what of a window's difference is waits, held fill buffers, and queues.

    In proportion to what the measured latencies would make of each.
    """
    waiting = (misses / (1 + k_less_1)).sum(1) * gap
    holding = np.maximum(runs.slow.store_ns - runs.fast.store_ns, 0.0) / FILL_BUFFERS
    queueing = np.maximum(runs.slow.queue_ns - runs.fast.queue_ns, 0.0)
    total = waiting + holding + queueing
    parts = [longer * _share(part, total) for part in (waiting, holding, queueing)]
    # Waits cannot be more than one a miss; what is beyond must be something else.
    beyond = np.maximum(parts[0] - misses.sum(1) * gap, 0.0) + np.where(total > 0, 0.0, longer)
    return parts[0] - np.minimum(beyond, parts[0]), parts[1], parts[2] + beyond


def _pairs_of(used: Sequence[Run], of_page: npt.NDArray[np.int32]) -> Pairs:
    page_a = np.concatenate([run.pair_a for run in used])
    page_b = np.concatenate([run.pair_b for run in used])
    window = np.concatenate([run.pair_window for run in used])
    # Both runs are alike: where one had to be thinned, the other is nearly so.
    one_of = float(np.mean([run.pair_one_of for run in used]))
    return Pairs(page_a, page_b, of_page[page_a], of_page[page_b], window, one_of)


def _share(part: Floats, whole: Floats, otherwise: Floats | float = 0.0) -> Floats:
    """Return part / whole, and ``otherwise`` where there is none."""
    return np.asarray(np.where(whole > 0, part / np.maximum(whole, 1e-12), otherwise))
