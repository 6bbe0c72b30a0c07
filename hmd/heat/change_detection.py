"""Surprise: how much of each page's history the open window leaves to be believed.

Takes the history and the counts of the open window, gives for every page the share of its history
to keep. Costs about 5 ns a page that has heat, next to nothing one that has none.

A history is worth less where the window contradicts it: by a factor that falls, like a normal
likelihood, with the squared deviation of what was counted from what the history foretold. That
test is made three times, for a chunk of 2 MiB, a block of 64 KiB and each page, so that a hot set
that moves is believed at once where its pages have hot neighbours, and within a few samples a
page where they have none.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from hmd.heat.geometry import BLOCK_PAGES, CHUNK_BLOCKS, CHUNK_PAGES, FULL_EXPOSURE
from hmd.heat.kernels import Float32Plane, Float32s, Float64s, Int32s, Uint8Plane, inline, kernel

# A chunk that is used a fifth more or less is not another one, however sure that is.
_CHUNK_TOLERANCE: Final = 0.1


@inline
def _believed(
    counted: float, foretold: float, ratio: float, surprise2: float, tolerance: float
) -> float:
    """Return the share of a history to keep, given what a window counted, in samples.

    ``ratio`` is the window over the history's exposure: a forecast from a short history is
    itself uncertain. Variance-stabilised deviation of two Poisson counts, without its roots;
    ``tolerance`` is a relative deviation (over the sum of both) that comes on top of chance.
    """
    both = counted + foretold
    gap = max(abs(counted - foretold) - tolerance * both, 0.0)
    deviation2 = 2.0 * gap * gap / ((both + 0.75) * (1.0 + ratio))
    if deviation2 <= surprise2:
        return 1.0
    return math.exp(surprise2 - deviation2)


@kernel
def believe(
    chunks: int,
    chunk_process: Int32s,
    clock: Float64s,
    window: Float64s,
    unit: Float64s,
    surprise: float,
    heat: Float32Plane,
    recent: Float32Plane,
    exposure: Uint8Plane,
    heat_sum: Float32s,
    recent_sum: Float32s,
    kept: Float32Plane,
) -> None:
    """Fill ``kept``, shape ``(chunks, 512)``: 1 where the window says nothing against a history.

    By process: ``clock`` is its cooled weight of all samples before the window, ``window`` the
    weight of those in it, ``unit`` the weight of a sample. ``surprise`` is the deviation, in
    standard deviations, from which a history loses weight.
    """
    counted = np.zeros(CHUNK_BLOCKS, np.float64)
    foretold = np.zeros(CHUNK_BLOCKS, np.float64)
    exposed = np.zeros(CHUNK_BLOCKS, np.float64)
    most = surprise * surprise
    for chunk in range(chunks):
        p = chunk_process[chunk]
        if (
            window[p] <= 0.0
            or clock[p] <= 0.0
            or (heat_sum[chunk] == 0.0 and recent_sum[chunk] == 0.0)
        ):
            kept[chunk, :] = 1.0
            continue
        w = window[p] / unit[p]
        grain = clock[p] / FULL_EXPOSURE / unit[p]
        all_counted, all_foretold, all_exposed = 0.0, 0.0, 0.0
        for block in range(CHUNK_BLOCKS):
            n, f, e = 0.0, 0.0, 0.0
            for i in range(block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES):
                n += recent[chunk, i]
                if exposure[chunk, i]:
                    past = grain * exposure[chunk, i]
                    f += heat[chunk, i] * w / past
                    e += past
            counted[block], foretold[block], exposed[block] = n / unit[p], f / unit[p], e
            all_counted += counted[block]
            all_foretold += foretold[block]
            all_exposed += e
        whole, times = 1.0, 1.0
        if all_exposed > 0.0:
            ratio = w * CHUNK_PAGES / all_exposed
            whole = _believed(all_counted, all_foretold, ratio, most, _CHUNK_TOLERANCE)
            times = (all_counted + 0.5) / (all_foretold + 0.5)
        for block in range(CHUNK_BLOCKS):
            together = 1.0
            if exposed[block] > 0.0:
                ratio = w * BLOCK_PAGES / exposed[block]
                together = _believed(counted[block], foretold[block], ratio, most, 0.0)
                # Of a chunk that has changed, those blocks whose counts rather say so.
                if whole < 1.0 and (
                    counted[block] * math.log(times) >= foretold[block] * (times - 1.0)
                ):
                    together = min(together, whole)
            for i in range(block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES):
                own = 1.0
                past = grain * exposure[chunk, i]
                if past > 0.0 and (heat[chunk, i] > 0.0 or recent[chunk, i] > 0.0):
                    own = _believed(
                        recent[chunk, i] / unit[p],
                        heat[chunk, i] * w / past / unit[p],
                        w / past,
                        most,
                        0.0,
                    )
                kept[chunk, i] = min(together, own)
