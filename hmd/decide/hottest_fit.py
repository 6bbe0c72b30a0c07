"""Which tier each page is wanted on: the hottest set that fits, tier after tier.

Two passes over all pages a tier, about 5 ns a page each: a histogram of heat on a logarithmic
scale finds the threshold above which pages fit, and the bin on the threshold is filled in part,
residents first.

A page that is there already counts with the upper end of what its heat may be, a page that would
have to come with the lower end, and the two stand apart by the hysteresis and by what recent
moves of the page have left (wear). So noise of sampling moves nothing, and what has just moved
stays unless there is much to gain.
"""

from __future__ import annotations

import numpy as np

from hmd.heat.geometry import CHUNK_PAGES
from hmd.heat.kernels import (
    Bools,
    Float32Plane,
    Float64s,
    Int8Plane,
    Int64s,
    Uint8Plane,
    inline,
    kernel,
)

# A float's exponent and 3 bits of its mantissa: 8 bins an octave, in the order of the floats.
_BIN_SHIFT = np.int32(20)
_BINS = 2048
# Wear of one move doubles the heat that the next one needs.
_WEAR_OCTAVE = 64.0
# Anscombe's transform of a Poisson count n has standard deviation 1/2: sqrt(n + 3/8).
_ANSCOMBE = 0.375


@inline
def _key(
    rate: float, support: float, apart: float, resident: bool, confidence: float
) -> np.float32:
    """Return the heat that a page counts with; 0 for one that was never seen."""
    if support <= 0.0:
        return np.float32(0.0)
    root = np.sqrt(support + _ANSCOMBE)
    if resident:
        bound = root + confidence / 2.0
        return np.float32(rate / support * bound * bound * apart)
    bound = max(root - confidence / 2.0, 0.0)
    return np.float32(rate / support * bound * bound / apart)


@inline
def _bin(key: np.float32) -> int:
    return int(np.float32(key).view(np.int32) >> _BIN_SHIFT)


@kernel
def choose(
    chunks: int,
    huge: Bools,
    node: Int8Plane,
    wear: Uint8Plane,
    rate: Float32Plane,
    support: Float32Plane,
    node_tier: Int64s,
    capacity: Int64s,
    confidence: float,
    hysteresis: float,
    samples_min: float,
    wanted: Int8Plane,
    key: Float32Plane,
    served: Float64s,
) -> int:
    """Fill ``wanted`` with the tier of each page; returns how many pages want a faster one.

    ``capacity`` is what each tier can hold of these pages, in pages; the last takes the rest.
    ``wanted`` is -1 for pages that stay (absent, fixed, on a node of no tier). ``key`` is the
    heat that decided, ``served`` what each tier serves now, in accesses a tick. Of a huge page only
    the first row is filled.
    """
    tiers = len(capacity)
    risers = 0
    wanted[:, :] = -1
    bins = np.zeros((_BINS, 2), np.int64)
    # Half of what parts two pages is on either side.
    apart = np.sqrt(hysteresis * 2.0 ** (np.arange(256) / _WEAR_OCTAVE))
    for tier in range(tiers):
        last = tier == tiers - 1
        bins[:, :] = 0
        for chunk in range(chunks):
            size = CHUNK_PAGES if huge[chunk] else 1
            for i in range(0, CHUNK_PAGES, size):
                where = np.int64(node[chunk, i])
                if wanted[chunk, i] >= 0 or where < 0 or where >= len(node_tier):
                    continue
                here = node_tier[where]
                if here < 0:
                    continue
                if tier == 0:
                    served[here] += rate[chunk, i] * size
                if last:
                    wanted[chunk, i] = tier
                    continue
                resident = here <= tier
                if not resident and support[chunk, i] < samples_min:
                    key[chunk, i] = -1.0
                    continue
                key[chunk, i] = _key(
                    rate[chunk, i],
                    support[chunk, i],
                    apart[wear[chunk, i]],
                    resident,
                    confidence,
                )
                bins[_bin(key[chunk, i]), 0 if resident else 1] += size
        if last:
            break
        threshold, left = _BINS, max(capacity[tier], 0)
        while threshold > 0 and bins[threshold - 1, 0] + bins[threshold - 1, 1] <= left:
            threshold -= 1
            left -= bins[threshold, 0] + bins[threshold, 1]
        boundary = threshold - 1
        left_resident = 0 if boundary < 0 else min(left, bins[boundary, 0])
        left_candidate = left - left_resident
        for chunk in range(chunks):
            size = CHUNK_PAGES if huge[chunk] else 1
            for i in range(0, CHUNK_PAGES, size):
                where = np.int64(node[chunk, i])
                if wanted[chunk, i] >= 0 or where < 0 or where >= len(node_tier):
                    continue
                here = node_tier[where]
                if here < 0 or key[chunk, i] < 0.0:
                    continue
                row = _bin(key[chunk, i])
                if row < boundary:
                    continue
                if row == boundary:
                    if here <= tier:
                        if size > left_resident:
                            continue
                        left_resident -= size
                    else:
                        if size > left_candidate:
                            continue
                        left_candidate -= size
                wanted[chunk, i] = tier
                risers += here > tier
    return risers


@kernel
def collect(
    chunks: int,
    huge: Bools,
    node: Int8Plane,
    wanted: Int8Plane,
    node_tier: Int64s,
    movers: Int64s,
) -> int:
    """Put the pages that are not on the tier where they are wanted into ``movers``.

    A page is numbered by its chunk's row times 512, plus its place in the chunk. Returns how
    many there are, which may be more than ``movers`` holds.
    """
    found = 0
    for chunk in range(chunks):
        size = CHUNK_PAGES if huge[chunk] else 1
        for i in range(0, CHUNK_PAGES, size):
            if wanted[chunk, i] < 0 or wanted[chunk, i] == node_tier[node[chunk, i]]:
                continue
            if found < len(movers):
                movers[found] = chunk * CHUNK_PAGES + i
            found += 1
    return found
