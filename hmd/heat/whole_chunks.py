"""Chunks that are counted as a whole: their part of change detection, cooling and rates.

The same arithmetic as that of pages in :mod:`hmd.heat.change_detection`, :mod:`hmd.heat.cooling`
and :mod:`hmd.heat.rates`, for one count per chunk. Of terabytes nearly all chunks are such, so that
these loops decide what a tick costs: they run over neighbours of one process without branches,
several chunks at a time.

Rows of chunks that have detail are passed over: what they get in ``KeptShares.chunks`` and
``TableRates`` here means nothing.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from hmd.heat.chunk_columns import ChunkColumns, TableRates, WindowClocks
from hmd.heat.geometry import FULL_EXPOSURE
from hmd.heat.kernels import Float32s, Float64s, Int32s, inline, kernel

# Chunks at a time: their working columns stay in the first-level cache.
_BLOCK: Final = 512
# A chunk whose rate changes by less than a fifth has not changed, however certain that is.
_TOLERANCE: Final = 0.1
# Half a sample is added to each count (hmd.heat.rates).
_UNSEEN: Final = 0.5


@inline
def _run_end(process: Int32s, begin: int, chunks: int) -> int:
    """Return the end of the chunks of one process from ``begin`` on, at most a block of them."""
    most, end = min(begin + _BLOCK, chunks), begin + 1
    while end < most and process[end] == process[begin]:
        end += 1
    return end


@inline
def _compare(
    begin: int, end: int, columns: ChunkColumns, clocks: WindowClocks, deviation2: Float64s
) -> None:
    """Fill how far windows stray from histories, squared; 0 of chunks without history.

    The chunks are of one process.
    """
    p = columns.process[begin]
    per_unit, window = 1.0 / clocks.unit[p], clocks.window[p]
    grain = clocks.clock[p] / FULL_EXPOSURE
    heat, recent = columns.heat_sum[begin:end], columns.recent_sum[begin:end]
    exposed = columns.exposed[begin:end]
    for i in range(len(heat)):
        past = grain * exposed[i]
        ratio = window / past if past > 0.0 else 0.0
        n = recent[i] * per_unit if past > 0.0 else 0.0
        f = heat[i] * per_unit * ratio
        both = n + f
        # As hmd.heat.change_detection has it, with a tolerance.
        gap = max(abs(n - f) - _TOLERANCE * both, 0.0)
        deviation2[i] = 2.0 * gap * gap / ((both + 0.75) * (1.0 + ratio))


@kernel
def believe_wholes(
    chunks: int,
    columns: ChunkColumns,
    clocks: WindowClocks,
    surprise: float,
    kept: Float32s,
) -> None:
    """Fill ``kept``, by chunk, as :func:`hmd.heat.change_detection.believe` does for pages."""
    most = surprise * surprise
    deviation2 = np.zeros(_BLOCK, np.float64)
    begin = 0
    while begin < chunks:
        end = _run_end(columns.process, begin, chunks)
        p, share = columns.process[begin], kept[begin:end]
        if clocks.window[p] <= 0.0 or clocks.clock[p] <= 0.0:
            for i in range(len(share)):
                share[i] = 1.0
            begin = end
            continue
        _compare(begin, end, columns, clocks, deviation2)
        for i in range(len(share)):
            share[i] = 1.0
            if deviation2[i] > most:
                share[i] = math.exp(most - deviation2[i])
        begin = end


@inline
def _cool(
    span: tuple[int, int],
    columns: ChunkColumns,
    clocks: WindowClocks,
    ended: tuple[float, float],
    kept: Float32s,
) -> None:
    """Add the window of chunks of one process to their history; ``ended`` are window and keep."""
    begin, end = span
    w, keep = ended
    p = columns.process[begin]
    grain, least = clocks.clock[p] / FULL_EXPOSURE, 1e-3 * clocks.unit[p]
    coded = FULL_EXPOSURE / (keep * clocks.clock[p] + w)
    heat, recent = columns.heat_sum[begin:end], columns.recent_sum[begin:end]
    exposed, detail, share = columns.exposed[begin:end], columns.detail[begin:end], kept[begin:end]
    for i in range(len(heat)):
        left = keep * share[i]
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
    kept: Float32s,
) -> None:
    """End windows as :func:`hmd.heat.cooling.fold` does for pages."""
    begin = 0
    while begin < chunks:
        end = _run_end(columns.process, begin, chunks)
        p = columns.process[begin]
        if window[p] <= 0.0:
            begin = end
            continue
        _cool((begin, end), columns, clocks, (window[p], keep[p]), kept)
        begin = end


@kernel
def estimate_wholes(
    chunks: int,
    columns: ChunkColumns,
    clocks: WindowClocks,
    intensity: Float64s,
    kept: Float32s,
    rates: TableRates,
    pages: Float64s,
) -> None:
    """Fill rates and supports by chunk as :func:`hmd.heat.rates.estimate` does for pages.

    Adds all resident pages to ``pages``, by process.
    """
    begin = 0
    while begin < chunks:
        end = _run_end(columns.process, begin, chunks)
        p = columns.process[begin]
        per_unit = 1.0 / clocks.unit[p] if clocks.unit[p] > 0.0 else 0.0
        grain, window, times = clocks.clock[p] / FULL_EXPOSURE, clocks.window[p], intensity[p]
        heat, recent = columns.heat_sum[begin:end], columns.recent_sum[begin:end]
        exposed, resident = columns.exposed[begin:end], columns.resident[begin:end]
        share, count = kept[begin:end], 0
        rate, support = rates.chunk_rate[begin:end], rates.chunk_support[begin:end]
        for i in range(len(heat)):
            n = (share[i] * heat[i] + recent[i]) * per_unit + _UNSEEN
            e = (share[i] * grain * exposed[i] + window) * per_unit * resident[i]
            rate[i] = times * n / e if e > 0.0 else 0.0
            support[i] = n if e > 0.0 else 0.0
            count += int(resident[i])
        pages[p] += count
        begin = end


@kernel
def count_estimated(chunks: int, columns: ChunkColumns, count: Float64s) -> None:
    """Add up what has a rate of its own, by process: resident pages, or chunks as a whole."""
    begin = 0
    while begin < chunks:
        end = _run_end(columns.process, begin, chunks)
        resident, detail = columns.resident[begin:end], columns.detail[begin:end]
        total = 0
        for i in range(len(resident)):
            pages = int(resident[i])
            total += pages if detail[i] >= 0 else min(pages, 1)
        count[columns.process[begin]] += total
        begin = end
