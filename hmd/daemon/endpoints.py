"""The daemon's endpoints: status socket and metrics, opened again where they change."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path

from hmd.config import Config
from hmd.control.status_socket import AdminHandlers, Queries, StatusSocket
from hmd.daemon.instance_lock import InstanceLock
from hmd.observe.health import TickHealth
from hmd.observe.metrics import MetricsServer
from hmd.observe.snapshot import Snapshot


class _Status:
    """A status socket with its instance lock."""

    def __init__(self, path: Path, queries: Queries, handlers: AdminHandlers) -> None:
        self._lock = InstanceLock(path)
        try:
            self._socket = StatusSocket(path, queries, handlers)
        except BaseException:
            self._lock.release()
            raise
        self.path = path

    def close(self) -> None:
        self._socket.close()
        self._lock.release()


class Endpoints:
    """The open endpoints; none before the first ``open``."""

    def __init__(
        self,
        queries: Queries,
        handlers: AdminHandlers,
        snapshot: Callable[[], Snapshot],
        health: Callable[[], TickHealth],
    ) -> None:
        """Serve queries and admin handlers on the socket, snapshot and health over HTTP."""
        self._queries, self._handlers = queries, handlers
        self._snapshot, self._health = snapshot, health
        self._status: _Status | None = None
        self._metrics: MetricsServer | None = None

    def open(self, config: Config) -> None:
        """Open what the configuration has, close what it no longer has.

        Raises ``HmdError``; the open endpoints then stay as they were.
        """
        observe = config.observe
        status, metrics = self._status, self._metrics
        with ExitStack() as undo:
            if status is None or status.path != observe.socket:
                status = _Status(observe.socket, self._queries, self._handlers)
                undo.callback(status.close)
            if observe.metrics == "off":
                metrics = None
            elif metrics is None or metrics.address != observe.metrics:
                metrics = self._serve_metrics(observe.metrics, observe.metrics_names)
            if metrics is not None:
                metrics.names = observe.metrics_names
            undo.pop_all()
        if self._status is not status and self._status is not None:
            self._status.close()
        if self._metrics is not metrics and self._metrics is not None:
            self._metrics.close()
        self._status, self._metrics = status, metrics

    def _serve_metrics(self, address: str, names: Collection[str]) -> MetricsServer:
        """Return a server on another address than that of the open one; raises ``HmdError``.

        A port is bound once: the open server closes first where it has the same, and is opened
        again where the other one fails.
        """
        old = self._metrics
        if old is None or _port(old.address) != _port(address):
            return MetricsServer(address, self._snapshot, self._health, names)
        old.close()
        self._metrics = None
        try:
            return MetricsServer(address, self._snapshot, self._health, names)
        except BaseException:
            self._metrics = MetricsServer(old.address, self._snapshot, self._health, old.names)
            raise

    def close(self) -> None:
        """Close all."""
        if self._metrics is not None:
            self._metrics.close()
        if self._status is not None:
            self._status.close()
        self._metrics = self._status = None


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
