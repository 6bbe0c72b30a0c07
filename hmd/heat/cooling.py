"""Cooling: at the end of a window of samples, the window's counts join the history.

Takes the counts of a window, gives cooled counts and the exposure over which they were counted;
their quotient is the rate of a page. Costs about 3 ns per page that has heat, far less per page
that has none, once per window.

History loses weight with age: half of it every ``cooling_samples`` samples of its process, so
that an idle process keeps its own. It also loses weight where the window contradicts it
(:mod:`hmd.heat.change_detection`). This is the discounted Gamma-Poisson filter (Harvey and
Fernandes, "Time series models for count or qualitative observations", 1989), with a discount that
change detection sets.
"""

from __future__ import annotations

import numpy as np

from hmd.heat.chunk_columns import ChunkColumns, WindowClocks
from hmd.heat.geometry import CHUNK_PAGES, FULL_EXPOSURE
from hmd.heat.kernels import Float32Plane, Float64s, inline, kernel


@inline
def _coded(exposure: float, full: float) -> int:
    """Return the byte that encodes an exposure: at least 1, since the window was observed."""
    return max(1, int(exposure / full * FULL_EXPOSURE + 0.5))


@kernel
def fold(
    chunks: int,
    columns: ChunkColumns,
    clocks: WindowClocks,
    window: Float64s,
    keep: Float64s,
    kept: Float32Plane,
) -> None:
    """End the window of every process whose ``window`` is above 0.

    Per process, ``window`` is the weight of the samples of a window that ends, else 0, and
    ``keep`` is the share of the history that cooling leaves. ``kept`` is the share of each page's
    history that change detection leaves. ``recent`` is added to ``heat`` and cleared.
    """
    heat, recent, exposure = columns.heat, columns.recent, columns.exposure
    heat_sum, recent_sum = columns.heat_sum, columns.recent_sum
    clock, unit = clocks.clock, clocks.unit
    for chunk in range(chunks):
        p = columns.process[chunk]
        if window[p] <= 0.0:
            continue
        w = window[p]
        full = keep[p] * clock[p] + w
        grain = clock[p] / FULL_EXPOSURE
        if heat_sum[chunk] == 0.0 and recent_sum[chunk] == 0.0:
            for i in range(CHUNK_PAGES):
                exposure[chunk, i] = _coded(keep[p] * grain * exposure[chunk, i] + w, full)
            continue
        total = np.float64(0.0)
        for i in range(CHUNK_PAGES):
            left = keep[p] * kept[chunk, i]
            cooled = left * heat[chunk, i] + recent[chunk, i]
            # Below a thousandth of a sample a count means nothing, and denormals are slow.
            heat[chunk, i] = cooled if cooled > 1e-3 * unit[p] else 0.0
            exposure[chunk, i] = _coded(left * grain * exposure[chunk, i] + w, full)
            recent[chunk, i] = 0.0
            total += heat[chunk, i]
        heat_sum[chunk] = total
        recent_sum[chunk] = 0.0
