"""hmd's estimator: the runtime of a program under any placement of its pages, from two runs.

The model reproduces both runs exactly. In between, the time that a window gains from the fast tier
has two parts.

Waits for memory are proportional to the waits that slow misses begin (``hmd.estimate.overlap``,
corrected by what a simulated core does, ``hmd.estimate.core_model``), times the slow tier's
latency under the load of the layout: as measured for all-slow, idle without load, and rising with
the ``load_power`` of the load in between.

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

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.estimate.aligned_runs import AlignedRun, AlignedRuns
from hmd.estimate.cell_rows import CellRows, SampleSelection, rows_of, sum_cells
from hmd.estimate.layout import Layout
from hmd.estimate.layout_estimate import Estimate
from hmd.estimate.overlap import Overlap, Pairs, alone_by_time, neighbours
from hmd.estimate.time_parts import parts_of, share

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Fitted coefficients.

    ``load_power`` is the exponent of the slow tier's latency in its load, ``streams`` the number of
    concurrent streams.
    """

    load_power: float = 1.5
    streams: float = 2.0


@dataclass(frozen=True, slots=True)
class Terms:
    """Parts of the model; each can be left out to measure its effect."""

    overlap: bool = True
    correlation: bool = True
    structures: bool = True
    core: bool = True
    load: bool = True
    streams: bool = True
    rows: SampleSelection = SampleSelection.BOTH


@dataclass(frozen=True, slots=True)
class SlowMass:
    """Accesses to slow memory under a layout.

    ``cells``: accesses, by window and class of loads; then by window of stores, streamed loads
    and streamed stores. ``pair_a`` and ``pair_b``, ``(pairs,)``: the slow share of the pages of a
    pair's members in its window.
    """

    cells: Floats
    pair_a: npt.NDArray[np.float32]
    pair_b: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RuntimeModel:
    """A program's two runs, ready to price layouts.

    Rows, of shape ``(rows,)``: ``accesses`` to a ``page``, from ``samples`` samples, in order of
    cell (as in ``SlowMass``); ``begin``, ``(cells + 1,)``, is the first row of each cell, ``total``
    the sum of their accesses. ``table``, ``(windows, hmd.estimate.window_cost.COLUMNS)``, has the
    figures by window; ``k_less_1``, ``(windows, classes)``, the misses that overlap with one, and
    ``behind``, ``(windows, classes, chances)``, the simulated core's factors.
    """

    page: npt.NDArray[np.int32]
    accesses: npt.NDArray[np.float32]
    samples: npt.NDArray[np.int32]
    begin: npt.NDArray[np.uint64]
    pages: int
    total: Floats
    table: Floats
    k_less_1: Floats
    behind: Floats
    pairs: Pairs
    numbers: Floats

    @property
    def windows(self) -> int:
        """Number of windows."""
        return len(self.table)

    @property
    def slow_ns(self) -> Floats:
        """Length of the slow run's windows, ``(windows,)``."""
        from hmd.estimate.window_cost import SLOW_NS

        return self.table[:, SLOW_NS]

    @property
    def fast_ns(self) -> Floats:
        """Length of the fast run's windows, ``(windows,)``."""
        from hmd.estimate.window_cost import FAST_NS

        return self.table[:, FAST_NS]

    def sums(self) -> Floats:
        """Return the rows' accesses by cell."""
        return sum_cells(self.page, self.accesses, self.begin, self.pages)

    def slow_mass(self, slow: npt.NDArray[np.float32]) -> SlowMass:
        """Return the slow accesses for the slow share of each page, ``(pages,)``."""
        from hmd.estimate.slow_accesses import add_slow, take

        cells = np.zeros(len(self.total))
        add_slow(self.page, self.accesses, self.begin, slow, 0, len(cells), cells)
        of_pairs = np.empty((2, len(self.pairs)), np.float32)
        take(self.pairs.page_a, slow, of_pairs[0])
        take(self.pairs.page_b, slow, of_pairs[1])
        return SlowMass(cells, of_pairs[0], of_pairs[1])

    def estimate(self, layout: Layout) -> Estimate:
        """Return the run with the pages of ``layout`` (True) in fast memory."""
        return self.price(self.slow_mass((~layout).astype(np.float32)))

    def price(self, mass: SlowMass) -> Estimate:
        """Return the run with these accesses slow."""
        from hmd.estimate.window_cost import PairColumns, WindowTables, price_windows

        window_ns = np.empty(self.windows)
        pairs = self.pairs
        price_windows(
            mass.cells,
            self.total,
            WindowTables(self.table, self.k_less_1, self.behind),
            PairColumns(pairs.window, pairs.class_a, pairs.class_b, mass.pair_a, mass.pair_b),
            self.numbers,
            window_ns,
        )
        return Estimate(float(window_ns.sum()), window_ns)


