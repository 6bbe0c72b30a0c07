# SPDX-License-Identifier: MIT
"""Policies with exact knowledge of a program's misses: what prediction or sampling could bring.

Takes a recorded program, a machine, the number of pages that fit on the fast node and the daemon's
settings; gives a runtime for each kind of knowledge, the best of several horizons and thresholds,
and of moving nothing. ``clairvoyant`` knows the misses of the next ticks, ``exact-past`` all misses
of the last ticks; samples cost nothing, since none are needed. They move pages as any policy does,
under the same budget, after the same delay, at the same cost. Costs two replays per program, and as
many simulations per kind as there are settings.

The algorithm is greedy. A page is worth what its misses within the horizon save on the fast node:
each miss that no prefetch covers, the mean over the program, by two replays with all pages slow and
all fast. The stall of a single miss would say less, since misses overlap: which of them the core
waits for is chance. Pages of the slow node, the most worth first, take free room or displace the
pages of the fast node that are worth the least, as long as that saves more than the moves cost. Of
pages that the program is about to allocate, the clairvoyant keeps room for those that are worth
more than what is there. It looks neither at bandwidth nor beyond the next decision, so a better
policy may exist: the figures are lower limits of what knowledge is worth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.emulate.preset import Preset
from hmd.emulate.recordings.misses import MissStream
from hmd.heat.view import PageView
from hmd.learn.rows import MissValues
from hmd.policy.plan import MachineView, Plan
from hmd.simulate.machine import FAST, PROGRAM, SLOW, SimulatedMachine
from hmd.simulate.pmu import PmuSettings
from hmd.simulate.simulation import Simulated, SimulatedDaemon, SimulationSettings, run_daemon

CLAIRVOYANT, EXACT_PAST = "clairvoyant", "exact-past"

Values = npt.NDArray[np.float64]
Pages = npt.NDArray[np.int64]

HORIZONS: Final = (2, 8, 64)
"""Ticks that a policy knows."""

MOVES_S: Final = (1e-6, 3e-6)
"""Seconds that a page must save per move: less than a move costs its program, and about that."""


class PageValues(Protocol):
    """What pages' misses save on the fast node: :class:`hmd.learn.rows.MissValues`, or a guess."""

    first_row: Pages
    """The row of the first access to each page, shape ``(pages,)``."""

    def between(self, begin: int, end: int) -> Values:
        """Return the seconds that each page's misses of these rows save; shape ``(pages,)``."""
        ...


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
        values: PageValues,
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


@dataclass(frozen=True, slots=True)
class Bound:
    """The best run with one kind of knowledge; ``settings`` is None where moving nothing is."""

    run: Simulated
    settings: KnownMissesSettings | None


def bounds(
    stream: MissStream,
    preset: Preset,
    fast_pages: int,
    settings: SimulationSettings,
    values: MissValues | None = None,
    say: Callable[[str], None] | None = None,
) -> dict[str, Bound]:
    """Return the bounds by name; ``values`` are those of the stream and preset, made if None."""
    values = values or MissValues(stream, preset)
    say = say or (lambda _: None)
    unsampled = replace(settings, sampling=PmuSettings(loss=1.0, free=True))
    found = {}
    for name in (CLAIRVOYANT, EXACT_PAST):
        best: Bound | None = None
        for horizon in HORIZONS:
            for move_s in MOVES_S:
                say(f"{name}, {horizon} ticks, {move_s * 1e6:g} µs per move")
                known = KnownMissesSettings(name == EXACT_PAST, horizon, move_s)
                run = known_run(stream, preset, fast_pages, values, known, unsampled)
                if best is None or run.runtime_s < best.run.runtime_s:
                    best = Bound(run, known)
        assert best is not None
        found[name] = best
    say("moving nothing")
    idle = KnownMissesSettings(past=True, horizon_ticks=0, move_s=1.0)
    still = Bound(known_run(stream, preset, fast_pages, values, idle, unsampled), None)
    return {
        name: bound if bound.run.runtime_s < still.run.runtime_s else still
        for name, bound in found.items()
    }


def known_run(
    stream: MissStream,
    preset: Preset,
    fast_pages: int,
    values: PageValues,
    known: KnownMissesSettings,
    settings: SimulationSettings,
) -> Simulated:
    """Run a program under ``KnownMisses``."""
    with SimulatedMachine(stream, preset, fast_pages, settings.cost) as machine:
        policy = KnownMisses(machine, values, known, settings.delay_s)
        return run_daemon(SimulatedDaemon(machine, policy, settings))
