# SPDX-License-Identifier: MIT
"""Sample windows: each process's sampled history, its open window and its access rate.

All weights are in accesses (:mod:`hmd.heat.counting`). The rate of a page is its share of the
accesses of its process, times the accesses per second of the process. So an idle process keeps the
order of its pages, while they lose against those of busy processes.

Samples are counted in a window, which is closed once it has enough of them: its counts join the
history of each page, and so does the exposure over which they were counted; their quotient is the
rate of a page. History loses weight with age, half of it every ``cooling_samples`` samples of its
process, and where the window contradicts it (:mod:`hmd.heat.changes`). This is the discounted
Gamma-Poisson filter (Harvey and Fernandes, "Time series models for count or qualitative
observations", 1989), with a discount that change detection sets. Costs about 3 ns per page that has
heat, far less per page that has none, once per window.

Coarse chunks have one count for all their pages, by the same formulas. Of terabytes nearly all
chunks are coarse: their loops run over neighbours of one process without branches, several chunks
at a time, in single precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import (
    Float32Plane,
    Float32s,
    Float64s,
    Uint8Plane,
    Uint8s,
    inline,
    kernel,
)
from hmd.heat.changes import CHUNK_TOLERANCE, compute_retention, squared_deviation
from hmd.heat.chunks import ChunkColumns, Chunks, HistoryColumns, TableRates
from hmd.heat.counting import run_end
from hmd.heat.rates import UNSEEN
from hmd.heat.settings import CHUNK_PAGES, FULL_EXPOSURE, HeatSettings
from hmd.linux.process_table import ProcessTable
from hmd.linux.procfs import ProcessId

_COARSE_BLOCK: Final = 512
"""Coarse chunks at a time: their working columns stay in the first-level cache."""
#: Heat below this many samples is dropped.
MIN_HEAT_SAMPLES: Final = 1e-3


@inline
def cooled_heat(kept: float, heat: float, recent: float, min_heat: float) -> float:
    """Return the history with its window; ``kept`` is the share of the history that is kept."""
    cooled = kept * heat + recent
    return cooled if cooled > min_heat else 0.0


@inline
def cooled_exposure(
    kept: float, weight_per_step: float, exposure: np.uint8, window: float, steps_per_weight: float
) -> np.int32:
    """Return the exposure of a history with its window: at least a step, since it was observed.

    ``weight_per_step`` is what a step weighs in the old history, ``steps_per_weight`` how many
    steps a weight is in the new one.
    """
    step = np.int32((kept * weight_per_step * exposure + window) * steps_per_weight + 0.5)
    return max(step, np.int32(1))


@inline
def _fill_coarse_retention(
    begin: int,
    end: int,
    columns: ChunkColumns,
    history: HistoryColumns,
    threshold2: float,
    retention: Float32s,
) -> None:
    """Fill the shares of their history to keep of chunks of one process."""
    p = columns.process[begin]
    if history.window_weight[p] <= 0.0 or history.history_weight[p] <= 0.0:
        retention[:] = 1.0
        return
    none, one = np.float32(0.0), np.float32(1.0)
    samples_per_weight = np.float32(1.0 / history.effective_sample_weight[p])
    window, tolerance = np.float32(history.window_weight[p]), np.float32(CHUNK_TOLERANCE)
    weight_per_step = np.float32(history.history_weight[p] / FULL_EXPOSURE)
    heat, recent = columns.heat_sum[begin:end], columns.recent_sum[begin:end]
    exposure = columns.chunk_exposure[begin:end]
    for i in range(len(heat)):
        past = weight_per_step * np.float32(exposure[i])
        ratio = window / past if past > none else none
        n = recent[i] * samples_per_weight if past > none else none
        f = heat[i] * samples_per_weight * ratio
        # 0 of chunks without history.
        retention[i] = squared_deviation(n, f, ratio, tolerance)
    for i in range(len(heat)):
        retention[i] = math.exp(threshold2 - retention[i]) if retention[i] > threshold2 else one


@inline
def _close_coarse(
    span: tuple[int, int],
    columns: ChunkColumns,
    history: HistoryColumns,
    closed: tuple[float, float],
    retention: Float32s,
) -> None:
    """Add the window (its weight, and what cooling keeps) of chunks of one process to history."""
    begin, end = span
    window, keep = closed
    p = columns.process[begin]
    weight_per_step = history.history_weight[p] / FULL_EXPOSURE
    steps_per_weight = FULL_EXPOSURE / (keep * history.history_weight[p] + window)
    min_heat = MIN_HEAT_SAMPLES * history.effective_sample_weight[p]
    heat, recent = columns.heat_sum[begin:end], columns.recent_sum[begin:end]
    exposure, slot = columns.chunk_exposure[begin:end], columns.page_slot[begin:end]
    for i in range(len(heat)):
        kept, coarse = keep * retention[i], slot[i] < 0
        cooled = cooled_heat(kept, heat[i], recent[i], min_heat)
        step = cooled_exposure(kept, weight_per_step, exposure[i], window, steps_per_weight)
        heat[i] = np.float32(cooled) if coarse else heat[i]
        exposure[i] = np.uint8(step) if coarse else exposure[i]
        recent[i] = np.float32(0.0) if coarse else recent[i]


@kernel
def close_coarse_windows(
    chunks: int,
    columns: ChunkColumns,
    history: HistoryColumns,
    window: Float64s,
    keep: Float64s,
    change_threshold: float,
) -> None:
    """Close windows as :func:`close_page_windows` does for pages."""
    retention, begin = np.zeros(_COARSE_BLOCK, np.float32), 0
    while begin < chunks:
        end = run_end(columns.process, begin, min(begin + _COARSE_BLOCK, chunks))
        p = columns.process[begin]
        if window[p] > 0.0:
            threshold2 = change_threshold * change_threshold
            _fill_coarse_retention(begin, end, columns, history, threshold2, retention)
            _close_coarse((begin, end), columns, history, (window[p], keep[p]), retention)
        begin = end


@kernel
def estimate_coarse(
    chunks: int,
    columns: ChunkColumns,
    history: HistoryColumns,
    intensity: Float64s,
    change_threshold: float,
    rates: TableRates,
    pages: Float64s,
) -> None:
    """Fill rates and effective samples by chunk, as :func:`hmd.heat.rates.estimate` does for pages.

    Chunks of pages have undefined entries. Adds all resident pages to ``pages``, by process.
    """
    none, retention, begin = np.float32(0.0), np.zeros(_COARSE_BLOCK, np.float32), 0
    while begin < chunks:
        end = run_end(columns.process, begin, min(begin + _COARSE_BLOCK, chunks))
        p = columns.process[begin]
        # In single precision, as rates are kept.
        unit = history.effective_sample_weight[p]
        samples_per_weight = np.float32(1.0 / unit if unit > 0.0 else 0.0)
        weight_per_step = np.float32(history.history_weight[p] / FULL_EXPOSURE)
        window = np.float32(history.window_weight[p])
        accesses, unseen = np.float32(intensity[p]), np.float32(UNSEEN)
        heat, recent = columns.heat_sum[begin:end], columns.recent_sum[begin:end]
        exposure, resident = columns.chunk_exposure[begin:end], columns.resident[begin:end]
        rate, samples = rates.chunk_rate[begin:end], rates.chunk_samples[begin:end]
        threshold2 = change_threshold * change_threshold
        _fill_coarse_retention(begin, end, columns, history, threshold2, retention)
        count = 0
        for i in range(len(heat)):
            n = (retention[i] * heat[i] + recent[i]) * samples_per_weight + unseen
            past = retention[i] * weight_per_step * np.float32(exposure[i])
            e = (past + window) * samples_per_weight * np.float32(resident[i])
            rate[i] = accesses * n / e if e > none else none
            samples[i] = n if e > none else none
            count += int(resident[i])
        pages[p] += count
        begin = end


@kernel
def count_estimated(chunks: int, columns: ChunkColumns, count: Float64s) -> None:
    """Add up what has a rate of its own, by process: resident pages, or coarse chunks."""
    begin = 0
    while begin < chunks:
        end = run_end(columns.process, begin, min(begin + _COARSE_BLOCK, chunks))
        resident, slot = columns.resident[begin:end], columns.page_slot[begin:end]
        total = 0
        for i in range(len(resident)):
            pages = int(resident[i])
            total += pages if slot[i] >= 0 else min(pages, 1)
        count[columns.process[begin]] += total
        begin = end


WEIGHT_OVER_MEAN: Final = 8.0
"""Bound of a sample's weight over the mean weight of its process's samples (winsorized samples)."""

WEIGHED_SAMPLES: Final = 64
"""Samples of a process after which their mean weight is known well enough for that bound."""

UNIT_OVER_WINDOW: Final = 2.0
"""Bound of a history's weight per sample over that of a window that is added to it."""

