"""Cooling: at the end of a window of samples, the window's counts join the history.

Takes the counts of a window, gives cooled counts and the exposure over which they were counted;
their quotient is the rate of a page. Costs about 3 ns per page that has heat, far less per page
that has none, once per window.

History loses weight with age: half of it every ``cooling_samples`` samples of its process, so
that an idle process keeps its own. It also loses weight where the window contradicts it
(:mod:`hmd.heat.rates.change_detection`). This is the discounted Gamma-Poisson filter (Harvey and
Fernandes, "Time series models for count or qualitative observations", 1989), with a discount that
change detection sets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmd.heat.chunk_columns import ChunkColumns, WindowClocks
from hmd.heat.geometry import CHUNK_PAGES, FULL_EXPOSURE
from hmd.heat.kernels import Float32Plane, Float64s, inline, kernel


@inline
def _coded(exposure: float, full: float) -> int:
    """Return the byte that encodes an exposure: at least 1, since the window was observed."""
    return max(1, int(exposure / full * FULL_EXPOSURE + 0.5))


class _WindowScales(NamedTuple):
    """What a process's pages share: the share of history to keep, weight per step of exposure.

    Then the weight of its ``window``, steps per weight of the new clock, and the least heat.
    """

    keep: float
    grain: float
    window: float
    coded: float
    least: float


@inline
def _cool(row: int, columns: ChunkColumns, scales: _WindowScales, kept: Float32Plane) -> float:
    """Add the window to the history of a chunk's pages.

    Returns the sum of their heat. Without branches, so that it takes several pages at a time.
    """
    keep, grain, window, coded, least = scales
    heat, recent = columns.heat[row], columns.recent[row]
    exposure, share = columns.exposure[row], kept[row]
    total = 0.0
    for i in range(len(heat)):
        left = keep * share[i]
        cooled = left * heat[i] + recent[i]
        cooled = cooled if cooled > least else 0.0
        step = np.int32((left * grain * exposure[i] + window) * coded + 0.5)
        heat[i], recent[i] = np.float32(cooled), np.float32(0.0)
        exposure[i] = np.uint8(max(step, np.int32(1)))
        total += cooled
    return total


@kernel
def fold(
    columns: ChunkColumns,
    clocks: WindowClocks,
    window: Float64s,
    keep: Float64s,
    kept: Float32Plane,
) -> None:
    """End the window of the pages of every process whose ``window`` is above 0.

    Per process, ``window`` is the weight of the samples of a window that ends, else 0, and
    ``keep`` is the share of the history that cooling leaves. ``kept`` are the shares of histories
    that change detection leaves. ``recent`` is added to ``heat`` and cleared. Chunks that are
    counted as a whole have :func:`hmd.heat.whole_chunks.fold_wholes`.
    """
    exposure, heat_sum, recent_sum = columns.exposure, columns.heat_sum, columns.recent_sum
    clock, unit = clocks.clock, clocks.unit
    for row in range(len(columns.owner)):
        chunk = np.int64(columns.owner[row])
        if chunk < 0 or window[columns.process[chunk]] <= 0.0:
            continue
        p = columns.process[chunk]
        w = window[p]
        full = keep[p] * clock[p] + w
        grain = clock[p] / FULL_EXPOSURE
        if heat_sum[chunk] == 0.0 and recent_sum[chunk] == 0.0:
            for i in range(CHUNK_PAGES):
                exposure[row, i] = _coded(keep[p] * grain * exposure[row, i] + w, full)
            continue
        scales = _WindowScales(keep[p], grain, w, FULL_EXPOSURE / full, 1e-3 * unit[p])
        heat_sum[chunk] = _cool(row, columns, scales, kept)
        recent_sum[chunk] = 0.0
