"""Past heat: what pages that were hot, and are cold now, are expected to have again.

Takes the page view of each tick, gives the least that pages of faster tiers are expected to have: a
part of the peak of their rates. Where phases of a program return, or it passes over its data again
and again, pages that wait for their next turn look as cold as pages that were never hot; among
those, the pages to demote would be chosen by chance, and be promoted again soon after.

The part is measured, per process: samples of pages that were hot and are cold now are followed
(:mod:`hmd.decide.cohorts`), and their accesses in the next ticks, over those that they had at their
peak, are what is expected of all such pages. Where nothing returns it is 0. Peaks of noise are
higher than what pages had; the measured part is lower for it. A peak halves in 64 ticks.

The kernel distinguishes pages that return from those that do not for the same reason: its working
set detection activates pages that are accessed again soon after they were reclaimed
(mm/workingset.c).

Costs about 6 ns per row, 4 bytes per page, 5 ns per sample and 50 ns per page that is followed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.decide.cohorts import PAGES_MOST, Cohorts, most_accessed
from hmd.decide.process_slots import ProcessSlots, carried
from hmd.decide.process_sums import add_accesses
from hmd.heat.page_state import PageState

if TYPE_CHECKING:
    from hmd.decide.past_kernel import PastRows
    from hmd.heat.page_view import PageView

Rates = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]

AGES: Final = 16
"""Ticks for which pages that are cold now are followed."""

# A cohort is formed once in so many ticks.
_STRIDE: Final = 4
# What a tick keeps of a peak, and of what was observed.
_STAY: Final = 2 ** (-1 / 64)
_MEMORY: Final = 0.98
# Predicted samples of which none is taken to have been counted before any were.
_PRIOR: Final = 300.0
# A page is hot with so many times the accesses of its process's mean page.
_HOT: Final = 2.0


class PastHeat:
    """Keeps how hot pages have been, and learns by process what returns of that."""

    def __init__(self) -> None:
        self._peak = PageState(np.float32, 0)
        self._slots = ProcessSlots()
        self._predicted, self._counted = np.zeros(0), np.zeros(0)
        self._cohorts = Cohorts(AGES)
        self._tick = -1

    @property
    def part(self) -> Values:
        """What a page that is cold now is expected to have of its peak; shape ``(processes,)``."""
        found: Values = np.minimum(self._counted / (self._predicted + _PRIOR), 1.0)
        return found

    def least(self, pages: PageView, tiers: int) -> Rates:
        """Return the least rate that is expected of each row, 0 on the slowest of the ``tiers``.

        Accesses per second and 4 KiB page, shape ``(rows,)``. The first call of a tick learns from
        it.
        """
        from hmd.decide.past_kernel import PastRows, fill_least, keep_peaks

        if pages.tick < self._tick:  # a new table: the daemon's configuration has changed
            self._predicted, self._counted = np.zeros(0), np.zeros(0)
            self._slots = ProcessSlots()
            self._cohorts.clear()
        news, self._tick = pages.tick != self._tick, pages.tick
        if news:
            self._learn(pages)
        peak, number = self._peak.in_place(pages)
        rows = PastRows(number, pages.process, pages.tier, pages.rate)
        if news:
            keep_peaks(rows, _STAY, peak)
            if pages.tick % _STRIDE == 0:
                self._follow(pages, rows, peak)
        least = np.zeros(len(pages), np.float32)
        part = self.part
        if part.any():
            fill_least(rows, tiers - 1, part, peak, least)
        return least

    def _learn(self, pages: PageView) -> None:
        """Compare the samples of pages that were cold with those that their peaks predict."""
        before = self._slots.follow(pages.processes)
        if before is not None:
            self._predicted = carried(self._predicted, before)
            self._counted = carried(self._counted, before)
        self._predicted *= _MEMORY
        self._counted *= _MEMORY
        for slot, _, predicted, counted in self._cohorts.compare(pages):
            self._predicted[slot] += predicted
            self._counted[slot] += counted

    def _follow(self, pages: PageView, rows: PastRows, peak: Rates) -> None:
        """Follow some of the pages of each process that were hot and are cold now."""
        from hmd.decide.past_kernel import find_past

        accesses = np.zeros(len(pages.processes))
        add_accesses(pages.process, pages.size, pages.rate, accesses)
        accesses += pages.beyond.accesses.sum(axis=1)
        resident = np.bincount(pages.process, pages.size, len(accesses))
        resident += pages.beyond.pages.sum(axis=1)
        hot = _HOT * accesses / np.maximum(resident, 1.0)
        found = np.empty(len(pages) + 1, np.int64)
        past = found[: find_past(rows, peak, hot, found)]
        process = pages.process[past]
        for slot in most_accessed(accesses):
            own = past[process == slot]
            step = max(len(own) // PAGES_MOST, 1)
            some = own[pages.tick // _STRIDE % step :: step][:PAGES_MOST]
            if len(some):
                had = peak[rows.number[some]].astype(np.float64) * pages.size[some]
                share = float(had.sum() / accesses[slot])
                self._cohorts.form(pages.processes[slot], pages.address[some], share)
