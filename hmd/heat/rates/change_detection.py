"""Change detection: the share of each page's history that the open window leaves credible.

Takes the history and the counts of the open window, gives the share of its history to keep for
every page. Costs about 5 ns per page that has heat, almost nothing per page that has none.

A history loses weight where the window contradicts it: by a factor that falls, like a normal
likelihood, with the squared deviation of the count from what the history predicts. That test is
made three times, for a chunk of 2 MiB, a block of 64 KiB and each page. A hot set that moves is
thus recognised at once where its pages have hot neighbours, and within a few samples per page
where they have none.

A hot set whose pages are scattered is recognised by :mod:`hmd.heat.rates.change_points`, from the
samples of a tick of the whole process.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from hmd.heat.chunk_columns import ChunkColumns, WindowClocks
from hmd.heat.geometry import BLOCK_PAGES, CHUNK_BLOCKS, CHUNK_PAGES, FULL_EXPOSURE
from hmd.heat.kernels import Float32Plane, Float64s, inline, kernel

# A chunk whose rate changes by less than a fifth has not changed, however certain that is.
_CHUNK_TOLERANCE: Final = 0.1


@inline
def _credible_share(
    counted: float, expected: float, ratio: float, threshold2: float, tolerance: float
) -> float:
    """Return the share of a history to keep, given the samples that a window counted.

    ``ratio`` is the window over the history's exposure: a prediction from a short history is
    itself uncertain. The deviation is the variance-stabilised one of two Poisson counts
    (Anscombe), without its roots; ``tolerance`` is a relative deviation, over the sum of both,
    that is allowed on top of chance.
    """
    both = counted + expected
    gap = max(abs(counted - expected) - tolerance * both, 0.0)
    deviation2 = 2.0 * gap * gap / ((both + 0.75) * (1.0 + ratio))
    if deviation2 <= threshold2:
        return 1.0
    return math.exp(threshold2 - deviation2)


class _Scales(NamedTuple):
    """What a process's pages share: samples per step of exposure, of its window, per weight."""

    grain: float
    window: float
    per_unit: float


class _Pages(NamedTuple):
    """Working columns of one chunk's pages: samples that a window counted, and what is expected.

    ``deviation2`` is the squared deviation, 0 of pages without history.
    """

    counted: Float64s
    expected: Float64s
    exposed: Float64s
    deviation2: Float64s


@inline
def _compare(row: int, columns: ChunkColumns, scales: _Scales, into: _Pages) -> None:
    """Fill ``into`` of a chunk's pages; without branches, so that it takes several at a time."""
    heat, recent, exposure = columns.heat, columns.recent, columns.exposure
    grain, window, per_unit = scales
    for i in range(CHUNK_PAGES):
        past = grain * exposure[row, i]
        ratio = window / past if past > 0.0 else 0.0
        n, f = recent[row, i] * per_unit, heat[row, i] * per_unit * ratio
        gap, both = n - f, n + f
        deviation2 = 2.0 * gap * gap / ((both + 0.75) * (1.0 + ratio))
        into.counted[i], into.expected[i], into.exposed[i] = n, f, past
        into.deviation2[i] = deviation2 if past > 0.0 else 0.0


@kernel
def fill_credible(
    columns: ChunkColumns,
    clocks: WindowClocks,
    change_threshold: float,
    kept: Float32Plane,
) -> None:
    """Fill ``kept`` of the pages of chunks in detail: 1 where no window contradicts a history.

    ``change_threshold`` is the deviation, in standard deviations, from which a history loses
    weight. Chunks that are counted as a whole have :mod:`hmd.heat.whole_chunks`.
    """
    heat_sum, recent_sum = columns.heat_sum, columns.recent_sum
    clock, window, unit = clocks.clock, clocks.window, clocks.unit
    counted = np.zeros(CHUNK_BLOCKS, np.float64)
    expected = np.zeros(CHUNK_BLOCKS, np.float64)
    exposed = np.zeros(CHUNK_BLOCKS, np.float64)
    samples, predicted = np.zeros(CHUNK_PAGES, np.float64), np.zeros(CHUNK_PAGES, np.float64)
    history, deviation2 = np.zeros(CHUNK_PAGES, np.float64), np.zeros(CHUNK_PAGES, np.float64)
    pages = _Pages(samples, predicted, history, deviation2)
    most = change_threshold * change_threshold
    for row in range(len(columns.owner)):
        chunk = np.int64(columns.owner[row])
        if chunk < 0:
            continue
        p = columns.process[chunk]
        if (
            window[p] <= 0.0
            or clock[p] <= 0.0
            or (heat_sum[chunk] == 0.0 and recent_sum[chunk] == 0.0)
        ):
            kept[row, :] = 1.0
            continue
        w = window[p] / unit[p]
        grain = clock[p] / FULL_EXPOSURE / unit[p]
        _compare(row, columns, _Scales(grain, w, 1.0 / unit[p]), pages)
        all_counted, all_expected, all_exposed = 0.0, 0.0, 0.0
        for block in range(CHUNK_BLOCKS):
            n, f, e = 0.0, 0.0, 0.0
            for i in range(block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES):
                n += pages.counted[i]
                f += pages.expected[i]
                e += pages.exposed[i]
            counted[block], expected[block], exposed[block] = n, f, e
            all_counted += counted[block]
            all_expected += expected[block]
            all_exposed += e
        whole, times = 1.0, 1.0
        if all_exposed > 0.0:
            ratio = w * CHUNK_PAGES / all_exposed
            whole = _credible_share(all_counted, all_expected, ratio, most, _CHUNK_TOLERANCE)
            times = (all_counted + 0.5) / (all_expected + 0.5)
        for block in range(CHUNK_BLOCKS):
            together = 1.0
            if exposed[block] > 0.0:
                ratio = w * BLOCK_PAGES / exposed[block]
                together = _credible_share(counted[block], expected[block], ratio, most, 0.0)
                # Of a chunk that has changed, only the blocks whose counts rather show it.
                if whole < 1.0 and (
                    counted[block] * math.log(times) >= expected[block] * (times - 1.0)
                ):
                    together = min(together, whole)
            for i in range(block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES):
                own = 1.0
                if pages.deviation2[i] > most:
                    own = math.exp(most - pages.deviation2[i])
                kept[row, i] = min(together, own)
