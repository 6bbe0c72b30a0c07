"""The last rounds of moves and their reasons: what was planned, how hot, what became of it.

Takes ticks, keeps the last ``MAX_ROUNDS`` that planned something, each as at most ``MAX_FLOWS``
flows (a target's pages from one node to another). Costs 80 ns a move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.migrate.move_status import MoveStatus
from hmd.observe.counters import Counters
from hmd.observe.tick_record import TickRecord

MAX_ROUNDS = 32
MAX_FLOWS = 8
"""Flows of a round that are told of one by one: those of most pages."""


@dataclass(frozen=True, slots=True)
class MoveFlow:
    """Pages of 4 KiB of one target that were to go from a node to another, or did.

    ``heat`` is the mean of what the plan has of each page. ``left`` are planned pages that were
    not moved, by what became of them; -1 is a node that is not known.
    """

    target: str
    from_node: int
    to_node: int
    planned_pages: int
    moved_pages: int
    heat: float
    left: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TickMoves:
    """The moves of one tick, ``uptime_s`` after the daemon's start; ``tick`` counts from 1."""

    tick: int
    uptime_s: float
    dry_run: bool
    planned_pages: int
    flows: tuple[MoveFlow, ...]


class Rounds:
    """The last rounds; ``add`` takes a tick that the tally has taken before."""

    def __init__(self) -> None:
        """Know of none yet."""
        self._rounds: deque[TickMoves] = deque(maxlen=MAX_ROUNDS)

    def add(self, tick: TickRecord, tally: Counters, uptime_s: float) -> None:
        """Take note of what a tick moved, if it planned anything."""
        if not len(tick.plan):
            return
        dry_run = tick.outcome is not None and tick.outcome.dry_run
        planned = int(tick.plan.pages.sum())
        flows = _flows(tick, tally)
        self._rounds.append(TickMoves(tally.ticks, uptime_s, dry_run, planned, flows))

    def latest(self) -> tuple[TickMoves, ...]:
        """Return the rounds, oldest first."""
        return tuple(self._rounds)


def _flows(tick: TickRecord, tally: Counters) -> tuple[MoveFlow, ...]:
    plan = tick.plan
    pages = plan.pages.astype(np.int64)
    moved, status = _fates(tick)
    parts = [_dense(column) for column in (_targets(tick, tally), plan.from_node, plan.to_node)]
    (target, targets), (source, sources), (goal, goals) = parts
    flow = (target * len(sources) + source) * len(goals) + goal
    total = np.bincount(flow, pages)
    came = np.bincount(flow, moved)
    warmth = np.bincount(flow, pages * plan.heat)
    left = np.bincount(flow * len(MoveStatus) + status, pages - moved, len(total) * len(MoveStatus))
    found = []
    for number in np.argsort(-total, kind="stable")[:MAX_FLOWS].tolist():
        if not total[number]:
            break
        rest, to = divmod(number, len(goals))
        row, origin = divmod(rest, len(sources))
        fates = left[number * len(MoveStatus) : (number + 1) * len(MoveStatus)].tolist()
        found.append(
            MoveFlow(
                tally.names[targets[row]] if targets[row] >= 0 else "",
                sources[origin],
                goals[to],
                int(total[number]),
                int(came[number]),
                float(warmth[number] / total[number]),
                {MoveStatus(code).name.lower(): int(n) for code, n in enumerate(fates) if n > 0},
            )
        )
    return tuple(found)


def _dense(column: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Return numbers from -1 on as ranks among those that occur, and these; no sort of rows."""
    known = column.astype(np.int64) + 1
    seen = np.flatnonzero(np.bincount(known))
    rank = np.zeros(int(seen[-1]) + 1, np.int64)
    rank[seen] = np.arange(len(seen))
    return rank[known], (seen - 1).tolist()


def _fates(tick: TickRecord) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return moved pages and Status of each move; all pending where the stage failed."""
    outcome = tick.outcome
    if outcome is None:
        nothing = np.zeros(len(tick.plan), np.int64)
        return nothing, nothing + MoveStatus.PENDING
    status = outcome.status.astype(np.int64)
    return outcome.moved_pages.astype(np.int64) * (not outcome.dry_run), status


def _targets(tick: TickRecord, tally: Counters) -> npt.NDArray[np.int64]:
    """Return the tally's row of each move's target, -1 of a process that is not followed."""
    rows = {process: row for row, process in enumerate(tally.followed)}
    of_process = [
        int(tally.target_row[rows[process]]) if process in rows else -1
        for process in tick.plan.processes
    ]
    return np.array(of_process, np.int64)[tick.plan.process]
