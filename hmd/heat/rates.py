"""From counts to rates: how often each page is accessed now, and how many samples show that.

Takes cooled counts, gives expected accesses per second of every resident page and the number of
samples on which that figure rests. Costs about 10 ns per page.

A page that was sampled twice is not twice as hot as one that was sampled once. Rates are
therefore shrunk toward the mean of the page's block of 64 KiB, those of blocks toward the mean of
their chunk of 2 MiB, and those of chunks toward that of the process, by the posterior mean of a
Gamma-Poisson model (empirical Bayes; Efron and Morris, "Stein's estimation rule and its
competitors", 1973). How far is not a setting: the method of moments estimates how much pages,
blocks and chunks differ, in the process and, for pages as far as it has samples, in each chunk.
Where all memory is accessed alike, all samples are shared and no page is hotter than another; where
blocks are uniform, 16 pages share their samples; where single pages stand out, each stands for
itself.
"""

from __future__ import annotations

import math
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
_LEAST_SPREAD: Final = 1e-6
# Differences count beyond this many standard errors: among alike pages, chance makes some.
_ERRORS: Final = 2.0
# The priors of blocks and chunks weigh this part of what their spread says: where few are hot and
# most are cold, the mean is that of none, and what has just become hot has few samples against it.
_PRIOR_PART: Final = 0.25
# Half a sample is added to a count, so that support is above 0 (Jeffreys' prior of a Poisson rate).
_UNSEEN: Final = 0.5


class _Priors(NamedTuple):
    """Of a process: the mean rate, in samples per exposure, and how far rates stray, squared.

    Rates of ``chunks`` from that mean, of ``blocks`` from that of their chunk, of ``pages`` from
    that of their block; each relative to that mean.
    """

    mean: float
    chunks: float
    blocks: float
    pages: float


class _Estimates(NamedTuple):
    """Working columns of one chunk: samples and exposure, per page and per block; block rates."""

    samples: Float64s
    exposed: Float64s
    block_samples: Float64s
    block_exposed: Float64s
    mean: Float64s
    rate: Float32s
    support: Float32s


@inline
def _count(
    chunk: int, columns: ChunkColumns, kept: Float32Plane, clocks: WindowClocks, into: _Estimates
) -> None:
    """Fill samples and exposure of a chunk's pages and of its blocks."""
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
        into.block_samples[block], into.block_exposed[block] = n, e


@inline
def _beyond_chance(excess: float, scale: float, samples: float) -> float:
    """Return an excess less what chance brings: of Poisson counts m, its variance is 2 m^2 + m."""
    if excess <= 0.0:
        return excess
    return max(excess - _ERRORS * math.sqrt(2.0 * scale + samples), 0.0)


@inline
def _mean_of_blocks(found: _Estimates) -> float:
    """Return the mean rate of a chunk's blocks.

    Each counts alike: a block whose history was dropped, as it has changed, has little exposure.
    """
    total, count = 0.0, 0
    for block in range(CHUNK_BLOCKS):
        if found.block_exposed[block] > 0.0:
            total += found.block_samples[block] / found.block_exposed[block]
            count += 1
    return total / count if count else 0.0


@inline
def _shrink_blocks(prior: _Priors, found: _Estimates) -> None:
    """Fill the rates of a chunk's blocks, drawn toward the chunk's, which is drawn to the mean."""
    mean = found.mean
    if prior.mean <= 0.0:
        mean[:] = 0.0
        return
    exposed = found.block_exposed.sum()
    alike = _PRIOR_PART / prior.chunks
    whole = (_mean_of_blocks(found) * exposed + alike) / (exposed + alike / prior.mean)
    alike = _PRIOR_PART / prior.blocks
    unlike = alike / whole
    for block in range(CHUNK_BLOCKS):
        n, e = found.block_samples[block], found.block_exposed[block]
        mean[block] = (n + alike) / (e + unlike) if e > 0.0 else 0.0


@inline
def _excess(found: _Estimates) -> tuple[float, float]:
    """Return how far pages stray from their blocks beyond chance, and the mean, both squared."""
    count, exposed = found.samples, found.exposed
    excess, scale = 0.0, 0.0
    for block in range(CHUNK_BLOCKS):
        n, e = found.block_samples[block], found.block_exposed[block]
        mean = n / e if e > 0.0 else 0.0
        for i in range(block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES):
            expected = mean * exposed[i]
            gap = count[i] - expected
            excess += gap * gap * BLOCK_PAGES / (BLOCK_PAGES - 1) - expected
            scale += expected * expected
    return excess, scale


