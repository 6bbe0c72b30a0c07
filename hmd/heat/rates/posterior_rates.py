"""From counts to rates: how often each page is accessed now, and how many samples show that.

Takes cooled counts, gives expected accesses per second of every resident page and the number of
samples on which that figure rests. Costs about 6 ns per page.

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
from hmd.heat.rates.rate_priors import ERRORS, Priors, PriorSums

# A chunk with this many squared samples weighs as much as the rest of its process.
_COMMON_WEIGHT: Final = 64.0
_LEAST_SPREAD: Final = 1e-6
# The priors of blocks and chunks weigh this part of what their spread says: where few are hot and
# most are cold, the mean is that of none, and what has just become hot has few samples against it.
_PRIOR_PART: Final = 0.25
# Half a sample is added to a count, so that support is above 0 (Jeffreys' prior of a Poisson rate).
_UNSEEN: Final = 0.5


class PageSpreads(NamedTuple):
    """How far the pages of each chunk in detail stray from their blocks, beyond chance, squared.

    ``excess``, and the ``scale`` of their means; shape ``(details,)``.
    """

    excess: Float64s
    scale: Float64s

    @classmethod
    def empty(cls, details: int) -> PageSpreads:
        """Return columns to be filled."""
        return cls(np.empty(details), np.empty(details))


class _Estimates(NamedTuple):
    """Working columns of one chunk: samples and exposure, per page and per block; block rates."""

    samples: Float64s
    exposed: Float64s
    block_samples: Float64s
    block_exposed: Float64s
    mean: Float64s


@inline
def _working() -> _Estimates:
    """Return working columns."""
    return _Estimates(
        np.zeros(CHUNK_PAGES, np.float64),
        np.zeros(CHUNK_PAGES, np.float64),
        np.zeros(CHUNK_BLOCKS, np.float64),
        np.zeros(CHUNK_BLOCKS, np.float64),
        np.zeros(CHUNK_BLOCKS, np.float64),
    )


@inline
def _count(
    chunk: int, columns: ChunkColumns, kept: Float32Plane, clocks: WindowClocks, into: _Estimates
) -> None:
    """Fill samples and exposure of a chunk's pages and of its blocks."""
    p, row = columns.process[chunk], columns.detail[chunk]
    node, heat, recent = columns.node[row], columns.heat[row], columns.recent[row]
    exposure, share = columns.exposure[row], kept[row]
    count, exposed = into.samples, into.exposed
    unit, window = clocks.unit[p], clocks.window[p]
    per_unit = 1.0 / unit if unit > 0.0 else 0.0
    grain = clocks.clock[p] / FULL_EXPOSURE
    for i in range(CHUNK_PAGES):
        there = per_unit if node[i] != ABSENT else 0.0
        count[i] = (share[i] * heat[i] + recent[i]) * there
        exposed[i] = (share[i] * grain * exposure[i] + window) * there
    for block in range(CHUNK_BLOCKS):
        n, e = 0.0, 0.0
        for i in range(block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES):
            n += count[i]
            e += exposed[i]
        into.block_samples[block], into.block_exposed[block] = n, e


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
def _shrink_blocks(p: int, priors: Priors, found: _Estimates) -> None:
    """Fill the rates of a chunk's blocks, drawn toward the chunk's, which is drawn to the mean."""
    mean = found.mean
    if priors.mean[p] <= 0.0:
        mean[:] = 0.0
        return
    exposed = found.block_exposed.sum()
    alike = _PRIOR_PART / priors.chunks[p]
    whole = (_mean_of_blocks(found) * exposed + alike) / (exposed + alike / priors.mean[p])
    alike = _PRIOR_PART / priors.blocks[p]
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
def _beyond_chance(excess: float, scale: float, samples: float) -> float:
    """Return an excess less what chance brings, as :mod:`hmd.heat.rates.rate_priors` has it."""
    if excess <= 0.0:
        return excess
    return max(excess - ERRORS * math.sqrt(2.0 * scale + samples), 0.0)


