# SPDX-License-Identifier: MIT
"""The moves of the last ticks, in two forms.

``MoveJournal`` keeps single moves (about 40 bytes each) and says which pages of a range of
addresses moved lately, and what else moved then; about 50 ns per move. ``tick_moves`` sums each
tick up as a few flows, a target's pages from one node to another, for the status; 80 ns per move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Topology
from hmd.metrics.counters import Counters
from hmd.metrics.status import MAX_FLOWS, MoveFlow, TickMoves
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


class MoveJournal:
    """Keeps at most ``ROWS`` moves; for the loop's thread."""

    def __init__(self) -> None:
        self._ticks: deque[tuple[float, Plan, tuple[float, ...]]] = deque()
        self._rows = 0

    def add(self, tick: TickRecord, topology: Topology) -> None:
        """Keep what a tick moved."""
        outcome = tick.outcome
        if outcome is None or outcome.dry_run:
            return
        rows = np.flatnonzero(outcome.moved_pages > 0)[:ROWS]
        if not len(rows):
            return
        self._ticks.append((tick.now_s, tick.plan.take(rows), topology.latency_ns))
        self._rows += len(rows)
        while self._rows > ROWS:
            self._rows -= len(self._ticks.popleft()[1])

    def moves(self, process: ProcessId, begin: int, end: int) -> list[PastMove]:
        """Return the last moves of a process's pages in a range of addresses, latest first."""
        found: list[PastMove] = []
        for now_s, plan, latency_ns in reversed(self._ticks):
            if process not in plan.processes:
                continue
            own = plan.process == plan.processes.index(process)
            stop = plan.address + plan.pages.astype(np.uint64) * np.uint64(PAGE_BYTES)
            inside = own & (plan.address < np.uint64(end)) & (stop > np.uint64(begin))
            latency = np.array([*latency_ns, 0.0])
            up = latency[plan.to_node] < latency[plan.from_node]
            for row in np.flatnonzero(inside)[: ANSWERED - len(found)].tolist():
                others = plan.take(np.flatnonzero(up != up[row]))
                found.append(
                    PastMove(
                        now_s=now_s,
                        from_node=int(plan.from_node[row]),
                        to_node=int(plan.to_node[row]),
                        pages=int(plan.pages[row]),
                        rate=float(plan.heat[row]),
                        promoted=bool(up[row]),
                        others=int(others.pages.sum()),
                        others_rate=float(others.heat.mean()) if len(others) else 0.0,
                    )
                )
            if len(found) >= ANSWERED:
                break
        return found


def tick_moves(tick: TickRecord, counters: Counters, uptime_s: float) -> Iterator[TickMoves]:
    """Yield what a tick moved, once the counters have taken it: its plan and that of dry runs."""
    for plan, outcome in ((tick.plan, tick.outcome), (tick.dry_plan, tick.dry_outcome)):
        if plan is not None and len(plan):
            dry_run = outcome is not None and outcome.dry_run
            flows = _flows(plan, outcome, counters)
            yield TickMoves(counters.ticks, uptime_s, dry_run, int(plan.pages.sum()), flows)


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
