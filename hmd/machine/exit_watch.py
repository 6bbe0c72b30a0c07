"""Noticing that processes have exited, without reading /proc.

A pidfd (pidfd_open(2), Linux 5.3) becomes readable when its process exits; one poll asks for all
of them. Costs a descriptor a process. Processes that got none (old kernel, descriptor limit) are
asked for by their start time instead.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterable
from pathlib import Path

from hmd.machine.process_id import PROC, ProcessId, alive


class ExitWatch:
    """The set of processes whose exit is awaited. ``close`` frees the descriptors."""

    def __init__(self, proc: Path = PROC) -> None:
        """Watch nothing yet; pidfds are only used where ``proc`` is the real /proc."""
        self._proc = proc
        self._real = proc == PROC
        self._fds: dict[int, ProcessId] = {}
        self._watched: dict[ProcessId, int | None] = {}
        self._poll = select.poll()

    def watch(self, processes: Iterable[ProcessId]) -> None:
        """Replace the watched set; processes that stay keep their descriptor."""
        wanted = set(processes)
        for process in self._watched.keys() - wanted:
            self._forget(process)
        for process in wanted - self._watched.keys():
            self._watched[process] = self._open(process)

    def exited(self) -> frozenset[ProcessId]:
        """Return the watched processes that are gone, and stop watching them. Never blocks."""
        gone = {self._fds[fd] for fd, _ in self._poll.poll(0)}
        gone |= {p for p, fd in self._watched.items() if fd is None and not alive(p, self._proc)}
        for process in gone:
            self._forget(process)
        return frozenset(gone)

    def close(self) -> None:
        """Stop watching all; may be called twice."""
        self.watch(())

    def _open(self, process: ProcessId) -> int | None:
        if not self._real:
            return None
        try:
            fd = os.pidfd_open(process.pid)
        except OSError:
            return None  # gone, ENOSYS or EMFILE: asked for by start time
        # Opened by pid: only now is it certain that the pid has not been given to another.
        if not alive(process):
            os.close(fd)
            return None
        self._poll.register(fd, select.POLLIN)
        self._fds[fd] = process
        return fd

    def _forget(self, process: ProcessId) -> None:
        fd = self._watched.pop(process)
        if fd is None:
            return
        self._poll.unregister(fd)
        del self._fds[fd]
        with contextlib.suppress(OSError):
            os.close(fd)
