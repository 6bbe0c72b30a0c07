"""Policies that know a program's misses exactly: what prediction or better sampling could bring.

``clairvoyant`` knows the misses of the next ticks, ``exact-past`` all misses of the last ticks.
Both belong to the simulator, since they read the recording. They move pages as any policy does,
under the same budget, after the same delay, at the same cost.

The algorithm is greedy. A page is worth what its misses within the horizon save on the fast node:
each miss that no prefetch covers, the mean over the program, by two replays with all pages slow and
all fast. The stall of a single miss would say less, since misses overlap: which of them the core
waits for is chance. Pages of the slow node, the most worth first, take
free room or displace the pages of the fast node that are worth the least, as long as that saves
more than the moves cost. Of pages that the program is about to allocate, the clairvoyant keeps room
for those that are worth more than what is there. It looks neither at bandwidth nor beyond the next
decision, so a better policy may exist: the figures are lower limits of what knowledge is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.decide.plan import MachineView, Plan
from hmd.emulate.preset import Preset
from hmd.emulate.recordings.layout_replay import replayed
from hmd.emulate.recordings.miss_stream import MissFlag, MissStream
from hmd.heat.view.page_view import PageView
from hmd.simulate.access_rows import first_rows
from hmd.simulate.simulated_machine import PROGRAM, SimulatedMachine
from hmd.simulate.simulated_memory import FAST, SLOW
from hmd.units import PAGE_BYTES

CLAIRVOYANT, EXACT_PAST = "clairvoyant", "exact-past"
_SLOTS: Final = 1000
_S_PER_PS: Final = 1e-12

Values = npt.NDArray[np.float64]
Pages = npt.NDArray[np.int64]


class MissValues:
    """What each page's misses save on the fast node, by rows of the stream.

    Sums over a thousand slots of equal numbers of rows: 4 bytes per page and slot. Rows are rounded
    down to the begin of a slot.
    """

    def __init__(self, stream: MissStream, preset: Preset) -> None:
        pages, rows = stream.user_pages, len(stream)
        self.first_row = first_rows(stream)
        waited = stream.sampled() & ((stream.flags & np.uint8(MissFlag.COVERED)) == 0)
        waited &= stream.page < pages
        slow, fast = (replayed(stream, preset, np.full(pages, on)) for on in (False, True))
        self.per_miss_s = (slow - fast) * _S_PER_PS / max(int(np.count_nonzero(waited)), 1)
        self._ends = np.linspace(0, rows, _SLOTS + 1).astype(np.int64)
        self._sums = np.zeros((_SLOTS + 1, pages), np.float32)
        for slot in range(_SLOTS):
            part = slice(self._ends[slot], self._ends[slot + 1])
            misses = np.bincount(stream.page[part][waited[part]], minlength=pages)
            self._sums[slot + 1] = self._sums[slot] + misses

    def between(self, begin: int, end: int) -> Values:
        """Return the seconds that each page's misses of these rows save; shape ``(pages,)``."""
        first, last = np.searchsorted(self._ends, (begin, end), side="right") - 1
        misses: Values = self._sums[last].astype(np.float64) - self._sums[first]
        return misses * self.per_miss_s


@dataclass(frozen=True, slots=True)
class KnownMissesSettings:
    """What a policy knows, and from which saving on it moves.

    ``past``: the misses of the last ``horizon_ticks``, else of the next. ``move_s`` is what a
    saving has to exceed per move.
    """

    past: bool
    horizon_ticks: int
    move_s: float
    headroom_pages: int = 16


class KnownMisses:
    """Moves the pages that pay, by exact values of their misses."""

    def __init__(
        self,
        machine: SimulatedMachine,
        values: MissValues,
        settings: KnownMissesSettings,
        delay_s: float,
    ) -> None:
        """``delay_s`` passes between a decision and its first move."""
        self.name = EXACT_PAST if settings.past else CLAIRVOYANT
        self._machine, self._values, self._settings = machine, values, settings
        self._delay_s = delay_s
        self._row, self._time_s = 0, 0.0

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the moves that pay within the horizon."""
        row, now_s = self._machine.row, self._machine.now_s
        per_s = (row - self._row) / max(now_s - self._time_s, 1e-9)
        self._row, self._time_s = row, now_s
        ahead = round(per_s * self._settings.horizon_ticks * machine.tick_s)
        if self._settings.past:
            worth = self._values.between(max(row - ahead, 0), row)
        else:
            begin = row + round(per_s * self._delay_s)
            worth = self._values.between(begin, begin + ahead)
        soon = row if self._settings.past else row + round(2 * per_s * machine.tick_s)
        up, down = self._choose(worth, row, soon, machine.budget_bytes // PAGE_BYTES)
        return self._plan_of(down, up, worth) if len(up) + len(down) else Plan.empty((PROGRAM,))

    def _choose(self, worth: Values, row: int, soon: int, budget: int) -> tuple[Pages, Pages]:
        """Return the pages to promote and those to demote."""
        first, node, cost = self._values.first_row, self._machine.page_nodes, self._settings.move_s
        coming = np.flatnonzero((first < row) & (node == SLOW))
        new = np.flatnonzero((first >= row) & (first < soon))
        net = np.concatenate([worth[coming] - cost, worth[new]])
        order = np.argsort(-net, kind="stable")
        candidates, net = np.concatenate([coming, new])[order], net[order]
        there = np.flatnonzero((first < row) & (node == FAST))
        loss = worth[there] + cost
        order = np.argsort(loss, kind="stable")
        victims, loss = there[order], loss[order]
        room = max(self._machine.free_pages(FAST) - self._settings.headroom_pages, 0)
        price = np.concatenate([np.zeros(room), loss, np.full(len(net), np.inf)])[: len(net)]
        paid = int(np.count_nonzero(np.cumprod(net > price)))
        # Each candidate that does not fit into the room takes two moves.
        paid = min(paid, max(budget, 0) if budget <= room else room + (budget - room) // 2)
        taken = candidates[:paid]
        return taken[first[taken] < row], victims[: max(paid - room, 0)]

    def _plan_of(self, down: Pages, up: Pages, worth: Values) -> Plan:
        page = np.concatenate([down, up])
        count, promoted = len(page), np.arange(len(page)) >= len(down)
        return Plan(
            processes=(PROGRAM,),
            process=np.zeros(count, np.int32),
            address=self._machine.stream.page_address[page],
            pages=np.ones(count, np.uint32),
            from_node=np.where(promoted, SLOW, FAST).astype(np.int16),
            to_node=np.where(promoted, FAST, SLOW).astype(np.int16),
            heat=worth[page].astype(np.float32),
            phase=promoted.astype(np.int32),
        )
