"""Prometheus metrics of the daemon, made from its last snapshot at each scrape, and /healthz.

Names follow prometheus.io/docs/practices/naming: ``hmd_``, base units, ``_total`` for counters. The
number of series is bounded by tiers, nodes and (at most 64) targets; there is none per pid.
The machine's own memory is left to node_exporter. /healthz answers 200 while ticks end in time, 503
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from wsgiref.simple_server import WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from hmd.errors import HmdError, os_error
from hmd.observe.families import FAMILIES
from hmd.observe.health import TickHealth
from hmd.observe.snapshot import Snapshot

HEALTH_PATH = "/healthz"


class SnapshotCollector(Collector):
    """Turns the daemon's last snapshot into metric families."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        """Call ``snapshot`` at each scrape; it must not block."""
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        """Return the families without samples, so that registering collects nothing."""
        for metric in families(self._snapshot()):
            metric.samples.clear()
            yield metric

    def collect(self) -> Iterable[Metric]:
        """Return the families with their present values."""
        return families(self._snapshot())


def families(now: Snapshot) -> Iterator[Metric]:
    """Yield every metric family of hmd."""
    for family in FAMILIES:
        yield family.metric(now)


class MetricsServer:
    """Serves metrics and health over HTTP, in threads of its own, until ``close``."""

    def __init__(
        self, address: str, snapshot: Callable[[], Snapshot], health: Callable[[], TickHealth]
    ) -> None:
        """Listen on ``ADDRESS:PORT``. Raises ``HmdError`` where the address cannot be bound."""
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
        server.set_app(_with_health(make_wsgi_app(registry), health))
        self._server: WSGIServer = server
        self._thread = thread

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _with_health(metrics: WSGIApplication, health: Callable[[], TickHealth]) -> WSGIApplication:
    """Return an application that answers /healthz itself and leaves the rest to ``metrics``."""

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != HEALTH_PATH:
            return metrics(environ, start_response)
        now = health()
        status = "200 OK" if now.healthy else "503 Service Unavailable"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{now.text}\n".encode()]

    return application
