"""Cooling: at the end of a window of samples, what was counted joins the history.

Takes the counts of a window, gives cooled counts and the exposure over which they were counted;
their quotient is a page's rate. Costs about 3 ns a page that has heat, far less one that has
none, once a window.

History is worth less as it ages: by half every ``cooling_samples`` samples of its process, so
that an idle process keeps its own. And it is worth less where the window contradicts it
(:mod:`hmd.heat.change_detection`). This is the discounted Gamma-Poisson filter (Harvey and
Fernandes,
"Time series models for count or qualitative observations", 1989) whose discount is set by
surprise.
"""

from __future__ import annotations

import numpy as np

from hmd.heat.geometry import CHUNK_PAGES, FULL_EXPOSURE
from hmd.heat.kernels import Float32Plane, Float32s, Float64s, Int32s, Uint8Plane, inline, kernel


@inline
def _coded(exposure: float, full: float) -> int:
    """Return an exposure as the byte that holds it, at least 1: the window was seen."""
    return max(1, int(exposure / full * FULL_EXPOSURE + 0.5))


@kernel
def fold(
    chunks: int,
    chunk_process: Int32s,
    clock: Float64s,
    window: Float64s,
    keep: Float64s,
    unit: Float64s,
    kept: Float32Plane,
    heat: Float32Plane,
    recent: Float32Plane,
    exposure: Uint8Plane,
    chunk_heat: Float32s,
    chunk_recent: Float32s,
) -> None:
    """End the window of every process whose ``window`` is above 0.

    By process: ``clock`` is its cooled weight of all samples before the window, ``window`` the
    weight of those in it, ``keep`` what cooling leaves of the history, ``unit`` the weight of a
    sample. ``kept`` is what surprise leaves of it, by page. ``recent`` is folded into ``heat`` and
    cleared.
    """
    for chunk in range(chunks):
        p = chunk_process[chunk]
        if window[p] <= 0.0:
            continue
        w = window[p]
        full = keep[p] * clock[p] + w
        grain = clock[p] / FULL_EXPOSURE
        if chunk_heat[chunk] == 0.0 and chunk_recent[chunk] == 0.0:
            for i in range(CHUNK_PAGES):
                exposure[chunk, i] = _coded(keep[p] * grain * exposure[chunk, i] + w, full)
            continue
        total = np.float64(0.0)
        for i in range(CHUNK_PAGES):
            left = keep[p] * kept[chunk, i]
            cooled = left * heat[chunk, i] + recent[chunk, i]
            # Below a thousandth of a sample a count says nothing, and denormals are slow.
            heat[chunk, i] = cooled if cooled > 1e-3 * unit[p] else 0.0
            exposure[chunk, i] = _coded(left * grain * exposure[chunk, i] + w, full)
            recent[chunk, i] = 0.0
            total += heat[chunk, i]
        chunk_heat[chunk] = total
        chunk_recent[chunk] = 0.0
