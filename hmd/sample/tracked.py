"""The processes that a sampler follows, and turning drained columns into a batch of their rows.

Takes columns whose ``pid`` (or, by the emulated sampler, whose address space) was resolved to a
tracked process; gives an ``AccessBatch``. Costs about 50 ns a row, and one read of
/proc/PID/stat a read for each process that has rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hmd.machine.process import PROC, ProcessId, alive
from hmd.sample.batch import AccessBatch
from hmd.sample.ring import Columns

USER_END = np.uint64(1 << 56)
"""No user address lies above (x86-64 with five levels; Documentation/arch/x86/x86_64/mm.rst)."""


class Tracked:
    """A set of processes, in the caller's order, that columns of pids are looked up in."""

    __slots__ = ("_order", "_pids", "_proc", "processes")

    def __init__(self, processes: Sequence[ProcessId] = (), proc: Path = PROC) -> None:
        self.processes = tuple(processes)
        self._proc = proc
        pids = np.array([process.pid for process in self.processes], np.uint32)
        self._order = np.argsort(pids, kind="stable").astype(np.int32)
        self._pids = pids[self._order]

    def __len__(self) -> int:
        return len(self.processes)

    def index(self, pids: npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
        """Return the index of each pid's process, -1 where it is not tracked; shape ``(n,)``."""
        if not len(self._pids):
            return np.full(len(pids), -1, np.int32)
        place = np.minimum(np.searchsorted(self._pids, pids), len(self._pids) - 1)
        return np.where(self._pids[place] == pids, self._order[place], np.int32(-1))

    def drop_gone(self, process: npt.NDArray[np.int32]) -> None:
        """Set to -1, in place, the rows of processes that run no more.

        A sample can outlive its process, and its pid can have been given to another since.
        """
        for index in np.unique(process[process >= 0]):
            if not alive(self.processes[index], self._proc):
                process[process == index] = -1


def user_rows(address: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Return which addresses can be a user's: not 0, not the kernel's."""
    rows: npt.NDArray[np.bool_] = (address != 0) & (address < USER_END)
    return rows


def to_batch(columns: Columns, process: npt.NDArray[np.int32], ns_per_weight: float) -> AccessBatch:
    """Return copies of the rows whose ``process`` is not -1; the columns can be reused."""
    rows = np.flatnonzero(process >= 0)
    weight = columns.weight[rows]
    if ns_per_weight != 1.0:
        weight = np.minimum(weight * ns_per_weight, np.iinfo(np.uint32).max).astype(np.uint32)
    return AccessBatch(
        process=process[rows],
        address=columns.address[rows],
        kind=columns.kind[rows],
        cpu=columns.cpu[rows],
        time_ns=columns.time_ns[rows],
        weight_ns=weight,
        period=columns.period[rows],
    )