def build_model(
    runs: AlignedRuns, coefficients: Coefficients | None = None, terms: Terms | None = None
) -> RuntimeModel:
    """Return the model of a program from its two recorded runs."""
    coefficients, terms = coefficients or Coefficients(), terms or Terms()
    rows = rows_of(runs, terms.rows, structures=terms.structures)
    pairs = _pairs_of(rows)
    longer = np.maximum(runs.slow.ns - runs.fast.ns, 0.0)
    gap = np.maximum(runs.slow.latency_ns - runs.fast.latency_ns, 1.0)
    if not runs.slow.latency_ns.any():
        # Unknown: no misses overlap.
        gap = np.maximum(longer / np.maximum(rows.misses.sum(1), 1.0), 1e-9)
    near = neighbours(pairs, rows.sampled_loads, rows.period)
    waiting, holding, queueing = parts_of(
        runs, longer, rows, Overlap(np.zeros(runs.windows), near), gap
    )
    waits = waiting / gap
    if not terms.overlap:
        overlap = Overlap(np.ones(runs.windows), np.zeros_like(near))
    elif pairs.enough:
        overlap = Overlap(np.zeros(runs.windows), near).fitted(rows.misses, waits)
    else:
        overlap = alone_by_time(rows.misses, waits)
    table = _table(runs, rows, waiting, holding, queueing, overlap.alone)
    return RuntimeModel(
        page=rows.page,
        accesses=rows.accesses,
        samples=rows.samples,
        begin=rows.begin,
        pages=len(runs.pages),
        total=rows.total,
        table=table,
        k_less_1=overlap.k_less_1,
        behind=_behind(runs, rows.misses, table, overlap.k_less_1, on=terms.core),
        pairs=pairs,
        numbers=_numbers(runs, coefficients, terms, pairs),
    )


def _pairs_of(rows: CellRows) -> Pairs:
    page_a = np.concatenate([run.pair_a for run in rows.used])
    page_b = np.concatenate([run.pair_b for run in rows.used])
    window = np.concatenate([run.pair_window for run in rows.used])
    order = np.argsort(window, kind="stable")
    page_a, page_b, window = page_a[order], page_b[order], window[order]
    # Both runs are alike: if one is thinned, so is the other, nearly.
    one_of = float(np.mean([run.pair_one_of for run in rows.used]))
    return Pairs(page_a, page_b, rows.of_page[page_a], rows.of_page[page_b], window, one_of)


def _table(
    runs: AlignedRuns,
    rows: CellRows,
    waiting: Floats,
    holding: Floats,
    queueing: Floats,
    alone: Floats,
) -> Floats:
    """Return the figures by window, in the order of ``hmd.estimate.window_cost``'s columns."""

    def unqueued(run: AlignedRun) -> Floats:
        # At most as many misses are in flight as there are fill buffers; the rest waits for one.
        least = runs.core.fill_buffers * share(run.ns, rows.lines, np.inf)
        return np.minimum(np.where(run.least_ns > 0, run.least_ns, run.latency_ns), least)

    fast_ns = unqueued(runs.fast)
    slow_ns = np.maximum(unqueued(runs.slow), fast_ns + 1)
    idle_ns = np.minimum(runs.speeds.slow_latency_ns or slow_ns, slow_ns)
    columns = [runs.slow.ns, runs.fast.ns, waiting, holding, queueing]
    return np.ascontiguousarray(
        np.stack([*columns, slow_ns, idle_ns, fast_ns, alone], axis=1), np.float64
    )


def _behind(
    runs: AlignedRuns, misses: Floats, table: Floats, k_less_1: Floats, *, on: bool
) -> Floats:
    """Return the factors for the rule, by window, class and chance of a slow miss.

    Interpolated between a core that waits for memory only and one with other waits, by the largest
    share of the fast run's time that its misses can account for.
    """
    from hmd.estimate.core_model import CHANCES, IN_FLIGHT, tables
    from hmd.estimate.window_cost import FAST_LOAD, FAST_NS, IDLE_LOAD

    fast, idle = (float(np.mean(table[:, column])) for column in (FAST_LOAD, IDLE_LOAD))
    if not on or fast <= 0 or not np.isfinite(fast + idle):
        return np.ones((*k_less_1.shape, CHANCES))
    buffers = runs.core.fill_buffers
    hidden, bare = tables(float(round(max(idle, 1.5 * fast))), float(round(fast)), buffers)
    waits = np.maximum((misses / (1 + k_less_1)).sum(1), misses.sum(1) / buffers)
    bound = np.minimum(table[:, FAST_LOAD] * waits / np.maximum(table[:, FAST_NS], 1e-9), 1.0)
    place = np.interp(1 + k_less_1, IN_FLIGHT, np.arange(float(len(IN_FLIGHT))))
    row = np.minimum(place.astype(np.int64), len(IN_FLIGHT) - 2)
    down = (place - row)[:, :, None]
    either = [each[row] * (1 - down) + each[row + 1] * down for each in (hidden, bare)]
    return np.asarray(either[0] + bound[:, None, None] * (either[1] - either[0]))


def _numbers(runs: AlignedRuns, coefficients: Coefficients, terms: Terms, pairs: Pairs) -> Floats:
    """Return the model's numbers in the order of ``hmd.estimate.window_cost``."""
    from hmd.estimate import window_cost

    speeds = runs.speeds
    known = speeds.slow_write_bytes_per_ns > 0
    numbers = np.zeros(window_cost.NUMBERS)
    numbers[window_cost.LOAD_POWER] = coefficients.load_power
    numbers[window_cost.STREAMS] = coefficients.streams
    numbers[window_cost.WRITE_COST] = (
        speeds.slow_read_bytes_per_ns / speeds.slow_write_bytes_per_ns if known else 1.0
    )
    numbers[window_cost.PAIRS_TELL] = (1.0 if pairs.enough else -1.0) if terms.correlation else 0.0
    numbers[window_cost.LOAD_TELLS] = float(terms.load and speeds.slow_latency_ns > 0)
    numbers[window_cost.STREAMS_TELL] = float(terms.streams)
    return numbers
