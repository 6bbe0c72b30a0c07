# SPDX-License-Identifier: MIT
"""hmd's estimator: the runtime of a program under any placement of its pages, from two runs.

The model reproduces both runs exactly. In between, the time that a window gains from the fast tier
has two parts.

Waits for memory are proportional to the waits that slow misses begin (:mod:`hmd.estimate.overlap`),
times the slow tier's latency under the load of the layout: as measured for all-slow, idle without
load, and in between by the curve of published latencies.

Queues of streams (prefetched lines, stores) appear if concurrent streams demand more than the slow
tier's bandwidth: if all of ``streams`` pages in flight are slow, or the slow tier's share of the
traffic alone takes longer than the window. A write takes as long as its bandwidth is lower than
that of reads. Waits for room on the way to memory show in no sample; but a tier cannot be faster
than its peak bandwidths, so that what a slow run takes beyond the fast one is queues at least as
far as its traffic takes longer than the fast run.

The defaults of ``Coefficients`` are fitted to the suite's programs; ``make bench-estimator``
cross-validates them, leaving one program out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from hmd.base.units import LINE_BYTES
from hmd.estimate.cost import (
    ModelNumbers,
    PairColumns,
    PartFigures,
    WindowFigures,
    add_slow,
    price_windows,
)
from hmd.estimate.layout import Layout
from hmd.estimate.overlap import (
    CHANCES,
    IN_FLIGHT,
    Overlap,
    Pairs,
    fit_neighbours,
    fit_overlap,
    fit_overlap_to_times,
    simulate_core,
)
from hmd.estimate.runs import AlignedRun, AlignedRuns
from hmd.estimate.samples import AccessClass
from hmd.estimate.windows import share_of_turns

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted run: ``runtime_ns``, and by window ``window_ns``, shape ``(windows,)``."""

    runtime_ns: float
    window_ns: Floats


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Fitted coefficients, as of :class:`hmd.estimate.cost.ModelNumbers`."""

    streams: float = 2.0
    at_once: float = 4.0


ONE_RUN_ERROR, COUNTED_ONE_RUN_ERROR = 0.35, 0.12
"""Standard errors for :class:`Doubt`, from the suite's programs (docs/explanation/estimator.md)."""
UNKNOWN_THREADS_ERROR = 0.25
UNKNOWN_OVERLAP_ERROR = 0.06
UNKNOWN_QUEUES_ERROR = 0.20
COUNTED_QUEUES_ERROR = 0.08
_SATURATED, _WAITING, _STREAMING = (0.5, 0.7), (0.4, 0.6), (0.5, 0.9)
"""Shares of time for which a tier is busy and for which a thread waits, and of lines that were
prefetched: up to the first nothing is bound by a tier's bandwidth alone, from the second on
everything."""
UNKNOWN_OVERLAP = 3.0
"""Misses that overlap with another one where no pairs show it."""
_BUFFERS_FREE = (0.6, 0.9)
"""Shares of the fill buffers in use: up to the first no load waits for one, from the second all."""
ALONE_ERROR, ALONE_SHARE = 0.25, 0.1
"""Error by the share of waits for misses that overlap with none, and the share worth a word."""
BEHIND_SHARE = 0.1
"""Share of the runs' difference above which waits of stores and streams are worth a word."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A term that the model lacks for these runs, and the error that it may cause.

    ``error`` is a standard error half-way between the runs, as a share of what fast memory gains;
    of a run that is ``predicted``, it is that of this run.
    """

    error: float
    reason: str
    predicted: Literal["slow", "fast"] | None = None


