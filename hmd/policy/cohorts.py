# SPDX-License-Identifier: MIT
"""Cohorts: pages that are followed for some ticks, to compare accesses with what was predicted.

Takes pages of a process and the parts of its accesses that they were predicted to have; gives, in
each of the following ticks, the samples that were predicted and those that were counted. All who
follow pages share the cohorts, so that the samples of a tick are read once. Costs about 5 ns per
sample of a tick and 50 ns per page that is followed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.linux.process_table import ProcessTable
from hmd.linux.procfs import ProcessId

if TYPE_CHECKING:
    from hmd.heat.view import PageView

AGES: Final = 16
"""Ticks for which a cohort is followed."""

# Processes that get a cohort in one tick: those with most accesses.
_MAX_PROCESSES: Final = 16

Addresses = npt.NDArray[np.uint64]


class Purpose(Enum):
    """Who follows a cohort."""

    PERSISTENCE = auto()
    LONG_RUN = auto()


class Comparison(NamedTuple):
    """Samples of a tick that fell on a cohort, and those ``predicted``, by prediction.

    ``slot`` is that of the cohort's process; ``age`` counts the ticks since it was formed, from 0.
    """

    purpose: Purpose
    slot: int
    age: int
    predicted: tuple[float, ...]
    counted: float


@dataclass(slots=True)
class _Cohort:
    """Pages of a process, and the part of its accesses that each prediction gives them."""

    purpose: Purpose
    process: ProcessId
    address: Addresses
    shares: tuple[float, ...]
    age: int = 0


class Cohorts:
    """The cohorts of the last ``AGES`` ticks."""

    def __init__(self) -> None:
        self._cohorts: deque[_Cohort] = deque()
        self._tick = -1
        self._comparisons: list[Comparison] = []

    def form(
        self, purpose: Purpose, process: ProcessId, address: Addresses, *shares: float
    ) -> None:
        """Follow pages of a process; ``shares`` of its accesses are what predictions give them."""
        self._cohorts.append(_Cohort(purpose, process, address, shares))

    def compare(self, pages: PageView, purpose: Purpose) -> list[Comparison]:
        """Return how samples of the last tick fell on the cohorts of a purpose."""
        if pages.tick < self._tick:  # a new table: the daemon's configuration has changed
            self._cohorts.clear()
        if pages.tick != self._tick:
            self._tick, self._comparisons = pages.tick, self._compare_all(pages)
        return [each for each in self._comparisons if each.purpose == purpose]

    def _compare_all(self, pages: PageView) -> list[Comparison]:
        """Compare all cohorts, which are then a tick older."""
        table, samples = ProcessTable(pages.processes), pages.process_samples
        followed = [(cohort, table.slot_of(cohort.process)) for cohort in self._cohorts]
        followed = [(each, slot) for each, slot in followed if slot >= 0 and samples[slot]]
        found = []
        if followed:
            length = [len(cohort.address) for cohort, _ in followed]
            process = np.repeat(np.array([slot for _, slot in followed], np.int32), length)
            address = np.concatenate([cohort.address for cohort, _ in followed])
            counted = np.split(pages.tick_share_at(process, address), np.cumsum(length)[:-1])
            for (cohort, slot), shares in zip(followed, counted, strict=True):
                predicted = tuple(float(samples[slot]) * share for share in cohort.shares)
                had = samples[slot] * float(shares.sum())
                found.append(Comparison(cohort.purpose, slot, cohort.age, predicted, had))
        for cohort in self._cohorts:
            cohort.age += 1
        while self._cohorts and self._cohorts[0].age >= AGES:
            self._cohorts.popleft()
        return found


def busiest_processes(accesses: npt.NDArray[np.float64]) -> list[int]:
    """Return the slots of the processes that get a cohort; ``accesses`` is by process."""
    busiest = np.argsort(-accesses, kind="stable")[:_MAX_PROCESSES]
    slots: list[int] = busiest[accesses[busiest] > 0].tolist()
    return slots