Weights: TypeAlias = npt.NDArray[np.float64]


class SampleHistory:
    """What the samples of the tracked processes weigh; columns have shape ``(processes,)``.

    ``tick`` counts updates, ``rate`` is in accesses per second, averaged with a half-life of a
    tick. ``history_weight`` is the cooled weight of all closed windows. Of the open window there
    are the weight, the number of samples, the sum of the squares of their weights, and that of the
    weights without bound. ``samples``, ``weights``, ``squares`` and ``unbounded`` are such sums of
    all samples, cooled.
    """

    history_weight: Weights
    rate: Weights
    window_weight: Weights
    window_samples: Weights
    window_squares: Weights
    window_unbounded: Weights
    samples: Weights
    weights: Weights
    squares: Weights
    unbounded: Weights

    def __init__(self, settings: HeatSettings) -> None:
        self._settings = settings
        self.tick = 0
        self.processes: tuple[ProcessId, ...] = ()
        for name in _COLUMNS:
            setattr(self, name, np.zeros(0))

    @property
    def effective_sample_weight(self) -> Weights:
        """Weight of one sample: of equal samples that have the same total and variance."""
        weights, squares = self.weights, self.squares
        unit: Weights = np.divide(squares, weights, out=np.zeros_like(weights), where=weights > 0)
        return unit

    @property
    def max_weight(self) -> Weights:
        """The most that a sample may weigh; infinite before a process has ``WEIGHED_SAMPLES``.

        A sample of a rare kind stands for many accesses: a few of them would make the effective
        sample weight, and with it the noise of all pages, several times larger. Where they are not
        few, the mean weight, and the bound with it, is high. The mean is of weights without bound,
        or each bounded sample would lower the bound of the next.
        """
        bound = np.full(len(self.samples), np.inf)
        enough = self.samples >= WEIGHED_SAMPLES
        np.divide(WEIGHT_OVER_MEAN * self.unbounded, self.samples, out=bound, where=enough)
        return bound

    @property
    def columns(self) -> HistoryColumns:
        """The columns as kernels take them."""
        return HistoryColumns(self.history_weight, self.window_weight, self.effective_sample_weight)

    def track_processes(self, processes: Sequence[ProcessId]) -> npt.NDArray[np.int32]:
        """Track these processes; returns the new slot of each old one, -1 for those not kept."""
        if len(set(processes)) != len(processes):
            raise ValueError("a process is tracked twice")
        moved = ProcessTable(processes).slots_of(self.processes).astype(np.int32)
        for name in _COLUMNS:
            column = np.zeros(len(processes))
            column[moved[moved >= 0]] = getattr(self, name)[moved >= 0]
            setattr(self, name, column)
        self.processes = tuple(processes)
        return moved

    def count(self, sums: Weights, elapsed_s: float) -> None:
        """Count a tick; ``sums`` are those of :class:`hmd.heat.counting.SampleSums`."""
        samples, weights, squares, unbounded = sums.T
        known, rate = self.history_weight + self.window_weight > 0, weights / elapsed_s
        self.rate = np.where(known, (self.rate + rate) / 2, rate)
        self.window_weight += weights
        self.window_samples += samples
        self.window_squares += squares
        self.window_unbounded += unbounded
        self.samples += samples
        self.weights += weights
        self.squares += squares
        self.unbounded += unbounded
        self.tick += 1

    def discount(self, factor: Weights) -> None:
        """Multiply the weight of all samples so far by ``factor``, shape ``(processes,)``."""
        self.history_weight *= factor
        self.window_weight *= factor
        self.window_samples *= factor
        self.window_squares *= factor
        self.window_unbounded *= factor

    def find_due(self, resident: Weights) -> tuple[Weights, Weights]:
        """Return the weight of each window to close, else 0, and the share of history to keep."""
        settings, samples = self._settings, self.window_samples
        per_page = settings.cooling_samples_per_page
        enough = np.maximum(
            resident / settings.window_pages_per_sample, settings.min_window_samples
        )
        window = np.where(samples >= enough, self.window_weight, 0.0)
        if settings.cooling_samples is None:
            halving = np.maximum(per_page * resident, per_page * settings.min_window_samples)
        else:
            halving = np.full(len(resident), float(settings.cooling_samples))
        return window, np.exp2(-samples / halving) * self._comparable_share(window)

    def _comparable_share(self, window: Weights) -> Weights:
        """Return the share of its history's weight that each process keeps for its window's sake.

        Where the sampling period has become shorter, a few samples of the history would outweigh
        all that come later. History weighs as much as its samples do in units of
        ``UNIT_OVER_WINDOW`` times the window's, as estimates of different variance are combined.
        """
        past, squares = self.weights - window, self.squares - self.window_squares
        known = (window > 0) & (past > 0) & (squares > 0)
        share = np.ones_like(window)
        bound = UNIT_OVER_WINDOW * self.window_squares * past
        np.divide(bound, window * squares, out=share, where=known)
        return np.minimum(share, 1.0)

    def close_windows(self, window: Weights, keep: Weights) -> None:
        """Close the windows of :meth:`find_due`, once the table has added them to heat."""
        closed = window > 0
        share = self._comparable_share(window)
        history = self.history_weight
        history[closed] = (history * keep + window)[closed]
        for column, new, kept in (
            (self.samples, self.window_samples, keep / share),
            (self.weights, window, keep),
            (self.unbounded, self.window_unbounded, keep),
            (self.squares, self.window_squares, keep * share),
        ):
            column[closed] = ((column - new) * kept + new)[closed]
        for column in (
            self.window_weight,
            self.window_samples,
            self.window_squares,
            self.window_unbounded,
        ):
            column[closed] = 0.0