@dataclass(frozen=True, slots=True)
class SlowMass:
    """Accesses to slow memory under a layout.

    ``cells``: accesses by cell (:mod:`hmd.estimate.cost`). ``pair_a`` and ``pair_b``, ``(pairs,)``:
    the slow share of the pages of a pair's members in its part.
    """

    cells: Floats
    pair_a: npt.NDArray[np.float32]
    pair_b: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RuntimeModel:
    """A program's two runs, ready to price layouts.

    Rows, of shape ``(rows,)``: ``accesses`` to a ``page``, from ``samples`` samples, in order of
    cell; ``begin``, ``(cells + 1,)``, is the first row of each cell, ``total`` the sum of their
    accesses.
    """

    page: npt.NDArray[np.int32]
    accesses: npt.NDArray[np.float32]
    samples: npt.NDArray[np.int32]
    begin: npt.NDArray[np.uint64]
    pages: int
    total: Floats
    figures: PartFigures
    of_windows: WindowFigures
    pairs: Pairs
    numbers: ModelNumbers
    doubts: tuple[Doubt, ...] = ()

    @property
    def windows(self) -> int:
        """Number of windows."""
        return len(self.of_windows.slow_ns)

    @property
    def parts(self) -> int:
        """Number of parts: windows times threads."""
        return len(self.figures.slow_ns)

    def slow_mass(self, slow: npt.NDArray[np.float32]) -> SlowMass:
        """Return the slow accesses for the slow share of each page, ``(pages,)``."""
        cells = np.zeros(len(self.total))
        add_slow(self.page, self.accesses, self.begin, slow, 0, len(cells), cells)
        return SlowMass(cells, slow[self.pairs.page_a], slow[self.pairs.page_b])

    def estimate(self, layout: Layout) -> Estimate:
        """Return the run with the pages of ``layout`` (True) in fast memory."""
        return self.price(self.slow_mass((~layout).astype(np.float32)))

    def price(self, mass: SlowMass) -> Estimate:
        """Return the run with these accesses slow."""
        window_ns, pairs = np.empty(self.windows), self.pairs
        columns = PairColumns(pairs.part, mass.pair_a, mass.pair_b)
        price_windows(
            mass.cells, self.total, self.figures, self.of_windows, columns, self.numbers, window_ns
        )
        return Estimate(float(window_ns.sum()), window_ns)


def sum_cells(
    page: npt.NDArray[np.int32],
    accesses: npt.NDArray[np.float32],
    begin: npt.NDArray[np.uint64],
    pages: int,
) -> Floats:
    """Return accesses by cell, added up as a layout's are: all slow is all, to the last bit."""
    total = np.zeros(len(begin) - 1)
    add_slow(page, accesses, begin, np.ones(pages, np.float32), 0, len(total), total)
    return total


def build_model(
    runs: AlignedRuns,
    coefficients: Coefficients | None = None,
    *,
    fast_samples: bool = False,
) -> RuntimeModel:
    """Return the model of a program from its two recorded runs.

    A page's accesses are those of both runs' samples, which are most; with ``fast_samples``, of the
    fast run's, if there are any. Layouts made from the slow run's samples are priced so: the
    hottest pages of one set of samples are so partly by chance.
    """
    coefficients = coefficients or Coefficients()
    selected = (runs.fast,) if fast_samples else (runs.slow, runs.fast)
    used = [run for run in selected if len(run.page)] or [runs.slow]
    rows = rows_by_cell(used, runs.parts, len(runs.pages))
    pairs, work = collect_pairs(used), _tier_work(runs, rows)
    longer = np.maximum(runs.slow.busy_ns - runs.fast.busy_ns, 0.0)
    gap = np.maximum(runs.slow.latency_ns - runs.fast.latency_ns, 1.0)
    if not runs.slow.latency_ns.any():
        # Unknown: no misses overlap.
        gap = np.maximum(longer / np.maximum(rows.misses, 1.0), 1e-9)
    near = fit_neighbours(pairs, rows.sampled_loads, rows.period)
    overlap = Overlap(np.zeros(runs.parts), near)
    waiting, holding, queueing = _causes_of_difference(runs, longer, rows, work, overlap, gap)
    waits = _share(waiting, gap * rows.misses)
    overlap = fit_overlap(near, waits) if pairs.enough else fit_overlap_to_times(waits)
    fast_latency = _unqueued_latency(runs, runs.fast, rows)
    loaded_latency = np.maximum(_unqueued_latency(runs, runs.slow, rows), fast_latency + 1)
    fast_work_ns = np.add(*runs.speeds.work_ns("fast", runs.fast.read_bytes, runs.fast.write_bytes))
    idle_waits = rows.misses / (1 + (near if pairs.enough else UNKNOWN_OVERLAP))
    idle_waits *= max(runs.speeds.slow_latency_ns - runs.speeds.fast_latency_ns, 0.0)
    of_class = rows.total.reshape(len(AccessClass), -1)
    streamed = _share(of_class[AccessClass.STREAMED_LOAD :].sum(0), of_class.sum(0))
    figures = PartFigures(
        slow_ns=runs.slow.busy_ns,
        fast_ns=runs.fast.busy_ns,
        waiting_ns=waiting,
        holding_ns=holding,
        queueing_ns=queueing,
        idle_waits_ns=np.minimum(idle_waits, longer),
        bandwidth_bound=_ramp(streamed, _STREAMING) * _bandwidth_bound(runs.slow, work.ns),
        fast_bound_ns=runs.fast.stalled_by_part_ns * _bandwidth_bound(runs.fast, fast_work_ns),
        loaded_latency_ns=loaded_latency,
        idle_latency_ns=np.minimum(runs.speeds.slow_latency_ns or loaded_latency, loaded_latency),
        fast_latency_ns=fast_latency,
        alone=overlap.alone,
        overlapping=overlap.overlapping,
        core_factor=np.ones((runs.parts, CHANCES)),
    )
    return RuntimeModel(
        page=rows.page,
        accesses=rows.accesses,
        samples=rows.samples,
        begin=rows.begin,
        pages=len(runs.pages),
        total=rows.total,
        figures=figures._replace(core_factor=_core_factors(runs, rows.misses, figures)),
        of_windows=_window_figures(runs, work, coefficients),
        pairs=pairs,
        numbers=ModelNumbers(
            coefficients.streams,
            coefficients.at_once,
            pairs.enough,
            load_known=runs.speeds.slow_latency_ns > 0,
        ),
        doubts=tuple(_doubts(runs, pairs, figures, longer)),
    )


