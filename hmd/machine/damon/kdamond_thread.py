"""One of the kdamonds that hmd has claimed: switching it on and off, and its thread's CPU time.

Takes a kdamond whose files are set up; leaves one alone that another program has taken meanwhile.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from hmd.machine.damon.damon_sysfs import DamonError, Kdamonds
from hmd.machine.process_id import PROC, ProcessId, identify, read_stat

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class KdamondThread:
    """The kdamond ``index``; while it is off, changes by other programs are left alone."""

    def __init__(self, kdamonds: Kdamonds, index: int = 0, proc: Path = PROC) -> None:
        self._all, self._index, self._proc = kdamonds, index, proc
        self._identity = kdamonds.identity(index)
        self._pid: int | None = None
        self._thread: ProcessId | None = None
        self._ticks = self._past_ticks = 0

    @property
    def running(self) -> bool:
        """True while it runs; it ends with its last target."""
        on = self._pid is not None and self._all.is_on(self._index)
        return on and self._all.thread(self._index) == self._pid

    @property
    def cpu_s(self) -> float:
        """CPU time of the kernel's threads since the construction, in seconds."""
        if self._thread is not None:
            stat = read_stat(self._thread.pid, self._proc)
            if stat is not None and stat.process == self._thread:
                self._ticks = stat.cpu_ticks
        return (self._past_ticks + self._ticks) / _TICKS_PER_SECOND

    def check(self) -> None:
        """Raise DamonError, EBUSY, where another program has taken the kdamond."""
        if self._all.is_on(self._index) or self._all.identity(self._index) != self._identity:
            raise DamonError(errno.EBUSY, "the kdamond of hmd has been taken")

    def start(self) -> None:
        """Switch it on, as its files are set up. Raises DamonError."""
        self._all.write(f"{self._index}/state", "on")
        self._pid = self._all.thread(self._index)
        # In a container /proc may not show it.
        self._thread = identify(self._pid, self._proc) if self._pid else None

    def stop(self) -> None:
        """Switch it off, if it runs; waits for a sampling interval. Raises DamonError."""
        self._past_ticks = round(self.cpu_s * _TICKS_PER_SECOND)
        if self.running:
            self._all.switch_off(self._index)
        self._pid, self._thread, self._ticks = None, None, 0
