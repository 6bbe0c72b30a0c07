"""Overlap of misses: classes of pages, pairs of samples, and the core's reorder window.

A reorder window holds K misses at once. The first of them that is slow makes the core wait; those
among the next K - 1 that are slow too are answered meanwhile and cost nothing more. So of a
stream of misses of which a share y is slow, a slow one begins a wait every K - 1 + 1/y misses:
waits are y / (1 + (K - 1) p) of the misses, where p is the chance that a miss is slow whose
neighbour within the window is (y where pages are placed independently, 1 where neighbours share
their page). With all slow, waits are 1/K of the misses; a chain of dependent misses has K = 1 and
is linear in y, as the published formula takes all programs to be.

K and p are measured by pairs (``hmd.estimate.sample_pairs``): a miss with K - 1 neighbours on
either side is in 2 (K - 1) / period pairs. K differs by data structure and over time, so it is
fitted by class of pages and by window. What the runs' times say corrects it: waits x difference in
latency = difference in time. If pairs predict fewer waits than that, some misses overlap with
no neighbours (a chain, for example), and the others with more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

STRETCHES = 24
CLASSES = 2 * STRETCHES
"""Stretches of address space with equally many misses, each split by heat."""

_PRIOR_WINDOW = 100.0  # samples by which a window or class starts with the pairs of all
_PRIOR_CLASS = 100.0
_ROUNDS = 4
_STEEPEST = 6.0
_MOST_ALONE = 0.9
_FEWEST_PAIRS = 50

Floats = npt.NDArray[np.float64]


def classes(
    page: npt.NDArray[np.int32], accesses: npt.NDArray[np.float32], pages: int
) -> npt.NDArray[np.int32]:
    """Return each page's class, shape ``(pages,)``, of the misses ``page`` (rows)."""
    mass = np.bincount(page, accesses, pages)
    passed = np.cumsum(mass + 1e-6 * max(float(mass.sum()), 1.0) / max(pages, 1))
    stretch = np.minimum((passed / passed[-1] * STRETCHES).astype(np.int32), STRETCHES - 1)
    order = np.lexsort((mass, stretch))
    within = np.cumsum(mass[order])
    ends = np.searchsorted(stretch[order], np.arange(STRETCHES), side="right") - 1
    total = np.diff(within[ends], prepend=0.0)
    before = within[ends] - total
    hot = np.zeros(pages, np.int32)
    hot[order] = within - before[stretch[order]] > total[stretch[order]] / 2
    return np.asarray(stretch * 2 + hot, np.int32)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs in order of window: their pages, classes and windows, of shape ``(pairs,)``.

    Each stands for ``one_of``, where they were too many to keep.
    """

    page_a: npt.NDArray[np.int32]
    page_b: npt.NDArray[np.int32]
    class_a: npt.NDArray[np.int32]
    class_b: npt.NDArray[np.int32]
    window: npt.NDArray[np.int32]
    one_of: float = 1.0

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.page_a)

    @property
    def enough(self) -> bool:
        """False where no second counter ran, or too briefly."""
        return len(self) >= _FEWEST_PAIRS


@dataclass(frozen=True, slots=True)
class Overlap:
    """How misses overlap with all slow.

    ``alone``, ``(windows,)``, is the share of misses that overlap with none; ``k_less_1``,
    ``(windows, classes)``, the number that each of the others overlaps with.
    """

    alone: Floats
    k_less_1: Floats

    def waits(self, misses: Floats) -> Floats:
        """Return the waits of the core for these misses, ``(windows, classes)``, all slow."""
        together = (misses / (1 + self.k_less_1)).sum(1)
        return np.asarray(self.alone * misses.sum(1) + (1 - self.alone) * together)

    def fitted(self, misses: Floats, waits: Floats) -> Overlap:
        """Return the overlap with which ``misses`` give ``waits``, ``(windows,)``."""
        steeper = np.maximum(_scale(misses, self.k_less_1, waits), 1.0)
        alone = np.where(steeper > 1, 0.0, _alone(misses, self.k_less_1, waits))
        rest = 1 - alone
        k_less_1 = self.k_less_1 * (steeper / rest)[:, None]
        left = np.maximum(waits - alone * misses.sum(1), 1e-9)
        exact = _scale(misses * rest[:, None], k_less_1, left)
        return Overlap(alone, k_less_1 * exact[:, None])


def neighbours(pairs: Pairs, sampled: Floats, period: float) -> Floats:
    """Return K - 1 by window and class: ``sampled``, ``(windows, classes)``, are one in ``period``.

    As product of a window's and a class's part, by iterative proportional fitting (Deming and
    Stephan, 1940).
    """
    windows = len(sampled)
    of_window = np.bincount(pairs.window, minlength=windows) * 2.0 * pairs.one_of
    of_class = np.bincount(pairs.class_a, minlength=CLASSES) * pairs.one_of
    of_class = of_class + np.bincount(pairs.class_b, minlength=CLASSES) * pairs.one_of
    rate = of_window.sum() / max(float(sampled.sum()), 1.0)
    by_class = np.ones(CLASSES)
    by_window = np.full(windows, rate)
    for _ in range(_ROUNDS):
        by_window = (of_window + _PRIOR_WINDOW * rate) / (sampled @ by_class + _PRIOR_WINDOW)
        prior = max(_PRIOR_CLASS * rate, 1e-12)
        by_class = (of_class + prior) / (by_window @ sampled + prior)
    return np.asarray(by_window[:, None] * by_class * period)


def alone_by_time(misses: Floats, waits: Floats) -> Overlap:
    """Return the overlap fitted to the times alone, without pairs: the same for all classes."""
    k_less_1 = np.clip(misses.sum(1) / np.maximum(waits, 1e-9), 1.0, 64.0) - 1
    return Overlap(np.zeros(len(misses)), np.repeat(k_less_1[:, None], misses.shape[1], axis=1))


def _scale(misses: Floats, k_less_1: Floats, waits: Floats) -> Floats:
    """Return the factor of K - 1 of all classes in each window, ``(windows,)``."""
    low, high = np.zeros(len(waits)), np.full(len(waits), _STEEPEST)
    for _ in range(30):
        middle = (low + high) / 2
        too_many = (misses / (1 + middle[:, None] * k_less_1)).sum(1) > waits
        low, high = np.where(too_many, middle, low), np.where(too_many, high, middle)
    return np.asarray((low + high) / 2)


def _alone(misses: Floats, k_less_1: Floats, waits: Floats) -> Floats:
    """Return the share of misses without neighbours that gives ``waits``, ``(windows,)``.

    The others have all neighbours.
    """
    low, high = np.zeros(len(waits)), np.full(len(waits), _MOST_ALONE)
    for _ in range(30):
        alone = (low + high) / 2
        rest = (1 - alone)[:, None]
        found = alone * misses.sum(1) + (rest * misses / (1 + k_less_1 / rest)).sum(1)
        low, high = np.where(found < waits, alone, low), np.where(found < waits, high, alone)
    return np.asarray((low + high) / 2)
