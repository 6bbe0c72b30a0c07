"""Traits of gaps: the four characteristics of tensors by which DeepTM's heat is weighed.

The publication (IEEE TPDS 2024, abstract) names neither the characteristics nor the rule of their
weights. Here they are accesses, size, remaining life and reuse distance, as ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hmd.tensors.planner import StepProblem
from hmd.tensors.tensor_spans import TensorSpans
from hmd.tensors.tensor_trace import Floats, Ints

TRAITS: Final = ("accesses", "size", "life", "reuse")
_RATE: Final = 1.0


@dataclass(frozen=True, slots=True)
class GapTraits:
    """Ranks of gaps, (G, 4), from 0 to 1; more of each speaks for leaving the fastest tier.

    ``relief`` (G,) is what leaving frees: bytes times the seconds in which more is alive than the
    fastest tier takes.
    """

    ranks: Floats
    relief: Floats

    def scores(self, weights: Floats) -> Floats:
        """Return the weighted sum of the ranks, (G,)."""
        return np.asarray(self.ranks @ weights, np.float64)

    def reweighed(self, weights: Floats, away: Floats) -> Floats:
        """Return the weights after a plan in which ``away`` (G,) of each gap's tensor left.

        A weight grows with the correlation between its characteristic and the relief achieved.
        """
        achieved = self.relief * away
        if not achieved.any():
            return weights
        centred = self.ranks - self.ranks.mean(axis=0)
        spread = centred.std(axis=0) * achieved.std() + 1e-30
        correlation = (centred * (achieved - achieved.mean())[:, None]).mean(axis=0) / spread
        grown = weights * np.exp(_RATE * correlation)
        return np.asarray(grown / grown.sum(), np.float64)


def gap_traits(problem: StepProblem, spans: TensorSpans) -> GapTraits:
    """Return the traits of the gaps of a step."""
    trace, life = problem.trace, problem.life
    tensor = spans.tensor[spans.before]
    seconds = trace.kernel_seconds
    before = np.concatenate([[0.0], np.cumsum(seconds)])
    start, end = (spans.last[spans.before] + 1) % trace.kernels, spans.first[spans.after]
    reuse = _span(before, start, end)
    death = np.where(life.death[tensor] < 0, trace.kernels, life.death[tensor])
    accesses = np.bincount(trace.use_tensor, minlength=trace.tensors)[tensor]
    full = life.live_bytes > problem.system.tiers[0].capacity
    over = np.concatenate([[0.0], np.cumsum(seconds * full)])
    remaining = np.maximum(before[death] - before[start], 0.0)
    columns = (-accesses, trace.tensor_bytes[tensor], remaining, reuse)
    ranks = np.stack([_rank(np.asarray(column, np.float64)) for column in columns], axis=1)
    return GapTraits(ranks, trace.tensor_bytes[tensor] * _span(over, start, end))


def _span(total: Floats, start: Ints, end: Ints) -> Floats:
    """Return the part of a running total between kernels, around the end of the step."""
    between = total[end] - total[start]
    return np.asarray(np.where(start > end, between + total[-1], between), np.float64)


def _rank(column: Floats) -> Floats:
    """Return the rank of each value among all, from 0 to 1; equal values have equal ranks."""
    values, place = np.unique(column, return_inverse=True)
    return np.asarray(place / max(len(values) - 1, 1), np.float64)
