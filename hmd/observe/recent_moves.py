"""The moves of the last ticks: what was planned, how hot it was, and the outcome.

Takes ticks, keeps the last ``MAX_TICKS_KEPT`` that planned moves, each as at most ``MAX_FLOWS``
flows (a target's pages from one node to another). Costs 80 ns per move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.migrate.move_status import MoveStatus
from hmd.observe.counters import Counters
from hmd.observe.limits import MAX_FLOWS, MAX_TICKS_KEPT
from hmd.observe.tick_record import TickRecord


@dataclass(frozen=True, slots=True)
class MoveFlow:
    """Pages of 4 KiB of one target that a plan moved from one node to another.

    ``heat`` is the mean heat of a page in the plan. ``left`` has planned pages that were not
    moved, by status. A node of -1 is unknown.
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


class RecentMoves:
    """The moves of the last ticks; ``add`` takes a tick after the counters have taken it."""

    def __init__(self) -> None:
        """Start empty."""
        self._ticks: deque[TickMoves] = deque(maxlen=MAX_TICKS_KEPT)

    def add(self, tick: TickRecord, counters: Counters, uptime_s: float) -> None:
        """Record what a tick moved, if it planned any moves."""
        if not len(tick.plan):
            return
        dry_run = tick.outcome is not None and tick.outcome.dry_run
        planned = int(tick.plan.pages.sum())
        flows = _flows(tick, counters)
        self._ticks.append(TickMoves(counters.ticks, uptime_s, dry_run, planned, flows))

    def latest(self) -> tuple[TickMoves, ...]:
        """Return the moves of each tick, oldest first."""
        return tuple(self._ticks)


def _flows(tick: TickRecord, counters: Counters) -> tuple[MoveFlow, ...]:
    plan = tick.plan
    pages = plan.pages.astype(np.int64)
    moved, status = _statuses(tick)
    parts = [_dense(column) for column in (_targets(tick, counters), plan.from_node, plan.to_node)]
    (target, targets), (source, sources), (goal, goals) = parts
    flow = (target * len(sources) + source) * len(goals) + goal
    total = np.bincount(flow, pages)
    done = np.bincount(flow, moved)
    heat_sum = np.bincount(flow, pages * plan.heat)
    left = np.bincount(flow * len(MoveStatus) + status, pages - moved, len(total) * len(MoveStatus))
    found = []
    for number in np.argsort(-total, kind="stable")[:MAX_FLOWS].tolist():
        if not total[number]:
            break
        rest, to = divmod(number, len(goals))
        row, origin = divmod(rest, len(sources))
        statuses = left[number * len(MoveStatus) : (number + 1) * len(MoveStatus)].tolist()
        found.append(
            MoveFlow(
                counters.names[targets[row]] if targets[row] >= 0 else "",
                sources[origin],
                goals[to],
                int(total[number]),
                int(done[number]),
                float(heat_sum[number] / total[number]),
                {MoveStatus(code).name.lower(): int(n) for code, n in enumerate(statuses) if n > 0},
            )
        )
    return tuple(found)


def _dense(column: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Return each number (-1 or more) as its rank among those that occur, and these, ascending."""
    known = column.astype(np.int64) + 1
    seen = np.flatnonzero(np.bincount(known))
    rank = np.zeros(int(seen[-1]) + 1, np.int64)
    rank[seen] = np.arange(len(seen))
    return rank[known], (seen - 1).tolist()


def _statuses(tick: TickRecord) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return moved pages and ``MoveStatus`` of each move; all pending where the stage failed."""
    outcome = tick.outcome
    if outcome is None:
        nothing = np.zeros(len(tick.plan), np.int64)
        return nothing, nothing + MoveStatus.PENDING
    status = outcome.status.astype(np.int64)
    return outcome.moved_pages.astype(np.int64) * (not outcome.dry_run), status


def _targets(tick: TickRecord, counters: Counters) -> npt.NDArray[np.int64]:
    """Return the row of each move's target in the counters, -1 for an unknown process."""
    rows = {process: row for row, process in enumerate(counters.followed)}
    of_process = [
        int(counters.target_row[rows[process]]) if process in rows else -1
        for process in tick.plan.processes
    ]
    return np.array(of_process, np.int64)[tick.plan.process]
