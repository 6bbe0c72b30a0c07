"""Cooling: at the end of a window of samples, the window's counts join the history.

Takes the counts of a window, gives cooled counts and the exposure over which they were counted;
their quotient is the rate of a page. Costs about 3 ns per page that has heat, far less per page
that has none, once per window.

History loses weight with age: half of it every ``cooling_samples`` samples of its process, so
that an idle process keeps its own. It also loses weight where the window contradicts it, and is
revised where the rate of all pages on a node changes (:mod:`hmd.heat.change_detection`). This is
the discounted Gamma-Poisson filter (Harvey and Fernandes, "Time series models for count or
qualitative observations", 1989), with a discount that change detection sets.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hmd.heat.chunk_columns import ChunkColumns, WindowClocks
from hmd.heat.geometry import ABSENT, CHUNK_PAGES, FIXED, FULL_EXPOSURE
from hmd.heat.kernels import Float32Plane, Float64Plane, Float64s, inline, kernel


@inline
def _coded(exposure: float, full: float) -> int:
    """Return the byte that encodes an exposure: at least 1, since the window was observed."""
    return max(1, int(exposure / full * FULL_EXPOSURE + 0.5))


@inline
def _revised(counted: float, expected: float, change: float) -> tuple[float, float]:
    """Return the factors of a page's heat and exposure, where its node's rate changed.

    ``change`` is the new rate over the old one. A page has changed with its node where that makes
    its count at least as likely: if the rate fell, so does the page's, with all of its weight, and
    if it rose, the page's history is void. Any other page keeps its rate, with as much less weight.
    """
    if counted * math.log(change) < expected * (change - 1.0):
        weight = min(change, 1.0 / change)
        return weight, weight
    return (change, 1.0) if change < 1.0 else (0.0, 0.0)


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
def _changed(p: np.int32, change: Float64Plane) -> bool:
    """Return whether the rate of any node of a process has changed."""
    changed = False
    for on in range(change.shape[1]):
        changed |= change[p, on] != 1.0
    return changed


@inline
def _cool(row: int, columns: ChunkColumns, scales: _WindowScales, kept: Float32Plane) -> float:
    """Add the window to the history of a chunk's pages on nodes that have not changed.

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
    change: Float64Plane,
) -> None:
    """End the window of the pages of every process whose ``window`` is above 0.

    Per process, ``window`` is the weight of the samples of a window that ends, else 0, and
    ``keep`` is the share of the history that cooling leaves. ``kept`` are the shares of histories
    that change detection leaves, ``change`` the change of the rate of each process's pages by node.
    ``recent`` is added to ``heat`` and cleared. Chunks that are counted as a whole have
    :func:`hmd.heat.whole_chunks.fold_wholes`.
    """
    heat, recent, exposure = columns.heat, columns.recent, columns.exposure
    heat_sum, recent_sum = columns.heat_sum, columns.recent_sum
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
        total = np.float64(0.0)
        scales = _WindowScales(keep[p], grain, w, FULL_EXPOSURE / full, 1e-3 * unit[p])
        if not _changed(p, change):
            heat_sum[chunk] = _cool(row, columns, scales, kept)
            recent_sum[chunk] = 0.0
            continue
        for i in range(CHUNK_PAGES):
            left = keep[p] * kept[row, i]
            past = left * grain * exposure[row, i]
            old = left * heat[row, i]
            code = columns.node[row, i]
            on = FIXED - code if code <= FIXED else code
            if on != ABSENT and change[p, on] != 1.0 and exposure[row, i]:
                expected = heat[row, i] * w / (grain * exposure[row, i])
                of_heat, of_exposure = _revised(
                    recent[row, i] / unit[p], expected / unit[p], change[p, on]
                )
                old *= of_heat
                past *= of_exposure
            cooled = old + recent[row, i]
            # Below a thousandth of a sample a count means nothing, and denormals are slow.
            heat[row, i] = cooled if cooled > 1e-3 * unit[p] else 0.0
            exposure[row, i] = _coded(past + w, full)
            recent[row, i] = 0.0
            total += heat[row, i]
        heat_sum[chunk] = total
        recent_sum[chunk] = 0.0