_COLUMNS: Final = tuple(SampleHistory.__annotations__)


@inline
def _close_pages(
    scales: tuple[float, float, float, float, float],
    heat: Float64s,
    recent: Float64s,
    exposure: Uint8s,
    retention: Float64s,
) -> float:
    """Add the window to the history of a chunk's pages, without branches; return their heat."""
    keep, weight_per_step, window, steps_per_weight, min_heat = scales
    total = 0.0
    for i in range(len(heat)):
        kept = keep * retention[i]
        cooled = cooled_heat(kept, heat[i], recent[i], min_heat)
        step = cooled_exposure(kept, weight_per_step, exposure[i], window, steps_per_weight)
        heat[i], recent[i], exposure[i] = np.float32(cooled), np.float32(0.0), np.uint8(step)
        total += cooled
    return total


@kernel
def close_page_windows(
    columns: ChunkColumns,
    history: HistoryColumns,
    window: Float64s,
    keep: Float64s,
    retention: Float32Plane,
) -> None:
    """Close the windows of the pages of every process whose ``window`` is above 0.

    ``window`` and ``keep`` are those of :meth:`SampleHistory.find_due`, ``retention`` those of
    :func:`page_retention`. ``recent`` is added to ``heat`` and cleared.
    """
    heat_sum, recent_sum = columns.heat_sum, columns.recent_sum
    for slot in range(len(columns.owner)):
        chunk = np.int64(columns.owner[slot])
        if chunk < 0 or window[columns.process[chunk]] <= 0.0:
            continue
        p = columns.process[chunk]
        weight = history.history_weight[p]
        weight_per_step = weight / FULL_EXPOSURE
        steps_per_weight = FULL_EXPOSURE / (keep[p] * weight + window[p])
        exposure = columns.exposure[slot]
        if heat_sum[chunk] == 0.0 and recent_sum[chunk] == 0.0:
            for i in range(CHUNK_PAGES):
                exposure[i] = np.uint8(
                    cooled_exposure(
                        keep[p], weight_per_step, exposure[i], window[p], steps_per_weight
                    )
                )
            continue
        min_heat = MIN_HEAT_SAMPLES * history.effective_sample_weight[p]
        heat_sum[chunk] = _close_pages(
            (keep[p], weight_per_step, window[p], steps_per_weight, min_heat),
            columns.heat[slot],
            columns.recent[slot],
            exposure,
            retention[slot],
        )
        recent_sum[chunk] = 0.0


