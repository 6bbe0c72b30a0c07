"""Persistence of heat: the number of ticks for which a promotion is expected to pay back.

Takes the page view of each tick and the promotions that were planned, gives a horizon per process,
in ticks. Promoted pages are followed in the ticks after their promotion: the part of their share of
the process's accesses that they keep from one tick to the next is the probability that heat lasts a
tick, and the expected number of ticks is the mean of a geometric distribution. This covers both hot
sets that move and pages that only sampling noise had made look hot.

No horizon is longer than the process has been tracked: heat that has lasted for some time is
expected to last as long again (Lindy's law). This bounds the loss of moves by what they could have
saved, as in ski rental (Karlin et al., "Competitive randomized algorithms for non-uniform
problems", 1994).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.decide.plan import Plan
from hmd.machine.process_id import ProcessId

if TYPE_CHECKING:
    from hmd.heat.page_view import PageView

# Ticks of promotions that are followed, and pages per tick.
_COHORTS: Final = 16
_PAGES: Final = 1024
# What a tick keeps of earlier observations.
_MEMORY: Final = 0.9
# Shares of accesses that are taken to have lasted before any were observed.
_PRIOR: Final = 0.05


class _Observed:
    """One process: the tick since which it is tracked, and the heat of cohorts before and after."""

    def __init__(self, tick: int) -> None:
        self.since = tick
        self.before = self.after = _PRIOR


class Persistence:
    """Learns the horizon of each process."""

    def __init__(self) -> None:
        self._observed: dict[ProcessId, _Observed] = {}
        self._cohorts: deque[_Cohort] = deque(maxlen=_COHORTS)
        self._tick = -1
        self._planned: _Cohort | None = None

    def horizon(self, pages: PageView) -> npt.NDArray[np.float64]:
        """Return the number of ticks that heat is expected to last, per process; at least 1.

        The first call of a tick learns from it, and begins to follow what was ``planned`` in the
        tick before.
        """
        tick = pages.tick
        if tick < self._tick:  # a new table: the daemon's configuration has changed
            self._observed.clear()
            self._cohorts.clear()
            self._planned = None
        if tick != self._tick:
            self._tick = tick
            if self._planned is not None:
                self._cohorts.append(self._planned)
                self._planned = None
            self._learn(pages)
        return np.array([self._of(process) for process in pages.processes], np.float64)

    def planned(self, plan: Plan, pages: PageView) -> None:
        """Set the promotions of this tick; of two plans in one tick the later counts."""
        self._planned = _Cohort.of(plan, pages) if len(plan) else None

    def _of(self, process: ProcessId) -> float:
        observed = self._observed.setdefault(process, _Observed(self._tick))
        age = float(self._tick - observed.since + 1)
        lasts = min(observed.after / observed.before, 1.0)
        return min(age, 1.0 / max(1.0 - lasts, 1.0 / age))

    def _learn(self, pages: PageView) -> None:
        """Compare each cohort's share of its process's accesses with that of a tick ago."""
        known = set(pages.processes)
        self._observed = {p: observed for p, observed in self._observed.items() if p in known}
        for process in pages.processes:
            self._observed.setdefault(process, _Observed(self._tick))
        for observed in self._observed.values():
            observed.before = _PRIOR + (observed.before - _PRIOR) * _MEMORY
            observed.after = _PRIOR + (observed.after - _PRIOR) * _MEMORY
        for cohort in self._cohorts:
            before, now = cohort.share, cohort.measure(pages)
            for process in now.keys() & before.keys() & known:
                self._observed[process].before += before[process]
                self._observed[process].after += now[process]


class _Cohort:
    """Pages promoted in one tick, and their share of the accesses of each process."""

    def __init__(
        self,
        processes: tuple[ProcessId, ...],
        process: npt.NDArray[np.int32],
        address: npt.NDArray[np.uint64],
        size: npt.NDArray[np.uint32],
    ) -> None:
        self._processes, self._process = processes, process
        self._address, self._size = address, size
        self.share: dict[ProcessId, float] = {}

    @classmethod
    def of(cls, plan: Plan, pages: PageView) -> _Cohort:
        """Return the hottest pages of a plan, at most ``_PAGES``."""
        rows = np.argsort(-plan.heat, kind="stable")[:_PAGES]
        made = cls(plan.processes, plan.process[rows], plan.address[rows], plan.pages[rows])
        made.measure(pages)
        return made

    def measure(self, pages: PageView) -> dict[ProcessId, float]:
        """Return the current shares."""
        slots = {process: slot for slot, process in enumerate(pages.processes)}
        self.share = {}
        for index in np.unique(self._process).tolist():
            process = self._processes[index]
            slot = slots.get(process)
            total = pages.process_rate[slot] if slot is not None else 0.0
            if slot is None or total <= 0:
                continue
            own = self._process == index
            rate = pages.rate_at(slot, self._address[own])
            self.share[process] = float((rate * self._size[own].astype(np.float64)).sum() / total)
        return self.share
