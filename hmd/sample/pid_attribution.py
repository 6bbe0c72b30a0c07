"""Attribution of samples that contain a pid: the tracked process of each row.

A sample contains the process's id (tgid) in addition to the thread's, so threads need no map. Costs
a few ns per row, and per call one read of /proc/PID/stat for each process that has rows.
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
        """Attribute samples to these processes only."""
        self._processes = tuple(processes)
        self._index = {process.pid: index for index, process in enumerate(self._processes)}

    def index(self, columns: RecordColumns) -> npt.NDArray[np.int32]:
        """Return each row's process; -1 if it is not tracked, or another process has its pid now.

        Samples of a process that has ended are still attributed to it.
        """
        pids, which = distinct(columns.pid[: columns.count])
        found = np.full(len(pids) + 1, -1, np.int32)  # the last for rows of too many pids
        for i, pid in enumerate(pids):
            index = self._index.get(pid, -1)
            if index >= 0 and not replaced(self._processes[index], self._proc):
                found[i] = index
        return found[which]
