"""Samples whose ``pid`` is a pid: finding the tracked process of each row.

The kernel puts the process's id (tgid) beside the thread's into a sample, so that threads need
no map. Costs a binary search a row, and one read of /proc/PID/stat a call for each process that
has rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hmd.machine.process import PROC, ProcessId, replaced
from hmd.sample.ring import Columns


class TrackedPids:
    """The ``Attribution`` of perf samples."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self.track(())

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Find these processes and no others."""
        self._processes = tuple(processes)
        pids = np.array([process.pid for process in processes], np.uint32)
        self._order = np.argsort(pids, kind="stable").astype(np.int32)
        self._pids = pids[self._order]

    def index(self, columns: Columns) -> npt.NDArray[np.int32]:
        """Return each row's process; -1 where it is not tracked, or its pid is another's by now.

        What a process did before it ended is its own.
        """
        pids = columns.pid[: columns.count]
        if not self._processes:
            return np.full(len(pids), -1, np.int32)
        place = np.minimum(np.searchsorted(self._pids, pids), len(self._pids) - 1)
        process = np.where(self._pids[place] == pids, self._order[place], np.int32(-1))
        for index in np.flatnonzero(np.bincount(process + 1)[1:]):
            if replaced(self._processes[index], self._proc):
                process[process == index] = -1
        return process
