# SPDX-License-Identifier: MIT
"""From counts to rates: how often each page is accessed now, and how many samples show that.

Takes cooled counts, gives expected accesses per second of every resident page and the effective
samples on which that figure rests. Costs about 6 ns per page.

A page that was sampled twice is not twice as hot as one that was sampled once. Rates are therefore
shrunk toward the mean of the page's block of 64 KiB, those of blocks toward the mean of their chunk
of 2 MiB, and those of chunks toward that of the process, by the posterior mean of a Gamma-Poisson
model (empirical Bayes; Efron and Morris, "Stein's estimation rule and its competitors", 1973). How
far is not a setting: the method of moments estimates how much pages, blocks and chunks differ, in
the process and, for pages as far as it has samples, in each chunk. Where all memory is accessed
alike, all samples are shared and no page is hotter than another; where blocks are uniform, 16 pages
share their samples; where single pages stand out, each stands for itself.

A *spread* is how far rates vary beyond chance, squared, relative to the mean that they vary from.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import Float32Plane, Float32s, Float64s, inline, kernel, zeros
from hmd.heat.chunks import ChunkColumns, HistoryColumns, TableRates
from hmd.heat.settings import ABSENT, BLOCK_PAGES, CHUNK_BLOCKS, CHUNK_PAGES, FULL_EXPOSURE

Values = npt.NDArray[np.float64]

ANSCOMBE: Final = 0.375
"""Added to a Poisson count n, so that sqrt(n + 3/8) has a standard deviation of about 1/2.

