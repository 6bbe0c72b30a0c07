# SPDX-License-Identifier: MIT
"""Coarse chunks: retention, cooling and rates of chunks that have one count for all their pages.

The formulas are those of pages (:mod:`hmd.heat.changes`, :mod:`hmd.heat.windows`). Of terabytes
nearly all chunks are coarse, so that these loops decide what a tick costs: they run over neighbours
of one process without branches, several chunks at a time, in single precision.

Chunks with page slots are passed over: their entries in ``TableRates`` are undefined until
:func:`hmd.heat.rates.estimate` fills them.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from hmd.base.numba_kernels import Float32s, Float64s, inline, kernel
from hmd.heat.changes import CHUNK_TOLERANCE, squared_deviation
from hmd.heat.chunks import ChunkColumns, HistoryColumns, TableRates
from hmd.heat.counting import run_end
from hmd.heat.geometry import FULL_EXPOSURE
from hmd.heat.rates import UNSEEN

# Chunks at a time: their working columns stay in the first-level cache.
_BLOCK: Final = 512
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

    ``weight_per_step`` is what a step of exposure weighs in the old history, ``steps_per_weight``
    how many steps a weight is in the new one.
    """
    step = np.int32((kept * weight_per_step * exposure + window) * steps_per_weight + 0.5)
    return max(step, np.int32(1))


@inline
def _fill_retention(
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
def _close_window(
    span: tuple[int, int],
    columns: ChunkColumns,
    history: HistoryColumns,
    closed: tuple[float, float],
    retention: Float32s,
) -> None:
    """Add the window of chunks of one process to their history.

    ``closed`` are the window's weight and the share of the history that cooling keeps.
    """
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
    """Close windows as :func:`hmd.heat.windows.close_page_windows` does for pages.

    ``change_threshold`` is as in :class:`hmd.heat.settings.HeatSettings`.
    """
    retention, begin = np.zeros(_BLOCK, np.float32), 0
    while begin < chunks:
        end = run_end(columns.process, begin, min(begin + _BLOCK, chunks))
        p = columns.process[begin]
        if window[p] > 0.0:
            threshold2 = change_threshold * change_threshold
            _fill_retention(begin, end, columns, history, threshold2, retention)
            _close_window((begin, end), columns, history, (window[p], keep[p]), retention)
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
    """Fill rates and effective samples by chunk.

    As :func:`hmd.heat.rates.estimate` does for pages. Adds all resident pages to ``pages``, by
    process. ``change_threshold`` is as in :class:`hmd.heat.settings.HeatSettings`.
    """
    none, retention, begin = np.float32(0.0), np.zeros(_BLOCK, np.float32), 0
    while begin < chunks:
        end = run_end(columns.process, begin, min(begin + _BLOCK, chunks))
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
        _fill_retention(begin, end, columns, history, threshold2, retention)
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
        end = run_end(columns.process, begin, min(begin + _BLOCK, chunks))
        resident, slot = columns.resident[begin:end], columns.page_slot[begin:end]
        total = 0
        for i in range(len(resident)):
            pages = int(resident[i])
            total += pages if slot[i] >= 0 else min(pages, 1)
        count[columns.process[begin]] += total
        begin = end