def _doubts(
    runs: AlignedRuns, pairs: Pairs, figures: PartFigures, longer: Floats
) -> Iterator[Doubt]:
    """Yield what the runs do not show, of what the slow one takes ``longer``."""
    if runs.predicted is not None:
        counted = runs.predicted == "fast" and bool(runs.slow.stalled_ns.any())
        reason = f"the run with all pages {runs.predicted} is predicted, not recorded"
        yield Doubt(COUNTED_ONE_RUN_ERROR if counted else ONE_RUN_ERROR, reason, runs.predicted)
    if runs.sampled_threads > 1 and runs.threads == 1:
        yield Doubt(
            UNKNOWN_THREADS_ERROR,
            f"{runs.sampled_threads} threads have samples, but the traces do not tell how long "
            "each ran in both runs: a layout that slows one of them may take longer",
        )
    if not pairs.enough and runs.slow.latency_ns.any():
        yield Doubt(UNKNOWN_OVERLAP_ERROR, "too few pairs of samples show which misses overlap")
    alone = float(np.dot(figures.alone, figures.waiting_ns)) / max(float(longer.sum()), 1e-9)
    if pairs.enough and alone > ALONE_SHARE:
        yield Doubt(
            alone * ALONE_ERROR,
            f"by the runtimes {alone:.0%} of the waits are for misses that overlap with no other, "
            "and pairs of samples do not show which",
        )
    behind = float((figures.queueing_ns + figures.holding_ns).sum())
    share = behind / max(float(longer.sum()), 1e-9)
    if share > BEHIND_SHARE:
        counted = bool(runs.slow.read_bytes.any())
        yield Doubt(
            share * (COUNTED_QUEUES_ERROR if counted else UNKNOWN_QUEUES_ERROR),
            f"loads that were sampled explain {1 - share:.0%} of the difference between the runs; "
            "the rest are waits of stores and streams, which no sample shows"
            + ("" if counted else ", and the memory's traffic is not counted"),
        )


def _window_figures(
    runs: AlignedRuns, work: _TierWork, coefficients: Coefficients
) -> WindowFigures:
    slow, fast = (share_of_turns(run.ns, run.busy_ns) for run in (runs.slow, runs.fast))
    busy = np.clip(_share(work.ns, runs.slow.ns), 0.0, 1.0)
    return WindowFigures(
        slow_ns=runs.slow.ns,
        slow_in_turn=slow[0],
        fast_in_turn=fast[0],
        slow_idle_ns=slow[1],
        fast_idle_ns=fast[1],
        read_work=work.reads,
        write_work=work.writes,
        stored=work.stored,
        busy=busy,
    )


def _ramp(value: Floats, limits: tuple[float, float]) -> Floats:
    """Return 0 up to the first limit, 1 from the second on."""
    return np.clip((value - limits[0]) / (limits[1] - limits[0]), 0.0, 1.0)