Whatever its mean (Anscombe, "The transformation of Poisson, binomial and negative-binomial data",
1948). A confidence bound of k standard deviations is therefore k/2 away from the transformed count.
"""
UNSEEN: Final = 0.5
"""Added to a count, so that effective samples are above 0 (Jeffreys' prior of a Poisson rate)."""

# Without evidence, rates are taken to differ by about their mean; that prior weighs as much as this
# many squared samples.
_PRIOR_SPREAD: Final = 1.0
_PRIOR_WEIGHT: Final = 4.0
_MIN_SPREAD: Final = 1e-6
# Differences count beyond this many standard errors: among alike pages, chance makes some.
_ERRORS: Final = 2.0
# A chunk with this many squared samples weighs as much as the rest of its process.
_COMMON_WEIGHT: Final = 64.0
# The priors of blocks and chunks weigh this part of what their spread says: in a skewed chunk no
# block is near the mean, and a block that just became hot has too few samples to resist a strong
# prior.
_PRIOR_PART: Final = 0.25


class PriorSums(NamedTuple):
    """Sums over the chunks with page slots of each process; shape ``(processes,)``.

    samples, exposed: samples n and exposure e, in samples at the mean rate of the process.
    chunk_squares: of chunks, n² - n, the squared samples beyond chance; chunk_exposed2: e².
    block_excess: of blocks, (n - m)² - m, where m is expected at the rate of the chunk;
    block_scale: m².
    page_excess, page_scale: of pages, the same at the rate of the block.
    """

    samples: Float64s
    exposed: Float64s
    chunk_squares: Float64s
    chunk_exposed2: Float64s
    block_excess: Float64s
    block_scale: Float64s
    page_excess: Float64s
    page_scale: Float64s


class Priors(NamedTuple):
    """The mean rate of each process, in samples per exposure, and spreads; ``(processes,)``.

    Of ``chunks`` around that mean, of ``blocks`` around their chunk, of ``pages`` around their
    block. Weights are the evidence behind spreads in squared samples, with what was carried over a
    change.
    """

    mean: Float64s
    chunks: Float64s
    blocks: Float64s
    pages: Float64s
    block_weight: Float64s
    page_weight: Float64s


class InitialSpreads(NamedTuple):
    """Spreads before samples show them, and the evidence behind each; shape ``(processes,)``."""

    blocks: Float64s
    pages: Float64s
    block_weight: Float64s
    page_weight: Float64s

    @classmethod
    def unknown(cls, processes: int) -> InitialSpreads:
        """Return those of processes of which nothing is known."""
        values = (_PRIOR_SPREAD, _PRIOR_SPREAD, _PRIOR_WEIGHT, _PRIOR_WEIGHT)
        return cls(*(np.full(processes, value) for value in values))


class PageSpreads(NamedTuple):
    """Excess, less what chance brings, and scale of the pages of each page slot; ``(slots,)``."""

    excess: Float64s
    scale: Float64s


class _Estimates(NamedTuple):
    """Working columns of one chunk: samples and exposure, per page and per block; block rates."""

    samples: Float64s
    exposed: Float64s
    block_samples: Float64s
    block_exposed: Float64s
    mean: Float64s


def estimate_priors(sums: PriorSums, initial: InitialSpreads) -> Priors:
    """Return the priors of each process, by the method of moments."""
    exposed, samples = sums.exposed, sums.samples
    mean = np.divide(samples, exposed, out=np.zeros_like(samples), where=exposed > 0)
    scale = mean * mean * sums.chunk_exposed2
    chunks = _beyond_chance(sums.chunk_squares - scale, scale, samples)
    blocks = _beyond_chance(sums.block_excess, sums.block_scale, samples)
    pages = _beyond_chance(sums.page_excess, sums.page_scale, samples)
    return Priors(
        mean,
        _spread(chunks, scale, _PRIOR_SPREAD, _PRIOR_WEIGHT),
        _spread(blocks, sums.block_scale, initial.blocks, initial.block_weight),
        _spread(pages, sums.page_scale, initial.pages, initial.page_weight),
        sums.block_scale + initial.block_weight,
        sums.page_scale + initial.page_weight,
    )


def _beyond_chance(excess: Values, scale: Values, samples: Values) -> Values:
    """Return an excess less what chance brings: of Poisson counts m, its variance is 2 m^2 + m."""
    chance = _ERRORS * np.sqrt(2.0 * scale + samples)
    return np.where(excess > 0.0, np.maximum(excess - chance, 0.0), excess)


def _spread(excess: Values, scale: Values, prior: float | Values, weight: float | Values) -> Values:
    """Return a spread; without evidence, ``prior``, which weighs ``weight`` squared samples."""
    spread: Values = (excess + prior * weight) / (scale + weight)
    return np.maximum(spread, _MIN_SPREAD)


@inline
def _working() -> _Estimates:
    return _Estimates(
        np.zeros(CHUNK_PAGES, np.float64),
        np.zeros(CHUNK_PAGES, np.float64),
        np.zeros(CHUNK_BLOCKS, np.float64),
        np.zeros(CHUNK_BLOCKS, np.float64),
        np.zeros(CHUNK_BLOCKS, np.float64),
    )


@inline
def _count(
    chunk: int,
    columns: ChunkColumns,
    retention: Float32Plane,
    history: HistoryColumns,
    into: _Estimates,
) -> None:
    """Fill samples and exposure of a chunk's pages and of its blocks."""
    p, slot = columns.process[chunk], columns.page_slot[chunk]
    node, heat, recent = columns.node[slot], columns.heat[slot], columns.recent[slot]
    exposure, kept = columns.exposure[slot], retention[slot]
    samples, exposed = into.samples, into.exposed
    unit, window = history.effective_sample_weight[p], history.window_weight[p]
    samples_per_weight = 1.0 / unit if unit > 0.0 else 0.0
    weight_per_step = history.history_weight[p] / FULL_EXPOSURE
    for i in range(CHUNK_PAGES):
        present = samples_per_weight if node[i] != ABSENT else 0.0
        samples[i] = (kept[i] * heat[i] + recent[i]) * present
        exposed[i] = (kept[i] * weight_per_step * exposure[i] + window) * present
    for block in range(CHUNK_BLOCKS):
        n, e = 0.0, 0.0
        for i in range(block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES):
            n += samples[i]
            e += exposed[i]
        into.block_samples[block], into.block_exposed[block] = n, e


@inline
def _mean_of_blocks(found: _Estimates) -> float:
    """Return the mean rate of a chunk's blocks, which count alike whatever their exposure."""
    total, count = 0.0, 0
    for block in range(CHUNK_BLOCKS):
        if found.block_exposed[block] > 0.0:
            total += found.block_samples[block] / found.block_exposed[block]
            count += 1
    return total / count if count else 0.0


@inline
def _shrink_blocks(p: int, priors: Priors, found: _Estimates) -> None:
    """Fill the rates of a chunk's blocks: shrunk toward the chunk's, which is toward the mean."""
    mean = found.mean
    if priors.mean[p] <= 0.0:
        mean[:] = 0.0
        return
    exposed = found.block_exposed.sum()
    prior_samples = _PRIOR_PART / priors.chunks[p]
    prior_exposure = prior_samples / priors.mean[p]
    of_chunk = (_mean_of_blocks(found) * exposed + prior_samples) / (exposed + prior_exposure)
    prior_samples = _PRIOR_PART / priors.blocks[p]
    prior_exposure = prior_samples / of_chunk
    for block in range(CHUNK_BLOCKS):
        n, e = found.block_samples[block], found.block_exposed[block]
        mean[block] = (n + prior_samples) / (e + prior_exposure) if e > 0.0 else 0.0


@inline
def _page_excess(found: _Estimates) -> tuple[float, float]:
    """Return the excess and the scale of a chunk's pages."""
    excess, scale = 0.0, 0.0
    for block in range(CHUNK_BLOCKS):
        n, e = found.block_samples[block], found.block_exposed[block]
        mean = n / e if e > 0.0 else 0.0
        for i in range(block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES):
            expected = mean * found.exposed[i]
            gap = found.samples[i] - expected
            excess += gap * gap * BLOCK_PAGES / (BLOCK_PAGES - 1) - expected
            scale += expected * expected
    return excess, scale


@inline
def _block_excess(found: _Estimates) -> tuple[float, float]:
    """Return the excess and the scale of a chunk's blocks."""
    mean = _mean_of_blocks(found)
    excess, scale = 0.0, 0.0
    for block in range(CHUNK_BLOCKS):
        expected = mean * found.block_exposed[block]
        gap = found.block_samples[block] - expected
        excess += gap * gap * CHUNK_BLOCKS / (CHUNK_BLOCKS - 1) - expected
        scale += expected * expected
    return excess, scale


@inline
def _shrink_pages(
    intensity: float, spread: float, found: _Estimates, rate: Float32s, samples: Float32s
) -> None:
    """Fill the rates and effective samples of a chunk's pages, shrunk toward their blocks."""
    counted, exposed = found.samples, found.exposed
    prior_samples = 1.0 / spread
    for block in range(CHUNK_BLOCKS):
        mean, in_block = found.mean[block], found.block_samples[block] + UNSEEN
        prior_exposure = prior_samples / mean if mean > 0.0 else 1.0
        for i in range(block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES):
            present = 1.0 if exposed[i] > 0.0 else 0.0
            share = (counted[i] + prior_samples) / (exposed[i] + prior_exposure)
            rate[i] = present * intensity * share
            # What the samples of its neighbours say about this page.
            others = max(in_block - counted[i], UNSEEN)
            samples[i] = present * (counted[i] + others / (spread * others + 1.0))


@kernel
def sum_up(
    columns: ChunkColumns,
    history: HistoryColumns,
    retention: Float32Plane,
    sums: PriorSums,
    spreads: PageSpreads,
) -> None:
    """Add up all chunks with page slots by process, and fill the spreads of the pages of each."""
    found = _working()
    for slot in range(len(columns.owner)):
        chunk = int(columns.owner[slot])
        spreads.excess[slot], spreads.scale[slot] = 0.0, 0.0
        if chunk < 0 or columns.huge[chunk]:
            continue
        p = columns.process[chunk]
        _count(chunk, columns, retention, history, found)
        n, e = found.block_samples.sum(), found.block_exposed.sum()
        sums.samples[p] += n
        sums.exposed[p] += e
        sums.chunk_squares[p] += n * n - n
        sums.chunk_exposed2[p] += e * e
        if n == 0.0:
            continue
        excess, scale = _block_excess(found)
        sums.block_excess[p] += excess
        sums.block_scale[p] += scale
        excess, scale = _page_excess(found)
        sums.page_excess[p] += excess
        sums.page_scale[p] += scale
        if excess > 0.0:
            excess = max(excess - _ERRORS * math.sqrt(2.0 * scale + n), 0.0)
        spreads.excess[slot], spreads.scale[slot] = excess, scale


@kernel
def estimate(
    columns: ChunkColumns,
    history: HistoryColumns,
    intensity: Float64s,
    retention: Float32Plane,
    priors: Priors,
    spreads: PageSpreads,
    rates: TableRates,
) -> None:
    """Fill ``rates`` of chunks with page slots; 0 for absent pages.

    ``intensity`` is the rate of each process, in accesses per second; ``retention`` and ``spreads``
    are those of :func:`sum_up`. The spread of pages within blocks is the chunk's own as far as its
    samples show it. :func:`hmd.heat.windows.estimate_coarse` goes first.
    """
    found = _working()
    for slot in range(len(columns.owner)):
        chunk = int(columns.owner[slot])
        if chunk < 0 or columns.resident[chunk] == 0:
            continue
        p = columns.process[chunk]
        _count(chunk, columns, retention, history, found)
        if columns.huge[chunk]:
            n, e = found.samples.sum() + UNSEEN, found.exposed.sum()
            rates.chunk_rate[chunk] = intensity[p] * n / e if e > 0.0 else 0.0
            rates.chunk_samples[chunk] = n if e > 0.0 else 0.0
            continue
        _shrink_blocks(p, priors, found)
        excess = spreads.excess[slot] + priors.pages[p] * _COMMON_WEIGHT
        spread = max(excess / (spreads.scale[slot] + _COMMON_WEIGHT), _MIN_SPREAD)
        _shrink_pages(intensity[p], spread, found, rates.page_rate[slot], rates.page_samples[slot])


def estimate_page_rates(
    columns: ChunkColumns,
    history: HistoryColumns,
    intensity: Float64s,
    retention: Float32Plane,
    initial: InitialSpreads,
    rates: TableRates,
) -> Priors:
    """Fill ``rates`` of chunks with page slots, as :func:`estimate`; return the priors."""
    sums = zeros(PriorSums, len(intensity))
    spreads = zeros(PageSpreads, len(columns.owner))
    sum_up(columns, history, retention, sums, spreads)
    priors = estimate_priors(sums, initial)
    estimate(columns, history, intensity, retention, priors, spreads, rates)
    return priors
