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
import numpy.typing as npt

from hmd.heat.geometry import CHUNK_PAGES, FULL_EXPOSURE
from hmd.heat.kernels import inline, kernel


@inline
def _coded(exposure: float, full: float) -> int:
    """Return an exposure as the byte that holds it, at least 1: the window was seen."""
    return max(1, int(exposure / full * FULL_EXPOSURE + 0.5))


@kernel(
    "int64",
    "int32[::1]",
    "float64[::1]",
    "float64[::1]",
    "float64[::1]",
    "float64[::1]",
    "float32[:, ::1]",
    "float32[:, ::1]",
    "float32[:, ::1]",
    "uint8[:, ::1]",
    "float32[::1]",
    "float32[::1]",
)
def fold(
    chunks: int,
    chunk_process: npt.NDArray[np.int32],
    clock: npt.NDArray[np.float64],
    window: npt.NDArray[np.float64],
    keep: npt.NDArray[np.float64],
    unit: npt.NDArray[np.float64],
    kept: npt.NDArray[np.float32],
    heat: npt.NDArray[np.float32],
    recent: npt.NDArray[np.float32],
    exposure: npt.NDArray[np.uint8],
    chunk_heat: npt.NDArray[np.float32],
    chunk_recent: npt.NDArray[np.float32],
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
