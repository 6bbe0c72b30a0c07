# SPDX-License-Identifier: MIT
"""The moves of the last ticks, in two forms.

``MoveJournal`` keeps single moves (about 40 bytes each) and says which pages of a range of
addresses moved lately, and what else moved then; about 50 ns per move. ``RecentMoves`` sums each
tick up as a few flows, a target's pages from one node to another, for the status; 80 ns per move.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Topology
from hmd.metrics.counters import Counters
from hmd.metrics.status import MAX_FLOWS, MAX_TICKS_KEPT, MoveFlow, TickMoves
from hmd.metrics.tick_record import TickRecord
from hmd.migrate.status import MoveOutcome, MoveStatus
from hmd.policy.plan import Plan

ROWS: Final = 1 << 16
"""Moves that are kept; of a tick with more, the first."""

ANSWERED: Final = 8
"""Moves in an answer, the latest first."""


@dataclass(frozen=True, slots=True)
class PastMove:
    """A move of base ``pages``, ``rate`` accesses per second and page then, at ``now_s``.

    ``others`` are the pages that moved the other way in the same tick, ``others_rate`` their mean
    rate: what a promotion displaced, or what displaced a demoted page.
    """

    now_s: float
    from_node: int
    to_node: int
    pages: int
    rate: float
    promoted: bool
    others: int
    others_rate: float


@dataclass(frozen=True, slots=True)
class _MovedPlan:
    """The moves of a tick that were executed."""

    now_s: float
    plan: Plan
    latency_ns: tuple[float, ...]

    def past_move(self, row: int, up: npt.NDArray[np.bool_]) -> PastMove:
        """Return one move; ``up`` says of each whether it was a promotion."""
        plan = self.plan
        others = plan.take(np.flatnonzero(up != up[row]))
        return PastMove(
            self.now_s,
            int(plan.from_node[row]),
            int(plan.to_node[row]),
            int(plan.pages[row]),
            float(plan.heat[row]),
            bool(up[row]),
            int(others.pages.sum()),
            float(others.heat.mean()) if len(others) else 0.0,
        )


class MoveJournal:
    """Keeps at most ``ROWS`` moves; for the loop's thread."""

    def __init__(self) -> None:
        self._ticks: deque[_MovedPlan] = deque()
        self._rows = 0

    def add(self, tick: TickRecord, topology: Topology) -> None:
        """Keep what a tick moved."""
        outcome = tick.outcome
        if outcome is None or outcome.dry_run:
            return
        rows = np.flatnonzero(outcome.moved_pages > 0)[:ROWS]
        if not len(rows):
            return
        self._ticks.append(_MovedPlan(tick.now_s, tick.plan.take(rows), topology.latency_ns))
        self._rows += len(rows)
        while self._rows > ROWS:
            self._rows -= len(self._ticks.popleft().plan)

    def moves(self, process: ProcessId, begin: int, end: int) -> list[PastMove]:
        """Return the last moves of a process's pages in a range of addresses, latest first."""
        found: list[PastMove] = []
        for tick in reversed(self._ticks):
            plan = tick.plan
            if process not in plan.processes:
                continue
            own = plan.process == plan.processes.index(process)
            stop = plan.address + plan.pages.astype(np.uint64) * np.uint64(PAGE_BYTES)
            inside = own & (plan.address < np.uint64(end)) & (stop > np.uint64(begin))
            latency = np.array([*tick.latency_ns, 0.0])
            up = latency[plan.to_node] < latency[plan.from_node]
            rows = np.flatnonzero(inside)[: ANSWERED - len(found)]
            found += [tick.past_move(row, up) for row in rows.tolist()]
            if len(found) >= ANSWERED:
                break
        return found


class RecentMoves:
    """The moves of the last ``MAX_TICKS_KEPT`` ticks that planned any."""

    def __init__(self) -> None:
        self._ticks: deque[TickMoves] = deque(maxlen=MAX_TICKS_KEPT)

    def add(self, tick: TickRecord, counters: Counters, uptime_s: float) -> None:
        """Record what a tick moved, after the counters have taken it."""
        for plan, outcome in ((tick.plan, tick.outcome), (tick.dry_plan, tick.dry_outcome)):
            if plan is None or not len(plan):
                continue
            dry_run = outcome is not None and outcome.dry_run
            planned = int(plan.pages.sum())
            flows = _flows(plan, outcome, counters)
            self._ticks.append(TickMoves(counters.ticks, uptime_s, dry_run, planned, flows))

    def latest(self) -> tuple[TickMoves, ...]:
        """Return the moves of each tick, oldest first."""
        return tuple(self._ticks)


def _flows(plan: Plan, outcome: MoveOutcome | None, counters: Counters) -> tuple[MoveFlow, ...]:
    """Return the flows with most planned pages, at most ``MAX_FLOWS``."""
    pages = plan.pages.astype(np.int64)
    if outcome is None:  # the stage failed
        moved, status = np.zeros_like(pages), np.full_like(pages, MoveStatus.PENDING)
    else:
        moved = outcome.moved_pages.astype(np.int64) * (not outcome.dry_run)
        status = outcome.status.astype(np.int64)
    slot = counters.table.slots_of(plan.processes)
    target_row = np.append(counters.target_row, -1)[slot][plan.process]
    parts = [_rank(column) for column in (target_row, plan.from_node, plan.to_node)]
    (target, targets), (source, sources), (goal, goals) = parts
    flow = (target * len(sources) + source) * len(goals) + goal
    total = np.bincount(flow, pages)
    done = np.bincount(flow, moved)
    heat_sum = np.bincount(flow, pages * plan.heat)
    left = np.bincount(flow * len(MoveStatus) + status, pages - moved, len(total) * len(MoveStatus))
    left = left.reshape(len(total), len(MoveStatus))
    found = []
    for number in np.argsort(-total, kind="stable")[:MAX_FLOWS].tolist():
        if not total[number]:
            break
        rest, to = divmod(number, len(goals))
        row, origin = divmod(rest, len(sources))
        reasons = enumerate(left[number].tolist())
        found.append(
            MoveFlow(
                counters.names[targets[row]] if targets[row] >= 0 else "",
                sources[origin],
                goals[to],
                int(total[number]),
                int(done[number]),
                float(heat_sum[number] / total[number]),
                {MoveStatus(code).label: int(n) for code, n in reasons if n > 0},
            )
        )
    return tuple(found)


def _rank(column: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Return each number (-1 or more) as its rank among those that occur, and these, ascending."""
    known = column.astype(np.int64) + 1
    seen = np.flatnonzero(np.bincount(known))
    rank = np.zeros(int(seen[-1]) + 1, np.int64)
    rank[seen] = np.arange(len(seen))
    return rank[known], (seen - 1).tolist()