@inline
def _block_excess(found: _Estimates) -> tuple[float, float]:
    """Return how far blocks stray from their chunk beyond chance, and the mean, both squared."""
    mean = _mean_of_blocks(found)
    excess, scale = 0.0, 0.0
    for block in range(CHUNK_BLOCKS):
        expected = mean * found.block_exposed[block]
        gap = found.block_samples[block] - expected
        excess += gap * gap * CHUNK_BLOCKS / (CHUNK_BLOCKS - 1) - expected
        scale += expected * expected
    return excess, scale


@inline
def _shrink(intensity: float, prior: _Priors, found: _Estimates) -> None:
    """Fill the rates and supports of a chunk's pages, drawn toward the means of their blocks.

    The spread of pages within blocks is the chunk's own as far as its samples show it.
    """
    count, exposed, rate, support = found.samples, found.exposed, found.rate, found.support
    own, weight = _excess(found)
    own = _beyond_chance(own, weight, found.block_samples.sum())
    _shrink_blocks(prior, found)
    spread = max((own + prior.pages * _COMMON_WEIGHT) / (weight + _COMMON_WEIGHT), _LEAST_SPREAD)
    alike = 1.0 / spread
    for block in range(CHUNK_BLOCKS):
        mean, sampled = found.mean[block], found.block_samples[block] + _UNSEEN
        unlike = alike / mean if mean > 0.0 else 1.0
        for i in range(block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES):
            there = 1.0 if exposed[i] > 0.0 else 0.0
            share = (count[i] + alike) / (exposed[i] + unlike)
            rate[i] = there * intensity * share
            # What the samples of its neighbours say about this page.
            others = max(sampled - count[i], _UNSEEN)
            support[i] = there * (count[i] + others / (spread * others + 1.0))


class _PriorSums(NamedTuple):
    """Sums over the chunks of each process: samples, exposure; squares beyond chance, of means."""

    samples: Float64s
    exposed: Float64s
    chunk_squares: Float64s
    chunk_exposed2: Float64s
    block_excess: Float64s
    block_scale: Float64s
    page_excess: Float64s
    page_scale: Float64s


@inline
def _sum_up(
    columns: ChunkColumns, clocks: WindowClocks, kept: Float32Plane, into: _Estimates
) -> _PriorSums:
    """Return the sums over all chunks in detail."""
    z = np.zeros((8, len(clocks.clock)))
    sums = _PriorSums(z[0], z[1], z[2], z[3], z[4], z[5], z[6], z[7])
    for row in range(len(columns.owner)):
        chunk = int(columns.owner[row])
        if chunk < 0 or columns.huge[chunk]:
            continue
        p = columns.process[chunk]
        _count(chunk, columns, kept, clocks, into)
        n, e = into.block_samples.sum(), into.block_exposed.sum()
        sums.samples[p] += n
        sums.exposed[p] += e
        sums.chunk_squares[p] += n * n - n
        sums.chunk_exposed2[p] += e * e
        if n == 0.0:
            continue
        own, weight = _block_excess(into)
        sums.block_excess[p] += own
        sums.block_scale[p] += weight
        own, weight = _excess(into)
        sums.page_excess[p] += own
        sums.page_scale[p] += weight
    return sums


@inline
def _prior(p: int, sums: _PriorSums) -> _Priors:
    """Return the priors of a process."""
    exposed, samples = sums.exposed[p], sums.samples[p]
    mean = samples / exposed if exposed > 0.0 else 0.0
    scale = mean * mean * sums.chunk_exposed2[p]
    chunks = _beyond_chance(sums.chunk_squares[p] - scale, scale, samples)
    blocks = _beyond_chance(sums.block_excess[p], sums.block_scale[p], samples)
    pages = _beyond_chance(sums.page_excess[p], sums.page_scale[p], samples)
    return _Priors(
        mean,
        _spread(chunks, scale),
        _spread(blocks, sums.block_scale[p]),
        _spread(pages, sums.page_scale[p]),
    )


@inline
def _spread(excess: float, scale: float) -> float:
    """Return how far rates stray, over their mean, both squared; without evidence, the prior's."""
    spread = (excess + _PRIOR_SPREAD * _PRIOR_WEIGHT) / (scale + _PRIOR_WEIGHT)
    return max(spread, _LEAST_SPREAD)


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
    block_count, block_exposure = np.zeros((2, CHUNK_BLOCKS))
    block_mean = np.zeros(CHUNK_BLOCKS, np.float64)
    rate, support = np.zeros(CHUNK_PAGES, np.float32), np.zeros(CHUNK_PAGES, np.float32)
    found = _Estimates(
        page_count, page_exposure, block_count, block_exposure, block_mean, rate, support
    )
    sums = _sum_up(columns, clocks, kept, found)
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
            block_exposure,
            block_mean,
            rates.page_rate[row],
            rates.page_support[row],
        )
        _shrink(intensity[p], _prior(p, sums), direct)
