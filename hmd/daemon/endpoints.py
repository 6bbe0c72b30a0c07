# SPDX-License-Identifier: MIT
"""The daemon's endpoints: status socket, metrics and their file, opened again where they change."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Collection
from pathlib import Path

from hmd.base.errors import HmdError, os_error
from hmd.config import Config
from hmd.control.status_socket import AdminHandlers, Queries, StatusSocket
from hmd.metrics.exporter import MetricsFile, MetricsServer
from hmd.metrics.status import Status, TickHealth


class InstanceLock:
    """A lock file next to the status socket: one daemon per socket.

    Held until ``release``. The kernel releases flock(2) however the process ends, so that after a
    kill -9 the next start finds the lock free, and may remove the socket that was left behind.
    """

    def __init__(self, socket: Path) -> None:
        """Take the lock, creating the folder of the socket (but not its parents) if need be.

        Raises ``HmdError`` where another daemon holds it or the folder cannot be used.
        """
        if not socket.name:
            raise HmdError(f"{socket} is a folder: set observe.socket to the path of a file")
        path = socket.with_name(socket.name + ".lock")
        try:
            socket.parent.mkdir(mode=0o755, exist_ok=True)
            self._fd = _open_lock(path)
        except OSError as error:
            raise os_error(
                error,
                f"cannot use {socket.parent} for the status socket: {error.strerror}; "
                "run as root, or set observe.socket to a path of yours",
                HmdError,
            ) from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            raise HmdError(
                f"another hmd{f' (pid {holder})' if holder else ''} already serves {socket}: "
                "stop it, or set observe.socket to another path"
            ) from None
        with contextlib.suppress(OSError):  # opened for reading only
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock; the file stays, since to remove it would race with the next holder."""
        with contextlib.suppress(OSError):
            os.close(self._fd)
        self._fd = -1


def _open_lock(path: Path) -> int:
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags | os.O_RDWR | os.O_CREAT, 0o644)
    except PermissionError:
        if not path.exists():
            raise
        # Left by another user's daemon, as by root's before the service: it can still be locked.
        return os.open(path, flags | os.O_RDONLY)


class Endpoints:
    """The open endpoints; none before the first ``open``."""

    def __init__(
        self,
        queries: Queries,
        handlers: AdminHandlers,
        snapshot: Callable[[], Status],
        health: Callable[[], TickHealth],
    ) -> None:
        """Serve queries and admin handlers on the socket, snapshot and health over HTTP."""
        self._queries, self._handlers = queries, handlers
        self._snapshot, self._health = snapshot, health
        self._status: StatusSocket | None = None
        self._lock: InstanceLock | None = None
        self._metrics: MetricsServer | None = None
        self._file: MetricsFile | None = None

    def open(self, config: Config) -> None:
        """Open what the configuration has, close what it no longer has.

        Raises ``HmdError``; the open endpoints then stay as they were.
        """
        observe, status, lock, metrics = config.observe, self._status, self._lock, self._metrics
        file = self._file
        with contextlib.ExitStack() as undo:
            if status is None or status.path != observe.socket:
                lock = InstanceLock(observe.socket)
                undo.callback(lock.release)
                status = StatusSocket(observe.socket, self._queries, self._handlers)
                undo.callback(status.close)
            if observe.metrics_file is None:
                file = None
            elif file is None or file.path != observe.metrics_file:
                file = MetricsFile(observe.metrics_file, self._snapshot)
                undo.callback(file.close)
            if observe.metrics == "off":
                metrics = None
            elif metrics is None or metrics.address != observe.metrics:
                metrics = self._serve_metrics(observe.metrics, observe.metrics_names)
            if metrics is not None:
                metrics.names = observe.metrics_names
            undo.pop_all()
        if status is not self._status:
            self._close_status()
        if metrics is not self._metrics and self._metrics is not None:
            self._metrics.close()
        if file is not self._file and self._file is not None:
            self._file.close()
        self._status, self._lock, self._metrics, self._file = status, lock, metrics, file

    def _serve_metrics(self, address: str, names: Collection[str]) -> MetricsServer:
        """Return a server on another address than that of the open one; raises ``HmdError``.

        A port is bound once: the open server closes first where it has the same, and is opened
        again where the other one fails.
        """
        old = self._metrics
        if old is None or old.address.rpartition(":")[2] != address.rpartition(":")[2]:
            return MetricsServer(address, self._snapshot, self._health, names)
        old.close()
        self._metrics = None
        try:
            return MetricsServer(address, self._snapshot, self._health, names)
        except BaseException:
            self._metrics = MetricsServer(old.address, self._snapshot, self._health, old.names)
            raise

    def _close_status(self) -> None:
        if self._status is not None and self._lock is not None:
            self._status.close()
            self._lock.release()

    def close(self) -> None:
        """Close all."""
        for one in (self._metrics, self._file):
            if one is not None:
                one.close()
        self._close_status()
        self._metrics = self._status = self._lock = self._file = None
