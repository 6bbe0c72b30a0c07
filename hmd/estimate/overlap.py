"""Which misses overlap, and what that means where some of them are slow.

A reorder window holds K misses at once. The first of them that is slow makes the core wait; those
among the next K - 1 that are slow too are answered meanwhile and cost nothing more. So of a
stream of misses of which a share y is slow, a slow one begins a wait every K - 1 + 1/y misses:
waits are y / (1 + (K - 1) p) of the misses, where p is the chance that a miss is slow whose
neighbour within the window is (y where pages are placed independently, 1 where neighbours share
their page). With all slow, waits are 1/K of the misses; a chain of dependent misses has K = 1 and
is linear in y, as the published formula takes all programs to be.

K and p are measured by pairs (``hmd.estimate.runs``): a miss with K - 1 neighbours on either side
is in 2 (K - 1) / period pairs. K differs by data structure, so it is measured by class of pages:
stretches of address space with equally many misses, each split by heat. How K changes over time
follows from the runs' times: waits x difference in latency = difference in time, by window.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

STRETCHES = 24
CLASSES = 2 * STRETCHES

_PRIOR_RATE = 20.0  # samples by which a class starts with the rate of pairs of all
_PRIOR_CLASS = 8.0  # slow pair members by which a class starts with the chance of all
_PRIOR_ALL = 4.0  # and all with that of independent neighbours
_STEEPEST = 6.0
_FEWEST_PAIRS = 50


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
    """Pairs of both runs: their pages and classes, of shape ``(pairs,)``, and their windows.

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

    def by_class(self, member: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return sums by class; ``member`` of shape ``(2, pairs)``, for a and for b."""
        of_a = np.bincount(self.class_a, member[0], CLASSES)
        of_b = np.bincount(self.class_b, member[1], CLASSES)
        return np.asarray(of_a + of_b, np.float64)


def neighbours(
    pairs: Pairs, sampled: npt.NDArray[np.float64], period: float
) -> npt.NDArray[np.float64]:
    """Return K - 1 of each class, ``(classes,)``: ``sampled`` are its, one in ``period``."""
    members = pairs.by_class(np.ones((2, len(pairs)))) * pairs.one_of
    rate = members.sum() / max(sampled.sum(), 1.0)
    return np.asarray((members + _PRIOR_RATE * rate) / (sampled + _PRIOR_RATE) * period)


def steepness(
    misses: npt.NDArray[np.float64],
    neighbours: npt.NDArray[np.float64],
    waits: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """Return by what K - 1 of all classes has to be multiplied in each window, ``(windows,)``.

    So that ``misses``, ``(windows, classes)``, give ``waits``, ``(windows,)``, in the slow run.
    """
    low, high = np.zeros(len(waits)), np.full(len(waits), _STEEPEST)
    for _ in range(30):
        middle = (low + high) / 2
        too_many = (misses / (1 + middle[:, None] * neighbours)).sum(1) > waits
        low, high = np.where(too_many, middle, low), np.where(too_many, high, middle)
    return np.asarray((low + high) / 2)


def both_slow(
    pairs: Pairs,
    members: npt.NDArray[np.float64],
    both: npt.NDArray[np.float64],
    slow_share: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """Return the chance that a slow miss's neighbour is slow, shape ``(windows, classes)``.

    ``members`` and ``both``, ``(classes,)``: slow members of pairs, and those of them whose other
    is slow; ``slow_share``, ``(windows,)``, of all misses.
    """
    if not pairs.enough:
        # Nobody knows: half-way between independent and alike.
        return np.repeat((1 + slow_share[:, None]) / 2, CLASSES, axis=1)
    independent = slow_share[pairs.window]
    ones = np.ones(len(pairs))
    mean = float(independent.mean())
    of_all = (both.sum() + _PRIOR_ALL * mean) / (members.sum() + _PRIOR_ALL)
    chance = (both + _PRIOR_CLASS * of_all) / (members + _PRIOR_CLASS)
    seen = pairs.by_class(np.stack([ones, ones])) + _PRIOR_CLASS
    expected = (pairs.by_class(np.stack([independent, independent])) + _PRIOR_CLASS * mean) / seen
    alike = np.clip((chance - expected) / np.maximum(1 - expected, 1e-3), -1.0, 1.0)
    share = slow_share[:, None]
    return np.asarray(np.clip(share + (1 - share) * alike, 0.0, 1.0))
