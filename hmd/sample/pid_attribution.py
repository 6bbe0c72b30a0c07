"""Samples whose ``pid`` is a pid: finding the tracked process of each row.

The kernel puts the process's id (tgid) beside the thread's into a sample, so that threads need
no map. Costs a few ns a row, and one read of /proc/PID/stat a call for each process that has rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hmd.machine.process_id import PROC, ProcessId, replaced
from hmd.sample.perf_ring import RecordColumns, distinct


class TrackedPids:
    """The ``Attribution`` of perf samples."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self.track(())

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Find these processes and no others."""
        self._processes = tuple(processes)
        self._index = {process.pid: index for index, process in enumerate(self._processes)}

    def index(self, columns: RecordColumns) -> npt.NDArray[np.int32]:
        """Return each row's process; -1 where it is not tracked, or its pid is another's by now.

        What a process did before it ended is its own.
        """
        pids, which = distinct(columns.pid[: columns.count])
        found = np.full(len(pids) + 1, -1, np.int32)  # the last for rows of too many pids
        for i, pid in enumerate(pids):
            index = self._index.get(pid, -1)
            if index >= 0 and not replaced(self._processes[index], self._proc):
                found[i] = index
        return found[which]
