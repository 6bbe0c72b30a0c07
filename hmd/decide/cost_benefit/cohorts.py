"""Cohorts: pages that are followed for some ticks, to compare accesses with what was predicted.

Takes pages of a process and the part of its accesses that they were predicted to have; gives, in
each of the following ticks, the samples that were predicted and those that were counted. Costs
about 5 ns per sample of a tick and 50 ns per page that is followed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.machine.process_id import ProcessId

if TYPE_CHECKING:
    from hmd.heat.view.page_view import PageView

Values = npt.NDArray[np.float64]

PAGES_MOST: Final = 256
"""Pages of a cohort."""

# Processes that get a cohort in one tick: those with most accesses.
_PROCESSES_MOST: Final = 16


class Comparison(NamedTuple):
    """Samples of a tick that fell on a cohort, and those ``predicted``.

    ``slot`` is that of the cohort's process; ``age`` counts the ticks since it was formed, from 0.
    """

    slot: int
    age: int
    predicted: float
    counted: float


@dataclass
class _Cohort:
    """Pages of one process, and the part of its accesses that they were to have."""

    process: ProcessId
    address: npt.NDArray[np.uint64]
    share: float
    age: int = 0


class Cohorts:
    """The cohorts of the last ``ages`` ticks."""

    def __init__(self, ages: int) -> None:
        self._ages = ages
        self._cohorts: deque[_Cohort] = deque()

    def clear(self) -> None:
        """Follow none."""
        self._cohorts.clear()

    def form(self, process: ProcessId, address: npt.NDArray[np.uint64], share: float) -> None:
        """Follow pages of a process, shape ``(k,)``, which are to have a part of its accesses."""
        self._cohorts.append(_Cohort(process, address, share))

    def compare(self, pages: PageView) -> list[Comparison]:
        """Return how the samples of the last tick fell; call it once per tick.

        Nothing is said of processes without samples, nor of those that are not tracked any more.
        """
        slots = {process: slot for slot, process in enumerate(pages.processes)}
        samples = pages.process_samples
        live = [(each, slots.get(each.process, -1)) for each in self._cohorts]
        live = [(each, slot) for each, slot in live if slot >= 0 and samples[slot]]
        found = [
            Comparison(slot, cohort.age, float(samples[slot]) * cohort.share, samples[slot] * had)
            for (cohort, slot), had in zip(live, _shares(pages, live), strict=True)
        ]
        for cohort in self._cohorts:
            cohort.age += 1
        while self._cohorts and self._cohorts[0].age >= self._ages:
            self._cohorts.popleft()
        return found


def most_accessed(accesses: Values) -> list[int]:
    """Return the slots of the processes that get a cohort; ``accesses`` is by process."""
    first = np.argsort(-accesses, kind="stable")[:_PROCESSES_MOST]
    slots: list[int] = first[accesses[first] > 0].tolist()
    return slots


def _shares(pages: PageView, cohorts: list[tuple[_Cohort, int]]) -> list[float]:
    """Return the part of their process's accesses in the last tick that cohorts had.

    Each comes with the slot of its process.
    """
    if not cohorts:
        return []
    length = [len(cohort.address) for cohort, _ in cohorts]
    process = np.repeat(np.array([slot for _, slot in cohorts], np.int32), length)
    address = np.concatenate([cohort.address for cohort, _ in cohorts])
    each = pages.tick_share_at(process, address)
    return [float(own.sum()) for own in np.split(each, np.cumsum(length)[:-1])]
