# SPDX-License-Identifier: MIT
"""The metrics, made from the last status: served when they are scraped, or written to a file.

A status is made into text once per format, however often it is scraped. /healthz answers 200 while
ticks end in time, 503 otherwise. The machine's own memory is left to node_exporter.
"""

from __future__ import annotations

import gzip
import logging
import os
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from hmd.base.atomic_file import finished_file
from hmd.base.errors import HmdError, os_error
from hmd.metrics.definitions import FAMILIES
from hmd.metrics.status import Status, TickHealth
from hmd.serve.bounded_http import (
    BoundedHttpServer,
    HttpRequest,
    HttpResponse,
    names_this_machine,
    text_response,
)

FILE_PERIOD_S: Final = 15.0
"""Time between two writes of the metrics to a file: a usual scrape interval."""

METRICS_PATHS = ("/metrics", "/")
HEALTH_PATH = "/healthz"
_log = logging.getLogger(__name__)

FORMATS: Final = {
    "application/openmetrics-text": ("", "1", "1.0", "1.0.0"),
    "text/plain": ("1", "1.0", "1.0.0"),
}
"""Media types that a scraper may ask for in version 1.0.0, and how it names that version."""


class StatusCollector(Collector):
    """Turns the daemon's last status into metric families; ``latest`` must not block."""

    def __init__(self, latest: Callable[[], Status]) -> None:
        self._latest = latest

    def collect(self) -> Iterable[Metric]:
        """Return the families with their present values."""
        return families(self._latest())


def families(now: Status) -> Iterator[Metric]:
    """Yield every metric family of hmd."""
    for family in FAMILIES:
        yield family.metric(now)


def accepted_format(accept: str) -> str:
    """Return the first media type of an Accept header that is in ``FORMATS``, with version 1.0.0.

    "" is for the text format of any other client: what is rendered and kept is of three formats,
    whatever clients send.
    """
    for one in accept.split(","):
        media_type, *parameters = (part.strip() for part in one.split(";"))
        versions = [p.removeprefix("version=") for p in parameters if p.startswith("version=")]
        if (versions or [""])[0] in FORMATS.get(media_type, ()):
            return f"{media_type}; version=1.0.0"
    return ""


class MetricsServer:
    """Serves metrics and health over HTTP, in a thread of its own, until ``close``."""

    def __init__(
        self,
        address: str,
        latest: Callable[[], Status],
        health: Callable[[], TickHealth],
        names: Collection[str] = (),
    ) -> None:
        """Listen on ``ADDRESS:PORT``; scrapers address it by number or by one of ``names``.

        Raises ``HmdError`` where the address cannot be bound.
        """
        self.address, self.names = address, names
        self._latest, self._health = latest, health
        self._rendered: dict[tuple[str, bool], bytes] = {}
        self._now = latest()
        self._registry = CollectorRegistry()
        self._registry.register(StatusCollector(lambda: self._now))
        ProcessCollector(registry=self._registry)
        host, _, port = address.rpartition(":")
        try:
            self._server = BoundedHttpServer(host.strip("[]"), int(port), self._answer)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise os_error(
                error,
                f"cannot serve metrics on {address}: {reason}; "
                "set observe.metrics to another ADDRESS:PORT, or to off",
                HmdError,
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="hmd-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, request: HttpRequest) -> HttpResponse:
        host = request.headers.get("host")
        # Browsers always send it; probes of HTTP/1.0 may not.
        if host is not None and not names_this_machine(host, (socket.gethostname(), *self.names)):
            text = "ask for an address, or add the name to observe.metrics_names\n"
            return text_response(HTTPStatus.MISDIRECTED_REQUEST, text)
        if request.path == HEALTH_PATH:
            now = self._health()
            status = HTTPStatus.OK if now.healthy else HTTPStatus.SERVICE_UNAVAILABLE
            return text_response(status, f"{now.text}\n")
        if request.path not in METRICS_PATHS:
            return text_response(HTTPStatus.NOT_FOUND, "see /metrics and /healthz\n")
        return self._metrics(request)

    def _metrics(self, request: HttpRequest) -> HttpResponse:
        """Return the last status as text, made once for all scrapes of it."""
        now = self._latest()
        if now is not self._now:
            self._now = now
            self._rendered.clear()
        encode, media_type = choose_encoder(accepted_format(request.headers.get("accept", "")))
        packed = "gzip" in request.headers.get("accept-encoding", "").lower()
        body = self._rendered.get((media_type, packed))
        if body is None:
            body = encode(self._registry)
            body = gzip.compress(body, compresslevel=1) if packed else body
            self._rendered[media_type, packed] = body
        headers = {"Content-Type": media_type}
        if packed:
            headers["Content-Encoding"] = "gzip"
        return HttpResponse(HTTPStatus.OK, body, headers)


class MetricsFile:
    """Writes the metrics to a file every ``FILE_PERIOD_S``, in its own thread, until ``close``.

    node_exporter's textfile collector serves such files, with its own TLS and passwords. It has
    ``process_*`` metrics of itself, so that the file has none of hmd's.
    """

    def __init__(self, path: Path, latest: Callable[[], Status]) -> None:
        """Write the file once; raises ``HmdError`` where that fails."""
        self.path = path
        self._registry = CollectorRegistry()
        self._registry.register(StatusCollector(latest))
        self._write()
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._write_until_closed, name="hmd-metrics-file", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop writing and remove the file, since values of a daemon that is gone would stay."""
        self._closing.set()
        self._thread.join(2.0)  # longer where the file system does not answer
        self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        with finished_file(self.path) as file:
            file.write(generate_latest(self._registry))
            os.fchmod(file.fileno(), 0o644)

    def _write_until_closed(self) -> None:
        failed = False
        while not self._closing.wait(FILE_PERIOD_S):
            try:
                self._write()
                failed = False
            except HmdError as error:
                if not failed:
                    _log.warning("observe.metrics_file: %s", error)
                failed = True
