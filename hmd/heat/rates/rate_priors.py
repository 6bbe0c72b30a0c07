"""How far rates of pages, blocks and chunks differ in a process, beyond what chance brings.

Takes sums over the chunks in detail of each process (:mod:`hmd.heat.rates.posterior_rates`), gives
the priors with which rates are drawn to the means of their neighbours: the method of moments of a
Gamma-Poisson model. Costs microseconds.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.heat.kernels import Float64s

Values = npt.NDArray[np.float64]

# Without evidence, rates are taken to differ by about their mean; that prior weighs as much as this
# many squared samples.
_PRIOR_SPREAD: Final = 1.0
_PRIOR_WEIGHT: Final = 4.0
_LEAST_SPREAD: Final = 1e-6
# Differences count beyond this many standard errors: among alike pages, chance makes some.
ERRORS: Final = 2.0


class PriorSums(NamedTuple):
    """Sums over the chunks of each process; shape ``(processes,)``.

    Samples and exposure, squares of the samples of chunks beyond chance and of their exposure;
    squares of how far blocks stray from their chunk and pages from their block beyond chance, and
    of the means that they stray from.
    """

    samples: Float64s
    exposed: Float64s
    chunk_squares: Float64s
    chunk_exposed2: Float64s
    block_excess: Float64s
    block_scale: Float64s
    page_excess: Float64s
    page_scale: Float64s

    @classmethod
    def zeros(cls, processes: int) -> PriorSums:
        """Return the sums over no chunks."""
        return cls(*(np.zeros(processes) for _ in cls._fields))


class Priors(NamedTuple):
    """The mean rate of each process, in samples per exposure, and how far rates stray, squared.

    Rates of ``chunks`` from that mean, of ``blocks`` from that of their chunk, of ``pages`` from
    that of their block; each relative to that mean. The weights are the squared samples that show
    it of blocks and of pages, with those of before. Shape ``(processes,)``.
    """

    mean: Float64s
    chunks: Float64s
    blocks: Float64s
    pages: Float64s
    block_weight: Float64s
    page_weight: Float64s


class BeginningSpreads(NamedTuple):
    """How far rates of blocks and of pages are taken to stray before samples show it, squared.

    The weights are in squared samples. Shape ``(processes,)``.
    """

    blocks: Float64s
    pages: Float64s
    block_weight: Float64s
    page_weight: Float64s

    @classmethod
    def of(cls, processes: int) -> BeginningSpreads:
        """Return those of processes of which nothing is known."""
        return cls(
            np.full(processes, _PRIOR_SPREAD),
            np.full(processes, _PRIOR_SPREAD),
            np.full(processes, _PRIOR_WEIGHT),
            np.full(processes, _PRIOR_WEIGHT),
        )


def priors_of(sums: PriorSums, begin: BeginningSpreads) -> Priors:
    """Return the priors of each process."""
    exposed, samples = sums.exposed, sums.samples
    mean = np.divide(samples, exposed, out=np.zeros_like(samples), where=exposed > 0)
    scale = mean * mean * sums.chunk_exposed2
    chunks = _beyond_chance(sums.chunk_squares - scale, scale, samples)
    blocks = _beyond_chance(sums.block_excess, sums.block_scale, samples)
    pages = _beyond_chance(sums.page_excess, sums.page_scale, samples)
    return Priors(
        mean,
        _spread(chunks, scale, _PRIOR_SPREAD, _PRIOR_WEIGHT),
        _spread(blocks, sums.block_scale, begin.blocks, begin.block_weight),
        _spread(pages, sums.page_scale, begin.pages, begin.page_weight),
        sums.block_scale + begin.block_weight,
        sums.page_scale + begin.page_weight,
    )


def _beyond_chance(excess: Values, scale: Values, samples: Values) -> Values:
    """Return an excess less what chance brings: of Poisson counts m, its variance is 2 m^2 + m."""
    chance = ERRORS * np.sqrt(2.0 * scale + samples)
    return np.where(excess > 0.0, np.maximum(excess - chance, 0.0), excess)


def _spread(excess: Values, scale: Values, begin: float | Values, weight: float | Values) -> Values:
    """Return how far rates stray, over their mean, both squared; without evidence, ``begin``."""
    spread: Values = (excess + begin * weight) / (scale + weight)
    return np.maximum(spread, _LEAST_SPREAD)