def page_retention(
    chunks: Chunks, history: SampleHistory, change_threshold: float
) -> npt.NDArray[np.float32]:
    """Return the share of its history to keep of each page, shape ``(slots, 512)``."""
    retention = np.empty(chunks.columns.node.shape, np.float32)
    compute_retention(chunks.columns, history.columns, change_threshold, retention)
    return retention


def close_windows(chunks: Chunks, history: SampleHistory, change_threshold: float) -> int:
    """Add the windows that have enough samples to the history; return how many."""
    columns, threshold = chunks.columns, change_threshold
    resident = np.zeros(len(history.processes), np.float64)
    count_estimated(chunks.used, columns, resident)
    window, keep = history.find_due(resident)
    if not window.any():
        return 0
    close_coarse_windows(chunks.used, columns, history.columns, window, keep, threshold)
    retention = page_retention(chunks, history, threshold)
    close_page_windows(columns, history.columns, window, keep, retention)
    history.close_windows(window, keep)
    return int(np.count_nonzero(window))


@inline
def _fade(wear: Uint8s) -> int:
    """Reduce some wear; return a number above 0 where any is left."""
    left = 0
    for i in range(len(wear)):
        worn = wear[i] - (wear[i] >> 4) - int(wear[i] > 0)
        wear[i] = worn
        left |= worn
    return left


@kernel
def fade_wear(pages: Uint8Plane, chunks: Uint8s) -> bool:
    """Reduce the wear of page slots and of chunks, by a sixteenth; return whether any is left."""
    left = _fade(chunks)
    for slot in range(len(pages)):
        left |= _fade(pages[slot])
    return left > 0
