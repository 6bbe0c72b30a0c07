"""The journal of moves: which pages moved lately, from where to where, and what else moved then.

Takes ticks, keeps the moves of the last ones; answers for a range of addresses. At most ``ROWS``
moves are kept, in about 40 bytes each. About 50 ns per move.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

from hmd.decide.plan import Plan
from hmd.machine.nodes.topology import Topology
from hmd.machine.process_id import ProcessId
from hmd.observe.tick_record import TickRecord
from hmd.units import PAGE_BYTES

ROWS: Final = 1 << 16
"""Moves that are kept; of a tick with more, the first."""

ANSWERED: Final = 8
"""Moves in an answer, the latest first."""


@dataclass(frozen=True, slots=True)
class PastMove:
    """A move of 4 KiB ``pages``, ``rate`` accesses per second and page then, at ``now_s``.

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
class _TickMoves:
    now_s: float
    plan: Plan
    latency_ns: tuple[float, ...]


class MoveJournal:
    """Keeps moves; for the loop's thread."""

    def __init__(self) -> None:
        """Start empty."""
        self._ticks: deque[_TickMoves] = deque()
        self._rows = 0

    def add(self, tick: TickRecord, topology: Topology) -> None:
        """Keep what a tick moved."""
        outcome = tick.outcome
        if outcome is None or outcome.dry_run:
            return
        rows = np.flatnonzero(outcome.moved_pages > 0)[:ROWS]
        if not len(rows):
            return
        self._ticks.append(_TickMoves(tick.now_s, tick.plan.take(rows), topology.latency_ns))
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
            start = plan.address
            stop = start + plan.pages.astype(np.uint64) * np.uint64(PAGE_BYTES)
            inside = np.flatnonzero(own & (start < np.uint64(end)) & (stop > np.uint64(begin)))
            latency = np.array([*tick.latency_ns, 0.0])
            up = latency[plan.to_node] < latency[plan.from_node]
            for row in inside[: ANSWERED - len(found)].tolist():
                others = plan.take(np.flatnonzero(up != up[row]))
                found.append(
                    PastMove(
                        tick.now_s,
                        int(plan.from_node[row]),
                        int(plan.to_node[row]),
                        int(plan.pages[row]),
                        float(plan.heat[row]),
                        bool(up[row]),
                        int(others.pages.sum()),
                        float(others.heat.mean()) if len(others) else 0.0,
                    )
                )
            if len(found) >= ANSWERED:
                break
        return found
