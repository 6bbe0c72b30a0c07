"""Chunks that are counted as a whole: their part of change detection, cooling and rates.

The same arithmetic as that of pages in :mod:`hmd.heat.rates.change_detection`,
:mod:`hmd.heat.rates.cooling` and :mod:`hmd.heat.rates.posterior_rates`, for one count per chunk. Of
terabytes nearly all chunks are such, so that these loops decide what a tick costs: they run over
neighbours of one process without branches, several chunks at a time.

Rows of chunks that have detail are passed over: what they get in ``TableRates`` here means nothing.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from hmd.heat.chunk_columns import ChunkColumns, TableRates, WindowClocks
from hmd.heat.geometry import FULL_EXPOSURE
from hmd.heat.kernels import Float32s, Float64s, inline, kernel
from hmd.heat.process_runs import run_end

# Chunks at a time: their working columns stay in the first-level cache.
_BLOCK: Final = 512
# A chunk whose rate changes by less than a fifth has not changed, however certain that is.
_TOLERANCE: Final = 0.1
# Half a sample is added to each count (hmd.heat.rates.posterior_rates).
_UNSEEN: Final = 0.5


@inline
def _fill_credible(
    begin: int, end: int, columns: ChunkColumns, clocks: WindowClocks, most: float, kept: Float32s
) -> None:
    """Fill the shares of their history to keep, as hmd.heat.rates.change_detection does for pages.

    The chunks are of one process; ``most`` is the squared deviation from which histories lose
    weight.
    """
    p = columns.process[begin]
    if clocks.window[p] <= 0.0 or clocks.clock[p] <= 0.0:
        kept[:] = 1.0
        return
    none, one = np.float32(0.0), np.float32(1.0)
    per_unit, window = np.float32(1.0 / clocks.unit[p]), np.float32(clocks.window[p])
    grain, tolerance = np.float32(clocks.clock[p] / FULL_EXPOSURE), np.float32(_TOLERANCE)
    heat, recent = columns.heat_sum[begin:end], columns.recent_sum[begin:end]
    exposed = columns.exposed[begin:end]
    for i in range(len(heat)):
        past = grain * np.float32(exposed[i])
        ratio = window / past if past > none else none
        n = recent[i] * per_unit if past > none else none
        f = heat[i] * per_unit * ratio
        both = n + f
        # With a tolerance; 0 of chunks without history.
        gap = max(abs(n - f) - tolerance * both, none)
        kept[i] = (gap + gap) * gap / ((both + np.float32(0.75)) * (one + ratio))
    for i in range(len(heat)):
        kept[i] = math.exp(most - kept[i]) if kept[i] > most else one


@inline
def _cool(
    span: tuple[int, int],
    columns: ChunkColumns,
    clocks: WindowClocks,
    ended: tuple[float, float],
    kept: Float32s,
) -> None:
    """Add the window of chunks of one process to their history; ``ended`` are window and keep.

    ``kept`` are the shares of each history to keep.
    """
    begin, end = span
    w, keep = ended
    p = columns.process[begin]
    grain, least = clocks.clock[p] / FULL_EXPOSURE, 1e-3 * clocks.unit[p]
    coded = FULL_EXPOSURE / (keep * clocks.clock[p] + w)
    heat, recent = columns.heat_sum[begin:end], columns.recent_sum[begin:end]
    exposed, detail = columns.exposed[begin:end], columns.detail[begin:end]
    for i in range(len(heat)):
        left = keep * kept[i]
        cooled = left * heat[i] + recent[i]
        cooled = cooled if cooled > least else 0.0
        step = max(np.int32(1), np.int32((left * grain * exposed[i] + w) * coded + 0.5))
        whole = detail[i] < 0
        heat[i] = np.float32(cooled) if whole else heat[i]
        exposed[i] = np.uint8(step) if whole else exposed[i]
        recent[i] = np.float32(0.0) if whole else recent[i]


@kernel
def fold_wholes(
    chunks: int,
    columns: ChunkColumns,
    clocks: WindowClocks,
    window: Float64s,
    keep: Float64s,
    change_threshold: float,
) -> None:
    """End windows as :func:`hmd.heat.rates.cooling.fold` does for pages.

    ``change_threshold`` is as in :class:`hmd.heat.heat_settings.HeatSettings`.
    """
    kept, begin = np.zeros(_BLOCK, np.float32), 0
    while begin < chunks:
        end = run_end(columns.process, begin, min(begin + _BLOCK, chunks))
        p = columns.process[begin]
        if window[p] <= 0.0:
            begin = end
            continue
        _fill_credible(begin, end, columns, clocks, change_threshold * change_threshold, kept)
        _cool((begin, end), columns, clocks, (window[p], keep[p]), kept)
        begin = end


@kernel
def estimate_wholes(
    chunks: int,
    columns: ChunkColumns,
    clocks: WindowClocks,
    intensity: Float64s,
    change_threshold: float,
    rates: TableRates,
    pages: Float64s,
) -> None:
    """Fill rates and supports by chunk.

    As :func:`hmd.heat.rates.posterior_rates.estimate` does for pages.

    Adds all resident pages to ``pages``, by process. ``change_threshold`` is as in
    :class:`hmd.heat.heat_settings.HeatSettings`.
    """
    none, kept, begin = np.float32(0.0), np.zeros(_BLOCK, np.float32), 0
    while begin < chunks:
        end = run_end(columns.process, begin, min(begin + _BLOCK, chunks))
        p = columns.process[begin]
        # In single precision, as rates are kept.
        per_unit = np.float32(1.0 / clocks.unit[p] if clocks.unit[p] > 0.0 else 0.0)
        grain, window = np.float32(clocks.clock[p] / FULL_EXPOSURE), np.float32(clocks.window[p])
        times, unseen = np.float32(intensity[p]), np.float32(_UNSEEN)
        heat, recent = columns.heat_sum[begin:end], columns.recent_sum[begin:end]
        exposed, resident = columns.exposed[begin:end], columns.resident[begin:end]
        rate, support = rates.chunk_rate[begin:end], rates.chunk_support[begin:end]
        _fill_credible(begin, end, columns, clocks, change_threshold * change_threshold, kept)
        count = 0
        for i in range(len(heat)):
            n = (kept[i] * heat[i] + recent[i]) * per_unit + unseen
            past = kept[i] * grain * np.float32(exposed[i])
            e = (past + window) * per_unit * np.float32(resident[i])
            rate[i] = times * n / e if e > none else none
            support[i] = n if e > none else none
            count += int(resident[i])
        pages[p] += count
        begin = end


@kernel
def count_estimated(chunks: int, columns: ChunkColumns, count: Float64s) -> None:
    """Add up what has a rate of its own, by process: resident pages, or chunks as a whole."""
    begin = 0
    while begin < chunks:
        end = run_end(columns.process, begin, min(begin + _BLOCK, chunks))
        resident, detail = columns.resident[begin:end], columns.detail[begin:end]
        total = 0
        for i in range(len(resident)):
            pages = int(resident[i])
            total += pages if detail[i] >= 0 else min(pages, 1)
        count[columns.process[begin]] += total
        begin = end