@inline
def _shrink(
    times: float, spread: float, found: _Estimates, rate: Float32s, support: Float32s
) -> None:
    """Fill the rates and supports of a chunk's pages, drawn toward the means of their blocks.

    ``times`` is the intensity of the process, ``spread`` how far pages stray within their blocks.
    """
    count, exposed = found.samples, found.exposed
    alike = 1.0 / spread
    for block in range(CHUNK_BLOCKS):
        mean, sampled = found.mean[block], found.block_samples[block] + _UNSEEN
        unlike = alike / mean if mean > 0.0 else 1.0
        for i in range(block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES):
            there = 1.0 if exposed[i] > 0.0 else 0.0
            share = (count[i] + alike) / (exposed[i] + unlike)
            rate[i] = there * times * share
            # What the samples of its neighbours say about this page.
            others = max(sampled - count[i], _UNSEEN)
            support[i] = there * (count[i] + others / (spread * others + 1.0))


@kernel
def sum_up(
    columns: ChunkColumns,
    clocks: WindowClocks,
    kept: Float32Plane,
    sums: PriorSums,
    spreads: PageSpreads,
) -> None:
    """Add up all chunks in detail by process, and fill how far the pages of each stray.

    ``kept`` are the shares of histories that :mod:`hmd.heat.rates.change_detection` leaves.
    """
    found = _working()
    for row in range(len(columns.owner)):
        chunk = int(columns.owner[row])
        spreads.excess[row], spreads.scale[row] = 0.0, 0.0
        if chunk < 0 or columns.huge[chunk]:
            continue
        p = columns.process[chunk]
        _count(chunk, columns, kept, clocks, found)
        n, e = found.block_samples.sum(), found.block_exposed.sum()
        sums.samples[p] += n
        sums.exposed[p] += e
        sums.chunk_squares[p] += n * n - n
        sums.chunk_exposed2[p] += e * e
        if n == 0.0:
            continue
        own, weight = _block_excess(found)
        sums.block_excess[p] += own
        sums.block_scale[p] += weight
        own, weight = _excess(found)
        sums.page_excess[p] += own
        sums.page_scale[p] += weight
        spreads.excess[row] = _beyond_chance(own, weight, n)
        spreads.scale[row] = weight


@kernel
def estimate(
    columns: ChunkColumns,
    clocks: WindowClocks,
    intensity: Float64s,
    kept: Float32Plane,
    priors: Priors,
    spreads: PageSpreads,
    rates: TableRates,
) -> None:
    """Fill ``rates`` of chunks that have detail; 0 for absent pages.

    ``intensity`` is the rate of each process, in accesses per second; ``kept`` and ``spreads`` are
    those of :func:`sum_up`. The spread of pages within blocks is the chunk's own as far as its
    samples show it. Chunks that are counted as a whole have
    :func:`hmd.heat.whole_chunks.estimate_wholes`, which goes first.
    """
    found = _working()
    for row in range(len(columns.owner)):
        chunk = int(columns.owner[row])
        if chunk < 0 or columns.resident[chunk] == 0:
            continue
        p = columns.process[chunk]
        _count(chunk, columns, kept, clocks, found)
        if columns.huge[chunk]:
            n, e = found.samples.sum() + _UNSEEN, found.exposed.sum()
            rates.chunk_rate[chunk] = intensity[p] * n / e if e > 0.0 else 0.0
            rates.chunk_support[chunk] = n if e > 0.0 else 0.0
            continue
        _shrink_blocks(p, priors, found)
        own = spreads.excess[row] + priors.pages[p] * _COMMON_WEIGHT
        spread = max(own / (spreads.scale[row] + _COMMON_WEIGHT), _LEAST_SPREAD)
        _shrink(intensity[p], spread, found, rates.page_rate[row], rates.page_support[row])
