"""Prometheus metrics of the daemon, made from its last snapshot when they are asked for.

The names follow prometheus.io/docs/practices/naming: ``hmd_``, base units, ``_total`` for what
only grows. Series are bounded: by tiers, nodes and the (capped) names of targets, never by pid.
The machine's own memory is node_exporter's to tell, not ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from hmd.errors import HmdError, os_error
from hmd.observe.families import FAMILIES
from hmd.observe.snapshot import Snapshot


class SnapshotCollector(Collector):
    """Turns the daemon's last snapshot into metric families."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        """Ask ``snapshot`` at each scrape; it must not block."""
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        """Return the families without samples, so that registering collects nothing."""
        for metric in families(self._snapshot()):
            metric.samples.clear()
            yield metric

    def collect(self) -> Iterable[Metric]:
        """Return the families as they are now."""
        return families(self._snapshot())


def families(now: Snapshot) -> Iterator[Metric]:
    """Yield every metric family of hmd."""
    for family in FAMILIES:
        yield family.metric(now)


class MetricsServer:
    """Serves the metrics over HTTP, in threads of its own, until ``close``."""

    def __init__(self, address: str, snapshot: Callable[[], Snapshot]) -> None:
        """Listen on ``ADDRESS:PORT``. Raises ``HmdError`` where that is not to be had."""
        self.address = address
        host, _, port = address.rpartition(":")
        registry = CollectorRegistry()
        registry.register(SnapshotCollector(snapshot))
        try:
            server, thread = start_http_server(int(port), host.strip("[]"), registry)
        except OSError as error:
            raise os_error(
                error,
                f"cannot serve metrics on {address}: {error.strerror or error}; "
                "set observe.metrics to another ADDRESS:PORT, or to off",
                HmdError,
            ) from None
        self._server: WSGIServer = server
        self._thread = thread

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
