# SPDX-License-Identifier: MIT
"""Waiting for the exit of processes through pidfds.

A pidfd (pidfd_open(2), Linux 5.3) becomes readable when its process exits, before its parent reaps
it. ``ProcessExit`` waits for one process, ``ExitRecord`` calls a function as soon as it exits,
``ExitWatch`` asks for many processes with one poll(2) and costs a descriptor per process.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Generic, TypeVar

from hmd.linux.own_process import max_pidfds
from hmd.linux.procfs import PROC, ProcessId, alive

T = TypeVar("T")

STOP_S: Final = 0.2
"""Longest time that leaving an ``ExitRecord`` takes while the process runs."""


class ProcessExit:
    """The exit of one process; ``close`` frees the descriptor."""

    def __init__(self, pid: int) -> None:
        """Open a pidfd. Raises OSError: ESRCH for no such process, EINVAL for a thread."""
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)

    def wait(self, timeout_s: float) -> bool:
        """Return whether the process has exited, after waiting for at most ``timeout_s``."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_s) * 1000))

    def close(self) -> None:
        """Free the descriptor; may be called twice."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class ExitRecord(Generic[T]):
    """What ``read`` returned at the moment when a process exited; a context manager with a thread.

    For a caller that is busy for longer than the moment may be off: in the emulated machine,
    reading a large process takes more than a tenth of a short run. What /proc has of the process
    must stay until the context ends.
    """

    def __init__(self, exited: Callable[[float], bool], read: Callable[[], T]) -> None:
        self._exited, self._read = exited, read
        self._done = threading.Event()
        self._stopped = False
        self._value: T | None = None
        self._thread = threading.Thread(target=self._run, name="hmd-exit", daemon=True)

    def __enter__(self) -> ExitRecord[T]:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopped = True
        self._thread.join()

    def wait(self, timeout_s: float) -> T | None:
        """Return the value once the process has exited; None where it still runs after the wait."""
        return self._value if self._done.wait(timeout_s) else None

    def _run(self) -> None:
        while not self._stopped:
            if self._exited(STOP_S):
                self._value = self._read()
                self._done.set()
                return


class ExitWatch:
    """The exits of a set of processes; ``close`` frees the descriptors.

    A process without a pidfd (old kernel, fixture tree, more than ``descriptors``, ``max_pidfds()``
    if None) is looked up in /proc by its start time instead.
    """

    def __init__(self, proc: Path = PROC, descriptors: int | None = None) -> None:
        self._proc = proc
        self._max_pidfds = max_pidfds() if descriptors is None else descriptors
        self._real = proc == PROC
        self._fds: dict[int, ProcessId] = {}
        self._watched: dict[ProcessId, int | None] = {}
        self._without_fd: set[ProcessId] = set()
        # Costs what has exited, not what is watched; open while there is a process.
        self._epoll: select.epoll | None = None

    def watch(
        self, processes: Iterable[ProcessId], same: Callable[[ProcessId], bool] = alive
    ) -> None:
        """Replace the watched set; ``same`` says whether the pid of a process is still its own."""
        wanted = set(processes)
        for process in self._watched.keys() - wanted:
            self._forget(process)
        for process in wanted - self._watched.keys():
            fd = self._watched[process] = self._open(process, same)
            if fd is None:
                self._without_fd.add(process)
        if not self._fds and self._epoll is not None:
            self._epoll.close()
            self._epoll = None

    def exited(self) -> frozenset[ProcessId]:
        """Return the watched processes that have exited, and stop watching them. Never blocks."""
        found = self._epoll.poll(0, max(1, len(self._fds))) if self._epoll is not None else []
        gone = {self._fds[fd] for fd, _ in found}
        # First: their descriptors may be those that the look-ups in /proc need.
        for process in gone:
            self._forget(process)
        for process in tuple(self._without_fd):
            try:
                runs = alive(process, self._proc)
            except OSError:
                break  # asked again at the next call
            if not runs:
                self._forget(process)
                gone.add(process)
        return frozenset(gone)

    def runs(self, process: ProcessId) -> bool:
        """Return whether a pidfd is known to be the process's and had not reported its exit."""
        return self._watched.get(process) is not None

    def close(self) -> None:
        """Stop watching all; may be called twice."""
        self.watch(())

    def _open(self, process: ProcessId, same: Callable[[ProcessId], bool]) -> int | None:
        if not self._real or len(self._fds) >= self._max_pidfds:
            return None
        try:
            if self._epoll is None:
                self._epoll = select.epoll()
            fd = os.pidfd_open(process.pid)
        except OSError:
            return None  # exited, ENOSYS or EMFILE: looked up in /proc
        # Opened by pid: only now is it certain that the pid has not been given to another.
        if not same(process):
            os.close(fd)
            return None
        self._epoll.register(fd, select.EPOLLIN)
        self._fds[fd] = process
        return fd

    def _forget(self, process: ProcessId) -> None:
        fd = self._watched.pop(process)
        self._without_fd.discard(process)
        if fd is None or self._epoll is None:
            return
        self._epoll.unregister(fd)
        del self._fds[fd]
        with contextlib.suppress(OSError):
            os.close(fd)