def _bandwidth_bound(run: AlignedRun, work_ns: Floats) -> Floats:
    """Return 1 where threads wait for a tier's bandwidth, ``(parts,)``: it is busy, they wait."""
    busy = np.repeat(_share(work_ns, run.ns), len(run.busy_ns) // len(run.ns))
    return _ramp(busy, _SATURATED) * _ramp(_share(run.stalled_by_part_ns, run.busy_ns), _WAITING)


@dataclass(frozen=True, slots=True)
class _TierWork:
    """The slow tier's work in the slow run, columns of shape ``(windows,)``, as ``WindowFigures``.

    ``ns`` is the time that it takes at the tier's peak bandwidths, 0 if those are unknown.
    """

    reads: Floats
    writes: Floats
    stored: Floats
    ns: Floats


def _tier_work(runs: AlignedRuns, rows: CellRows) -> _TierWork:
    """Return the work by the memory's counters, else by lines: those stored to are written too."""
    speeds, (lines, written) = runs.speeds, rows.moved_lines(runs.windows)
    known = speeds.slow_read_bytes_per_ns > 0 and speeds.slow_write_bytes_per_ns > 0
    read_speed = speeds.slow_read_bytes_per_ns if known else 1.0
    write_speed = speeds.slow_write_bytes_per_ns if known else 1.0
    read_bytes, write_bytes = runs.slow.read_bytes, runs.slow.write_bytes
    stored = np.ones(runs.windows)
    if read_bytes.any():
        stored = np.minimum(_share(written * read_bytes, lines * write_bytes, 1.0), 1.0)
    else:
        read_bytes, write_bytes = LINE_BYTES * lines, LINE_BYTES * written
    reads, writes = read_bytes / read_speed, write_bytes / write_speed
    return _TierWork(reads, writes, stored, (reads + writes) * known)


@dataclass(frozen=True, slots=True)
class CellRows:
    """Rows as in ``RuntimeModel``, and what follows from them, by part.

    ``misses`` are loads that memory answers, ``sampled_loads`` the samples of them; ``lines`` are
    all that hold a fill buffer. One sample stands for ``period``.
    """

    page: npt.NDArray[np.int32]
    accesses: npt.NDArray[np.float32]
    samples: npt.NDArray[np.int32]
    begin: npt.NDArray[np.uint64]
    total: Floats
    misses: Floats
    lines: Floats
    sampled_loads: Floats
    period: float

    def moved_lines(self, windows: int) -> tuple[Floats, Floats]:
        """Return by window, ``(windows,)``, all lines and those that are stored to."""
        of_class = self.total.reshape(len(AccessClass), windows, -1).sum(2)
        stored = of_class[AccessClass.STORE] + of_class[AccessClass.STREAMED_STORE]
        return of_class.sum(0), stored


def rows_by_cell(used: Sequence[AlignedRun], parts: int, pages: int) -> CellRows:
    """Return the rows of the runs in order of cell and page, one of both runs for each."""
    page = np.concatenate([run.page for run in used])
    part = np.concatenate([run.part for run in used])
    accesses = (np.concatenate([run.accesses for run in used]) / len(used)).astype(np.float32)
    samples = np.concatenate([run.samples for run in used])
    access = np.concatenate([run.access for run in used])
    cells = parts * len(AccessClass)
    key = (access.astype(np.int64) * parts + part) * pages + page
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    samples = np.add.reduceat(samples[order], first).astype(np.int32)
    accesses = np.add.reduceat(accesses[order], first).astype(np.float32)
    cell, page = key[order][first] // pages, page[order][first]
    begin = np.searchsorted(cell, np.arange(cells + 1)).astype(np.uint64)
    total = sum_cells(page, accesses, begin, pages)
    sampled = np.bincount(cell, samples, cells).astype(np.float64)[:parts]
    # Rings lose consecutive records, so a pair is lost whole: pairs are not scaled up.
    kept = sum(
        float(run.accesses[run.access == AccessClass.LOAD].sum()) / (1 + run.lost) for run in used
    )
    return CellRows(
        page=page,
        accesses=accesses,
        samples=samples,
        begin=begin,
        total=total,
        misses=total[:parts],
        lines=total[:parts] + total[parts : 2 * parts],
        sampled_loads=sampled,
        period=kept / max(float(sampled.sum()), 1.0),
    )


def collect_pairs(used: Sequence[AlignedRun]) -> Pairs:
    """Return the pairs of these runs in order of part."""
    page_a = np.concatenate([run.pair_a for run in used])
    page_b = np.concatenate([run.pair_b for run in used])
    part = np.concatenate([run.pair_part for run in used])
    order = np.argsort(part, kind="stable")
    # Both runs are alike: if one is thinned, so is the other, nearly.
    stride = float(np.mean([run.pair_stride for run in used]))
    return Pairs(page_a[order], page_b[order], part[order], stride)


def _causes_of_difference(
    runs: AlignedRuns,
    longer: Floats,
    rows: CellRows,
    work: _TierWork,
    overlap: Overlap,
    gap: Floats,
) -> tuple[Floats, Floats, Floats]:
    """Return what a part takes longer in slow memory: waits, held fill buffers, and queues, ns.

    In proportion to the parts that the measured latencies predict, with queues at least as long as
    the bandwidth of the slow tier makes them.
    """
    misses = rows.misses
    waiting = overlap.waits_of_a_miss() * misses * gap
    holding = np.maximum(runs.slow.store_ns - runs.fast.store_ns, 0.0) / runs.core.fill_buffers
    queueing = np.maximum(runs.slow.queue_ns - runs.fast.queue_ns, 0.0)
    total, explained = waiting + holding + queueing, waiting + holding
    waiting, holding, queueing = (longer * _share(p, total) for p in (waiting, holding, queueing))
    # At most one wait per miss; the rest has another cause.
    beyond = np.maximum(waiting - misses * gap, 0.0) + np.where(total > 0, 0.0, longer)
    waiting, queueing = waiting - np.minimum(beyond, waiting), queueing + beyond
    by_traffic = np.repeat(work.ns, runs.threads) - runs.fast.busy_ns - explained
    queues = np.clip(by_traffic, queueing, np.maximum(longer, queueing))
    kept = 1 - _share(queues - queueing, waiting + holding)
    return waiting * kept, holding * kept, queues


def _unqueued_latency(runs: AlignedRuns, run: AlignedRun, rows: CellRows) -> Floats:
    """Return a run's latency of loads by part, without the wait for a fill buffer."""
    # At most as many misses are in flight as there are fill buffers; the rest waits for one.
    longest = runs.core.fill_buffers * _share(run.busy_ns, rows.lines, np.inf)
    # Where buffers are free, latencies differ by the tier's load, and the mean is what it is.
    low, high = _BUFFERS_FREE
    waits = np.clip((_share(run.latency_ns, longest) - low) / (high - low), 0.0, 1.0)
    least = np.where(run.least_ns > 0, run.least_ns, run.latency_ns)
    return np.asarray(np.minimum(run.latency_ns + waits * (least - run.latency_ns), longest))


def _core_factors(runs: AlignedRuns, misses: Floats, figures: PartFigures) -> Floats:
    """Return the factors for the rule, by part and chance of a slow miss.

    Interpolated between a core that waits for memory only and one with other waits, by the largest
    share of the fast run's time that its misses can account for.
    """
    fast = float(np.mean(figures.fast_latency_ns))
    idle = float(np.mean(figures.idle_latency_ns))
    if fast <= 0 or not np.isfinite(fast + idle):
        return figures.core_factor
    buffers, together = runs.core.fill_buffers, 1 + figures.overlapping
    hidden, bare = simulate_core(float(round(max(idle, 1.5 * fast))), float(round(fast)), buffers)
    waits = misses * np.maximum(1 / together, 1 / buffers)
    share = figures.fast_latency_ns * waits / np.maximum(figures.fast_ns, 1e-9)
    bound = np.minimum(share, 1.0)[:, None]
    place = np.interp(together, IN_FLIGHT, np.arange(float(len(IN_FLIGHT))))
    row = np.minimum(place.astype(np.int64), len(IN_FLIGHT) - 2)
    down = (place - row)[:, None]
    with_others, alone = (each[row] * (1 - down) + each[row + 1] * down for each in (hidden, bare))
    return np.asarray(with_others + bound * (alone - with_others))


def _share(part: Floats, whole: Floats, otherwise: float = 0.0) -> Floats:
    """Return part / whole, and ``otherwise`` where the whole is 0."""
    return np.asarray(np.where(whole > 0, part / np.maximum(whole, 1e-12), otherwise))
