"""Processes whose cpuset keeps their pages off the nodes that plans move them to.

Takes the outcome of each tick's moves; gives a mask of the processes that policies leave alone. The
kernel refuses all of their moves to such a node (cpuset(7), move_pages(2): EACCES), and each plan
would make room for them again. A refusal makes a process wait for ``FIRST_WAIT_S``, and each
further one twice as long, up to ``LONGEST_WAIT_S``: a cpuset may change at any time. Costs
microseconds per tick while no process is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.decide.plan import Plan
from hmd.machine.process_id import ProcessId
from hmd.migrate import MoveOutcome, MoveStatus

FIRST_WAIT_S: Final = 30.0
LONGEST_WAIT_S: Final = 3600.0


class ConfinedProcesses:
    """Remembers refused processes, with the end and the length of their wait, in seconds."""

    def __init__(self) -> None:
        self._waits: dict[ProcessId, tuple[float, float]] = {}

    def observe(self, plan: Plan, outcome: MoveOutcome, now_s: float) -> None:
        """Take the outcome of a plan's moves; ``now_s`` is the time of its tick."""
        refused = np.unique(plan.process[outcome.status == MoveStatus.CPUSET])
        for slot in refused.tolist():
            process = plan.processes[slot]
            _, wait_s = self._waits.get(process, (0.0, FIRST_WAIT_S / 2))
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            self._waits[process] = now_s + wait_s, wait_s

    def mask(self, processes: Sequence[ProcessId], now_s: float) -> npt.NDArray[np.bool_]:
        """Return which processes wait, shape ``(processes,)``; forget those that are not there."""
        if not self._waits:
            return np.zeros(len(processes), np.bool_)
        self._waits = {p: self._waits[p] for p in processes if p in self._waits}
        ends_s = (self._waits.get(process, (now_s, 0.0))[0] for process in processes)
        return np.fromiter((end_s > now_s for end_s in ends_s), np.bool_, len(processes))
