"""Descendants of a recorded process, including those that end between two reads of /proc.

Takes task records in order of time; gives processes with an identity and a name. A child inherits
its parent's name until its exec. Costs 150 bytes per process that may still have children.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from hmd.machine.process_id import PROC, ProcessId, identify
from hmd.sample.task_events import Forked, TaskEvents, TaskRecord

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class DescendantTracker:
    """The processes that descend from ``root``; without ``events`` none is found here."""

    def __init__(self, root: ProcessId, events: TaskEvents | None, proc: Path = PROC) -> None:
        self._events, self._proc = events, proc
        self._name: dict[int, str] = {root.pid: ""}
        self._ended: set[int] = set()
        self._unread: list[TaskRecord] = []

    def use(self, events: TaskEvents) -> None:
        """Go on with other rings; records of the last ones are not lost."""
        if self._events is not None:
            self._unread += self._events.read()
        self._events = events

    def born(self) -> tuple[ProcessId, ...]:
        """Return the processes that were forked since the last call, oldest first."""
        if self._events is None:
            return ()
        found: dict[int, ProcessId] = {}
        ended, self._ended = self._ended, set()
        records, self._unread = [*self._unread, *self._events.read()], []
        for record in records:
            if not isinstance(record, Forked):
                if record.pid in self._name:
                    self._name[record.pid] = record.name
            elif record.parent_pid in self._name:
                self._name[record.pid] = self._name[record.parent_pid]
                ended.discard(record.pid)  # the pid has been given to another
                process = identify(record.pid, self._proc)
                found[record.pid] = process or _ended(record)
        for pid in ended:  # their last forks were recorded before they ended
            self._name.pop(pid, None)
        return tuple(found.values())

    def forget(self, process: ProcessId) -> None:
        """Free what is known of a process that has ended, once its forks so far have been read."""
        self._ended.add(process.pid)

    def name(self, process: ProcessId) -> str:
        """Return the last recorded name of a process, empty if none was recorded."""
        return self._name.get(process.pid, "")


def _ended(forked: Forked) -> ProcessId:
    """Return the identity that a process had; its start time includes suspended time."""
    suspended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return ProcessId(forked.pid, (forked.time_ns + suspended_ns) * _TICKS_PER_S // 1_000_000_000)
