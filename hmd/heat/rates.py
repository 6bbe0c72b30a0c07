"""From counts to rates: how often each page is accessed now, and how many samples show that.

Takes cooled counts, gives expected accesses per second of every resident page and the number of
samples on which that figure rests. Costs about 10 ns per page.

A page that was sampled twice is not twice as hot as one that was sampled once. Rates are
therefore shrunk toward the mean of the page's block of 64 KiB, by the posterior mean of a
Gamma-Poisson model (empirical Bayes; Efron and Morris, "Stein's estimation rule and its
competitors", 1973). How far is not a setting: the method of moments estimates how much pages
differ within blocks, in the process and, as far as it has samples, in each chunk. Where blocks
are uniform, 16 pages share their samples; where single pages stand out, each stands for itself.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from hmd.heat.chunk_columns import ChunkColumns, TableRates, WindowClocks
from hmd.heat.geometry import ABSENT, BLOCK_PAGES, CHUNK_BLOCKS, CHUNK_PAGES, FULL_EXPOSURE
from hmd.heat.kernels import Float32Plane, Float32s, Float64s, inline, kernel

# Without evidence, pages of a block are taken to differ by about their mean; that prior weighs as
# much as this many squared samples.
_PRIOR_SPREAD: Final = 1.0
_PRIOR_WEIGHT: Final = 4.0
# A chunk with this many squared samples weighs as much as the rest of its process.
_COMMON_WEIGHT: Final = 64.0
_LEAST_SPREAD: Final = 1e-4
# Half a sample is added to each count, so that blocks without samples rank by their exposure
# (Jeffreys' prior of a Poisson rate).
_UNSEEN: Final = 0.5


class _Estimates(NamedTuple):
    """Working columns of one chunk: samples and exposure per page, samples and rate per block."""

    samples: Float64s
    exposed: Float64s
    sampled: Float64s
    mean: Float64s
    rate: Float32s
    support: Float32s


@inline
def _count(
    chunk: int, columns: ChunkColumns, kept: Float32Plane, clocks: WindowClocks, into: _Estimates
) -> None:
    """Fill samples and exposure of a chunk's pages, and samples and mean rate of its blocks."""
    node, heat, recent = columns.node, columns.heat, columns.recent
    exposure = columns.exposure
    count, exposed = into.samples, into.exposed
    p, row = columns.process[chunk], columns.detail[chunk]
    unit, window = clocks.unit[p], clocks.window[p]
    per_unit = 1.0 / unit if unit > 0.0 else 0.0
    grain = clocks.clock[p] / FULL_EXPOSURE
    for block in range(CHUNK_BLOCKS):
        n, e = 0.0, 0.0
        for i in range(block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES):
            there = per_unit if node[row, i] != ABSENT else 0.0
            count[i] = (kept[row, i] * heat[row, i] + recent[row, i]) * there
            exposed[i] = (kept[row, i] * grain * exposure[row, i] + window) * there
            n += count[i]
            e += exposed[i]
        into.sampled[block] = n + _UNSEEN
        into.mean[block] = (n + _UNSEEN) / e if e > 0.0 else 0.0


@inline
def _excess(found: _Estimates) -> tuple[float, float]:
    """Return how far pages stray from their blocks beyond chance, and the mean, both squared."""
    count, exposed, mean = found.samples, found.exposed, found.mean
    excess, scale = 0.0, 0.0
    for block in range(CHUNK_BLOCKS):
        for i in range(block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES):
            expected = mean[block] * exposed[i]
            gap = count[i] - expected
            excess += gap * gap * BLOCK_PAGES / (BLOCK_PAGES - 1) - expected
            scale += expected * expected
    return excess, scale


@inline
def _shrink(intensity: float, common: float, found: _Estimates) -> None:
    """Fill the rates and supports of a chunk's pages, drawn toward the means of their blocks.

    ``common`` is the spread of pages within blocks that the whole process shows.
    """
    count, exposed, rate, support = found.samples, found.exposed, found.rate, found.support
    own, weight = _excess(found)
    spread = max((own + common * _COMMON_WEIGHT) / (weight + _COMMON_WEIGHT), _LEAST_SPREAD)
    alike = 1.0 / spread
    for block in range(CHUNK_BLOCKS):
        mean, sampled = found.mean[block], found.sampled[block]
        unlike = alike / mean if mean > 0.0 else 1.0
        for i in range(block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES):
            there = 1.0 if exposed[i] > 0.0 else 0.0
            share = (count[i] + alike) / (exposed[i] + unlike)
            rate[i] = there * intensity * share
            # What the samples of its neighbours say about this page.
            others = max(sampled - count[i], _UNSEEN)
            support[i] = there * (count[i] + others / (spread * others + 1.0))


@inline
def _spreads(
    columns: ChunkColumns, clocks: WindowClocks, kept: Float32Plane, into: _Estimates
) -> Float64s:
    """Return the spread of pages within blocks of each process, shape ``(processes,)``."""
    excess = np.full(len(clocks.clock), _PRIOR_SPREAD * _PRIOR_WEIGHT)
    scale = np.full(len(clocks.clock), _PRIOR_WEIGHT)
    for row in range(len(columns.owner)):
        chunk = int(columns.owner[row])
        if chunk < 0 or columns.huge[chunk]:
            continue
        p = columns.process[chunk]
        if columns.heat_sum[chunk] == 0.0 and columns.recent_sum[chunk] == 0.0:
            continue
        _count(chunk, columns, kept, clocks, into)
        own, weight = _excess(into)
        excess[p] += own
        scale[p] += weight
    spread: Float64s = np.maximum(excess / scale, 0.0)
    return spread


@kernel
def estimate(
    columns: ChunkColumns,
    clocks: WindowClocks,
    intensity: Float64s,
    kept: Float32Plane,
    rates: TableRates,
) -> None:
    """Fill ``rates`` of chunks that have detail; 0 for absent pages.

    ``intensity`` is the rate of each process, in accesses per second. ``kept`` are the shares of
    histories that :func:`hmd.heat.change_detection.believe` leaves. Chunks that are counted as a
    whole have :func:`hmd.heat.whole_chunks.estimate_wholes`, which goes first.
    """
    page_count, page_exposure = np.zeros(CHUNK_PAGES, np.float64), np.zeros(CHUNK_PAGES, np.float64)
    block_count, block_mean = np.zeros(CHUNK_BLOCKS, np.float64), np.zeros(CHUNK_BLOCKS, np.float64)
    rate, support = np.zeros(CHUNK_PAGES, np.float32), np.zeros(CHUNK_PAGES, np.float32)
    found = _Estimates(page_count, page_exposure, block_count, block_mean, rate, support)
    spread = _spreads(columns, clocks, kept, found)
    for row in range(len(columns.owner)):
        chunk = int(columns.owner[row])
        if chunk < 0 or columns.resident[chunk] == 0:
            continue
        p = columns.process[chunk]
        _count(chunk, columns, kept, clocks, found)
        if columns.huge[chunk]:
            n, e = page_count.sum() + _UNSEEN, page_exposure.sum()
            rates.chunk_rate[chunk] = intensity[p] * n / e if e > 0.0 else 0.0
            rates.chunk_support[chunk] = n if e > 0.0 else 0.0
            continue
        # Straight into the result: a copy of a chunk costs half as much as its rates.
        direct = _Estimates(
            page_count,
            page_exposure,
            block_count,
            block_mean,
            rates.page_rate[row],
            rates.page_support[row],
        )
        _shrink(intensity[p], spread[p], direct)
