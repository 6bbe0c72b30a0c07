"""How long hot pages stay hot: for how many ticks a promotion is expected to pay back.

Takes the heat table once a tick and the promotions that were planned; gives a horizon a process, in
ticks. Pages that were promoted are looked at again in the ticks after: what part of their share of
the process's accesses they keep from one to the next is how likely heat lasts a tick, and the
expected number of ticks is that of a geometric distribution. That counts a moved hot set and the
disappointment of pages that only chance had made look hot alike.

No horizon is longer than the process has been watched: what has gone on for so long is expected to
go on for as long again (Lindy's law; it bounds the loss of moves by what they could have saved, as
in ski rental: Karlin et al., "Competitive randomized algorithms for non-uniform problems", 1994).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.decide.plan import Plan
from hmd.heat.geometry import CHUNK_BYTES, CHUNK_PAGES
from hmd.machine.process_id import ProcessId
from hmd.units import PAGE_BYTES

if TYPE_CHECKING:
    from hmd.heat.heat_table import HeatTable, PageRates

_COHORTS: Final = 16  # ticks of promotions that are watched
_WATCHED: Final = 1024  # pages of each
_MEMORY: Final = 0.9  # of what was seen, a tick later
_PRIOR: Final = 0.05  # shares of accesses that are taken to have lasted before any were seen


class _Seen:
    """What one process has shown: since when it is watched, and what part of heat lasted."""

    def __init__(self, tick: int) -> None:
        self.since = tick
        self.before = self.after = _PRIOR


class Persistence:
    """Keeps horizons by process."""

    def __init__(self) -> None:
        self._seen: dict[ProcessId, _Seen] = {}
        self._cohorts: deque[_Cohort] = deque(maxlen=_COHORTS)
        self._tick = -1
        self._planned: _Cohort | None = None

    def horizon(self, heat: HeatTable, rates: PageRates) -> npt.NDArray[np.float64]:
        """Return for how many ticks heat is expected to last, by process; at least 1.

        Learns from the first call of a tick; what was ``planned`` in the one before is watched
        from now on.
        """
        tick = heat.clocks.tick
        if tick < self._tick:  # another table, of a daemon that was configured anew
            self._seen.clear()
            self._cohorts.clear()
            self._planned = None
        if tick != self._tick:
            self._tick = tick
            if self._planned is not None:
                self._cohorts.append(self._planned)
                self._planned = None
            self._learn(heat, rates)
        return np.array([self._of(process) for process in heat.processes], np.float64)

    def planned(self, plan: Plan, heat: HeatTable, rates: PageRates) -> None:
        """Take note of the promotions of this tick; of two such plans the later counts."""
        self._planned = _Cohort.of(plan, heat, rates) if len(plan) else None

    def _of(self, process: ProcessId) -> float:
        seen = self._seen.setdefault(process, _Seen(self._tick))
        age = float(self._tick - seen.since + 1)
        lasts = min(seen.after / seen.before, 1.0)
        return min(age, 1.0 / max(1.0 - lasts, 1.0 / age))

    def _learn(self, heat: HeatTable, rates: PageRates) -> None:
        """Compare each cohort's share of its process's accesses with that of a tick ago."""
        known = set(heat.processes)
        self._seen = {p: seen for p, seen in self._seen.items() if p in known}
        for process in heat.processes:
            self._seen.setdefault(process, _Seen(self._tick))
        for seen in self._seen.values():
            seen.before = _PRIOR + (seen.before - _PRIOR) * _MEMORY
            seen.after = _PRIOR + (seen.after - _PRIOR) * _MEMORY
        for cohort in self._cohorts:
            before, now = cohort.share, cohort.look(heat, rates)
            for process in now.keys() & before.keys() & known:
                self._seen[process].before += before[process]
                self._seen[process].after += now[process]


class _Cohort:
    """Pages that were promoted in one tick, and their share of each process's accesses."""

    def __init__(
        self,
        processes: tuple[ProcessId, ...],
        process: npt.NDArray[np.int32],
        address: npt.NDArray[np.uint64],
    ) -> None:
        self._processes, self._process, self._address = processes, process, address
        self.share: dict[ProcessId, float] = {}

    @classmethod
    def of(cls, plan: Plan, heat: HeatTable, rates: PageRates) -> _Cohort:
        """Return the pages of a plan that are hottest, at most ``_WATCHED``."""
        rows = np.argsort(-plan.heat, kind="stable")[:_WATCHED]
        made = cls(plan.processes, plan.process[rows], plan.address[rows])
        made.look(heat, rates)
        return made

    def look(self, heat: HeatTable, rates: PageRates) -> dict[ProcessId, float]:
        """Return the shares now."""
        slots = {process: slot for slot, process in enumerate(heat.processes)}
        self.share = {}
        for index in np.unique(self._process).tolist():
            process = self._processes[index]
            slot = slots.get(process)
            total = heat.clocks.intensity[slot] if slot is not None else 0.0
            if slot is None or total <= 0:
                continue
            address = self._address[self._process == index]
            chunk = heat.chunks.find(slot, address)
            page = (address % np.uint64(CHUNK_BYTES) // np.uint64(PAGE_BYTES)).astype(np.intp)
            size = np.where(heat.chunks.columns.huge[chunk], CHUNK_PAGES, 1)
            rate = np.where(chunk >= 0, rates.rate[chunk, page] * size, 0.0)
            self.share[process] = float(rate.sum() / total)
        return self.share
