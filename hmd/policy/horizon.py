# SPDX-License-Identifier: MIT
"""Horizons: for how many ticks pages have the accesses that their rates predict.

A cohort is a few pages of a process that are followed for ``AGES`` ticks, to compare the samples
that fall on them with the part of its accesses that they were predicted to have. All who follow
pages share the cohorts, so that the samples of a tick are read once: 5 ns per sample and 50 ns per
page that is followed.

In each tick the hottest pages of a process that compete for a promotion form a cohort. Counted over
predicted samples, by the age of a cohort, is the part of the prediction that came true at that age,
and the sum of the parts is the horizon. So hot sets that move, pages that are read once, and pages
that look hot by chance shorten it. Cohorts are followed whether their pages are promoted or not, so
that it is noticed when promotions begin to pay again.

Parts do not rise with age: accesses that come back later are no reason to keep a page until then.
Beyond ``AGES`` they fall exponentially, at the pace of those that are counted. No horizon is longer
than the process has been tracked, and two ticks: heat that has lasted for some time is expected to
last as long again (Lindy's law). This bounds the loss of moves by what they could have saved, as in
ski rental (Karlin et al., "Competitive randomized algorithms for non-uniform problems", 1994). Nor
is a horizon longer than heat lasts between the changes of a process (:mod:`hmd.heat.changes`).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.linux.process_table import ProcessTable, carry_over
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


MAX_COHORT_PAGES: Final = 256

# What a tick keeps of earlier observations.
_RETENTION: Final = 0.95
# Samples at each age that are taken to have been predicted, and to have come true as at the age
# before, until there are observations.
_PRIOR_SAMPLES: Final = 4.0
# Ticks for which heat is taken to have lasted when a process is first seen.
_TICKS_BEFORE: Final = 2
# The most by which rates are taken to fall short of accesses.
_MAX_PART: Final = 4.0
_MIN_PART: Final = 1e-9

Values = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]


class Persistence:
    """Learns the horizon of each process."""

    def __init__(self, cohorts: Cohorts | None = None) -> None:
        self._cohorts = cohorts or Cohorts()
        self._clear()

    def _clear(self) -> None:
        self._tick = -1
        self._processes = ProcessTable()
        # By process: the tick since which it is tracked, and samples of cohorts by their age.
        self._since = np.zeros(0, np.int64)
        self._predicted, self._counted = np.zeros((0, AGES)), np.zeros((0, AGES))

    def horizons(self, pages: PageView) -> Values:
        """Return each process's horizon, in ticks; the first call of a tick learns from it."""
        if pages.tick < self._tick:  # a new table: the daemon's configuration has changed
            self._clear()
        if pages.tick != self._tick:
            self._tick = pages.tick
            self._track(pages.processes)
            for each in self._cohorts.compare(pages, Purpose.PERSISTENCE):
                self._predicted[each.slot, each.age] += each.predicted[0]
                self._counted[each.slot, each.age] += each.counted
        return np.minimum(self._sum_parts(), pages.heat_lifetime_ticks)

    def follow_hottest(self, pages: PageView, rows: Rows, rate: npt.NDArray[np.float32]) -> None:
        """Form cohorts of the hottest of the rows that compete for a promotion in this tick.

        ``rate``, shape ``(rows of the view,)``, is what each page is expected to have.
        """
        accesses = rate[rows].astype(np.float64) * pages.size[rows]
        process = pages.process[rows]
        for slot in busiest_processes(pages.accesses):
            hottest = np.flatnonzero(process == slot)
            if not len(hottest):
                continue
            if len(hottest) > MAX_COHORT_PAGES:
                falling = np.argpartition(-accesses[hottest], MAX_COHORT_PAGES)
                hottest = hottest[falling[:MAX_COHORT_PAGES]]
            share = float(accesses[hottest].sum() / pages.accesses[slot])
            followed = pages.processes[slot], pages.address[rows[hottest]]
            self._cohorts.form(Purpose.PERSISTENCE, *followed, share)

    def _track(self, processes: tuple[ProcessId, ...]) -> None:
        """Fade what was observed; forget processes that are not tracked any more."""
        before = self._processes.replace(processes)
        if before is not None:
            known, since = before >= 0, np.full(len(processes), self._tick, np.int64)
            since[known] = self._since[before[known]]
            self._since = since
            self._predicted = carry_over(self._predicted, before)
            self._counted = carry_over(self._counted, before)
        self._predicted *= _RETENTION
        self._counted *= _RETENTION

    def _sum_parts(self) -> Values:
        """Return the sums of the parts over ages, as far as heat is expected to last."""
        tracked = self._tick - self._since + 1 + _TICKS_BEFORE
        parts = self._parts()
        found: Values = parts.sum(axis=1)
        longest = parts[:, -1] * (tracked - AGES)
        late = parts[:, AGES // 2 :].mean(axis=1) / np.maximum(parts[:, 0], _MIN_PART)
        later = longest.copy()
        for slot in np.flatnonzero((late < 1.0) & (tracked > AGES)).tolist():
            # As exp(-age / ticks), of which the later half of the ages has the mean ``late``.
            ticks = 0.75 * AGES / -math.log(max(late[slot], _MIN_PART))
            falling = parts[slot, 0] * ticks * math.exp(-AGES / ticks)
            later[slot] = min(falling, longest[slot])
        for ages in np.unique(tracked[tracked <= AGES]).tolist():
            short = np.flatnonzero(tracked == ages)
            found[short], later[short] = parts[short, :ages].sum(axis=1), 0.0
        found += later
        return found

    def _parts(self) -> Values:
        """Return the parts that came true by age; an age without samples has that before it."""
        parts = np.empty(self._predicted.shape)
        part, limit = np.ones(len(parts)), np.full(len(parts), _MAX_PART)
        for age in range(AGES):
            counted = self._counted[:, age] + _PRIOR_SAMPLES * part
            part = counted / (self._predicted[:, age] + _PRIOR_SAMPLES)
            part = limit = np.minimum(part, limit)
            parts[:, age] = part
        return parts
