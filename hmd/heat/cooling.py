"""Cooling: at the end of a window of samples, what was counted joins the history.

Takes the counts of a window, gives cooled counts and the exposure over which they were counted;
their quotient is a page's rate. Costs about 5 ns a page that has heat, far less one that has
none, once a window.

History is worth less as it ages: by half every ``cooling_samples`` samples of its process, so
that an idle process keeps its own. And it is worth less where the window contradicts it: by a
factor that falls, like a normal likelihood, with the squared deviation of what was counted from
what the history foretold. That test is made twice, for a block of 64 KiB and for each page, so
that a hot set that moves is believed at once where its pages have hot neighbours, and within a
few samples a page where they have none. This is the discounted Gamma-Poisson filter (Harvey and
Fernandes, "Time series models for count or qualitative observations", 1989) whose discount is
set by surprise.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from hmd.heat.kernels import inline, kernel
from hmd.heat.layout import BLOCK_PAGES, CHUNK_BLOCKS, CHUNK_PAGES, FULL_EXPOSURE


@inline
def _believed(counted: float, foretold: float, ratio: float, surprise2: float) -> float:
    """Return the share of a history to keep, given what a window counted, in samples.

    ``ratio`` is the window over the history's exposure: a forecast from a short history is
    itself uncertain. Variance-stabilised deviation of two Poisson counts, without its roots.
    """
    gap = counted - foretold
    deviation2 = 2.0 * gap * gap / ((counted + foretold + 0.75) * (1.0 + ratio))
    if deviation2 <= surprise2:
        return 1.0
    return math.exp(surprise2 - deviation2)


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
    "float64",
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
    surprise: float,
    heat: npt.NDArray[np.float32],
    recent: npt.NDArray[np.float32],
    exposure: npt.NDArray[np.uint8],
    chunk_heat: npt.NDArray[np.float32],
    chunk_recent: npt.NDArray[np.float32],
) -> None:
    """End the window of every process whose ``window`` is above 0.

    By process: ``clock`` is its cooled weight of all samples before the window, ``window`` the
    weight of those in it, ``keep`` what cooling leaves of the history, ``unit`` the weight of a
    sample. ``recent`` is folded into ``heat`` and cleared.
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
        for block in range(CHUNK_BLOCKS):
            first = block * BLOCK_PAGES
            counted, foretold, exposed = 0.0, 0.0, 0.0
            for i in range(first, first + BLOCK_PAGES):
                counted += recent[chunk, i]
                if exposure[chunk, i]:
                    foretold += heat[chunk, i] * w / (grain * exposure[chunk, i])
                    exposed += grain * exposure[chunk, i]
            together = 1.0
            if exposed > 0.0:
                ratio = w * BLOCK_PAGES / exposed
                together = _believed(
                    counted / unit[p], foretold / unit[p], ratio, surprise * surprise
                )
            for i in range(first, first + BLOCK_PAGES):
                past = grain * exposure[chunk, i]
                kept = keep[p] * together
                if past > 0.0:
                    own = _believed(
                        recent[chunk, i] / unit[p],
                        heat[chunk, i] * w / past / unit[p],
                        w / past,
                        surprise * surprise,
                    )
                    kept = keep[p] * min(together, own)
                cooled = kept * heat[chunk, i] + recent[chunk, i]
                # Below a thousandth of a sample a count says nothing, and denormals are slow.
                heat[chunk, i] = cooled if cooled > 1e-3 * unit[p] else 0.0
                exposure[chunk, i] = _coded(kept * past + w, full)
                recent[chunk, i] = 0.0
                total += heat[chunk, i]
        chunk_heat[chunk] = total
        chunk_recent[chunk] = 0.0
