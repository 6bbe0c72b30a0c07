"""From counts to rates: how often each page is used now, and how sure that is.

Takes cooled counts, gives expected accesses a tick for every resident page and the number of
samples that the figure rests on. Costs about 10 ns a page.

A page that was sampled twice is not twice as hot as one sampled once. Rates are therefore
shrunk toward the mean of the page's block of 64 KiB, by the posterior mean of a Gamma-Poisson
model (empirical Bayes; Efron and Morris, "Stein's estimation rule and its competitors", 1973).
How far is not a setting: the spread of pages within blocks, by the method of moments, says how
alike neighbours are, in the process and, as far as it has samples, in each chunk. Where blocks
are uniform, 16 pages share their samples; where single pages stand out, each stands for itself.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.heat.geometry import ABSENT, BLOCK_PAGES, CHUNK_BLOCKS, CHUNK_PAGES, FULL_EXPOSURE
from hmd.heat.kernels import (
    Bools,
    Float32Plane,
    Float32s,
    Float64s,
    Int8Plane,
    Int32s,
    Uint8Plane,
    inline,
    kernel,
)

# Where there is no evidence: pages of a block differ about as much as their mean, which counts
# as much as this many squared samples.
_PRIOR_SPREAD: Final = 1.0
_PRIOR_WEIGHT: Final = 4.0
# A chunk with this many squared samples speaks as loud as the rest of its process.
_COMMON_WEIGHT: Final = 64.0
_LEAST_SPREAD: Final = 1e-4
# Half a sample more than was seen, so that a block that was never sampled ranks by how long
# (Jeffreys' prior of a Poisson rate).
_UNSEEN: Final = 0.5


@inline
def _count(
    chunk: int,
    p: int,
    node: npt.NDArray[np.int8],
    heat: npt.NDArray[np.float32],
    recent: npt.NDArray[np.float32],
    exposure: npt.NDArray[np.uint8],
    kept: npt.NDArray[np.float32],
    clock: npt.NDArray[np.float64],
    window: npt.NDArray[np.float64],
    unit: npt.NDArray[np.float64],
    count: npt.NDArray[np.float64],
    exposed: npt.NDArray[np.float64],
    mean: npt.NDArray[np.float64],
    sampled: npt.NDArray[np.float64],
) -> None:
    """Fill samples and exposure by page, and by block its samples and their mean rate."""
    per_unit = 1.0 / unit[p] if unit[p] > 0.0 else 0.0
    grain = clock[p] / FULL_EXPOSURE
    for block in range(CHUNK_BLOCKS):
        n, e = 0.0, 0.0
        for i in range(block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES):
            there = per_unit if node[chunk, i] != ABSENT else 0.0
            count[i] = (kept[chunk, i] * heat[chunk, i] + recent[chunk, i]) * there
            exposed[i] = (kept[chunk, i] * grain * exposure[chunk, i] + window[p]) * there
            n += count[i]
            e += exposed[i]
        sampled[block] = n + _UNSEEN
        mean[block] = sampled[block] / e if e > 0.0 else 0.0


@inline
def _excess(
    count: npt.NDArray[np.float64], exposed: npt.NDArray[np.float64], mean: npt.NDArray[np.float64]
) -> tuple[float, float]:
    """Return how far pages stray from their blocks beyond chance, and the mean, both squared."""
    excess, scale = 0.0, 0.0
    for block in range(CHUNK_BLOCKS):
        for i in range(block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES):
            expected = mean[block] * exposed[i]
            gap = count[i] - expected
            excess += gap * gap * BLOCK_PAGES / (BLOCK_PAGES - 1) - expected
            scale += expected * expected
    return excess, scale


@kernel
def estimate(
    chunks: int,
    chunk_process: Int32s,
    huge: Bools,
    node: Int8Plane,
    heat: Float32Plane,
    recent: Float32Plane,
    exposure: Uint8Plane,
    kept: Float32Plane,
    heat_sum: Float32s,
    recent_sum: Float32s,
    clock: Float64s,
    window: Float64s,
    unit: Float64s,
    intensity: Float64s,
    rate: Float32Plane,
    support: Float32Plane,
) -> None:
    """Fill ``rate`` (accesses a tick) and ``support`` (samples); both 0 where no page is.

    By process: ``clock`` and ``window`` as in :func:`hmd.heat.cooling.fold`, ``unit`` the weight
    of a sample, ``intensity`` the weight of all its samples in a tick. ``kept`` is the share of
    each page's history that :func:`hmd.heat.change_detection.believe` leaves.
    """
    count = np.zeros(CHUNK_PAGES, np.float64)
    exposed = np.zeros(CHUNK_PAGES, np.float64)
    mean = np.zeros(CHUNK_BLOCKS, np.float64)
    sampled = np.zeros(CHUNK_BLOCKS, np.float64)
    excess = np.full(len(clock), _PRIOR_SPREAD * _PRIOR_WEIGHT)
    scale = np.full(len(clock), _PRIOR_WEIGHT)
    for chunk in range(chunks):
        p = chunk_process[chunk]
        if huge[chunk] or (heat_sum[chunk] == 0.0 and recent_sum[chunk] == 0.0):
            continue
        _count(
            chunk,
            p,
            node,
            heat,
            recent,
            exposure,
            kept,
            clock,
            window,
            unit,
            count,
            exposed,
            mean,
            sampled,
        )
        own, weight = _excess(count, exposed, mean)
        excess[p] += own
        scale[p] += weight
    for chunk in range(chunks):
        p = chunk_process[chunk]
        _count(
            chunk,
            p,
            node,
            heat,
            recent,
            exposure,
            kept,
            clock,
            window,
            unit,
            count,
            exposed,
            mean,
            sampled,
        )
        if huge[chunk]:
            n, e = count.sum() + _UNSEEN, exposed.sum()
            for i in range(CHUNK_PAGES):
                rate[chunk, i] = intensity[p] * n / e if e > 0.0 else 0.0
                support[chunk, i] = n if e > 0.0 else 0.0
            continue
        own, weight = _excess(count, exposed, mean)
        common = max(excess[p] / scale[p], 0.0)
        spread = max((own + common * _COMMON_WEIGHT) / (weight + _COMMON_WEIGHT), _LEAST_SPREAD)
        alike = 1.0 / spread
        for block in range(CHUNK_BLOCKS):
            unlike = alike / mean[block] if mean[block] > 0.0 else 1.0
            for i in range(block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES):
                there = 1.0 if exposed[i] > 0.0 else 0.0
                share = (count[i] + alike) / (exposed[i] + unlike)
                rate[chunk, i] = there * intensity[p] * share
                # What its neighbours' samples say of this page.
                others = max(sampled[block] - count[i], _UNSEEN)
                support[chunk, i] = there * (count[i] + others / (spread * others + 1.0))
