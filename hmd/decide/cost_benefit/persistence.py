"""Persistence of heat: for how many ticks pages have the accesses that their rates predict.

Takes the page view of each tick and the pages that compete for a promotion, gives a horizon per
process, in ticks. The hottest competitors of a tick are followed: their accesses in each of the
following ticks, over those that their rates predicted, are the part of the prediction that came
true at that age. Where some promotions pay, those pages are the competitors: they are chosen for
high rates, which chance has raised more than those of other pages. What a promotion saves is the
sum of these parts, in ticks at the rate of its page. This covers hot sets that move, pages that are
read once, and pages that only the noise of samples makes look hot. Competitors are followed whether
they are promoted or not, so that it is noticed when promotions begin to pay again.

Parts do not rise with age: accesses that come back later are no reason to keep a page until then.
Beyond the ages that are followed they fall exponentially, at the pace of those that are. No horizon
is longer than the process has been tracked, and two ticks: heat that has lasted for some time is
expected to last as long again (Lindy's law). This bounds the loss of moves by what they could have
saved, as in ski rental (Karlin et al., "Competitive randomized algorithms for non-uniform
problems", 1994). Nor is it longer than heat lasts between the changes of a process
(:mod:`hmd.heat.rates.change_points`).

Costs about 5 ns per sample, 4 ns per row of the view and 50 ns per page that is followed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.decide.cost_benefit.cohorts import PAGES_MOST, Cohorts, most_accessed
from hmd.decide.process_slots import ProcessSlots, carried
from hmd.decide.process_sums import add_accesses
from hmd.machine.process_id import ProcessId

if TYPE_CHECKING:
    from hmd.heat.view.page_view import PageView

Values = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

AGES: Final = 16
"""Ticks for which competitors are followed."""

# What a tick keeps of earlier observations.
_MEMORY: Final = 0.95
# Predicted samples at each age that are taken to have been counted before any were.
_PRIOR: Final = 4.0
# Ticks for which heat is taken to have lasted when a process is first seen.
_BEFORE: Final = 2
# The most by which rates are taken to fall short of accesses.
_PART_MOST: Final = 4.0
_LEAST: Final = 1e-9


class _Observed:
    """Samples of competitors by process and by their age, of the processes that are tracked.

    ``since`` is the tick since which each is, shape ``(processes,)``; as many samples as were
    ``predicted``, and the ``counted`` ones, shape ``(processes, AGES)``.
    """

    def __init__(self) -> None:
        self._slots = ProcessSlots()
        self.since = np.zeros(0, np.int64)
        self.predicted, self.counted = np.zeros((0, AGES)), np.zeros((0, AGES))

    def begin(self, processes: tuple[ProcessId, ...], tick: int) -> None:
        """Fade what was observed; forget processes that are not tracked any more."""
        before = self._slots.follow(processes)
        if before is not None:
            known, since = before >= 0, np.full(len(processes), tick, np.int64)
            since[known] = self.since[before[known]]
            self.since = since
            self.predicted = carried(self.predicted, before)
            self.counted = carried(self.counted, before)
        self.predicted *= _MEMORY
        self.counted *= _MEMORY

    def horizons(self, tick: int) -> Values:
        """Return the sums of the parts over ages, as far as heat is expected to last."""
        tracked = tick - self.since + 1 + _BEFORE
        parts = self._parts()
        found: Values = parts.sum(axis=1)
        longest = parts[:, -1] * (tracked - AGES)
        late = parts[:, AGES // 2 :].mean(axis=1) / np.maximum(parts[:, 0], _LEAST)
        beyond = longest.copy()
        for slot in np.flatnonzero((late < 1.0) & (tracked > AGES)).tolist():
            # As exp(-age / ticks), of which the later half of the ages has the mean ``late``.
            ticks = 0.75 * AGES / -math.log(max(late[slot], _LEAST))
            falling = parts[slot, 0] * ticks * math.exp(-AGES / ticks)
            beyond[slot] = min(falling, longest[slot])
        for ages in np.unique(tracked[tracked <= AGES]).tolist():
            short = np.flatnonzero(tracked == ages)
            found[short], beyond[short] = parts[short, :ages].sum(axis=1), 0.0
        found += beyond
        return found

    def _parts(self) -> Values:
        """Return the parts that came true by age; an age without samples has that before it."""
        parts = np.empty(self.predicted.shape)
        part, most = np.ones(len(parts)), np.full(len(parts), _PART_MOST)
        for age in range(AGES):
            part = (self.counted[:, age] + _PRIOR * part) / (self.predicted[:, age] + _PRIOR)
            part = most = np.minimum(part, most)
            parts[:, age] = part
        return parts


class Persistence:
    """Learns the horizon of each process."""

    def __init__(self) -> None:
        self._observed = _Observed()
        self._cohorts = Cohorts(AGES)
        self._tick = -1

    def horizon(self, pages: PageView) -> Values:
        """Return for how many ticks each process's pages have the accesses of their rates.

        The first call of a tick learns from it.
        """
        tick = pages.tick
        if tick < self._tick:  # a new table: the daemon's configuration has changed
            self._observed = _Observed()
            self._cohorts.clear()
        if tick != self._tick:
            self._tick = tick
            self._learn(pages)
        return np.minimum(self._observed.horizons(tick), pages.lasting_ticks)

    def follow(self, pages: PageView, rows: Rows, rate: npt.NDArray[np.float32]) -> None:
        """Follow the hottest of the rows that compete for a promotion in this tick.

        ``rate``, shape ``(rows of the view,)``, is what each page was expected to have.
        """
        accesses = rate[rows].astype(np.float64) * pages.size[rows]
        process = pages.process[rows]
        total = np.zeros(len(pages.processes))
        add_accesses(pages.process, pages.size, rate, total)
        total += pages.beyond.accesses.sum(axis=1)
        for slot in most_accessed(total):
            own = np.flatnonzero(process == slot)
            if not len(own):
                continue
            hottest = own
            if len(own) > PAGES_MOST:
                hottest = own[np.argpartition(-accesses[own], PAGES_MOST)[:PAGES_MOST]]
            share = float(accesses[hottest].sum() / total[slot])
            self._cohorts.form(pages.processes[slot], pages.address[rows[hottest]], share)

    def _learn(self, pages: PageView) -> None:
        """Compare what each cohort was to have of the samples of the last tick with what it had."""
        observed = self._observed
        observed.begin(pages.processes, self._tick)
        for slot, age, predicted, counted in self._cohorts.compare(pages):
            observed.predicted[slot, age] += predicted
            observed.counted[slot, age] += counted
