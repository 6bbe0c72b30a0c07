"""The page's HTTP server: a few fixed paths, read-only, for browsers on this machine.

The page polls ``/state.json`` once per second instead of receiving events: a slow or absent client
holds no thread and no queue, a reconnect is the next request, and an unchanged answer costs a 304.
One thread per connection, with one request and a deadline.
"""

from __future__ import annotations

import hashlib
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from socketserver import TCPServer
from typing import Any, Final
from urllib.parse import parse_qs

from hmd.errors import HmdError, os_error

MAX_CONNECTIONS: Final = 64
CONNECTION_S: Final = 10.0
HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")
"""Accepted names of the Host header; any port, so that ``ssh -L`` works."""

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
PAGE_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


@dataclass(frozen=True, slots=True)
class Content:
    """Content of a path; ``body`` takes the query's last value by name and returns None for 404."""

    media_type: str
    body: Callable[[Mapping[str, str]], bytes | None]


def page_contents() -> dict[str, Content]:
    """Return the files of the page by path."""
    folder = resources.files("hmd.dashboard") / "page"
    return {
        path: _fixed(media_type, (folder / name).read_bytes())
        for path, (name, media_type) in PAGE_FILES.items()
    }


def _fixed(media_type: str, body: bytes) -> Content:
    return Content(media_type, lambda _: body)


class PageServer(ThreadingHTTPServer):
    """Serves ``contents`` by path on a loopback address, ``serve_forever`` until ``shutdown``."""

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, host: str, port: int, contents: Mapping[str, Content]) -> None:
        """Bind. Raises ``HmdError`` if the address is not available."""
        self.contents = contents
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._deadlines: dict[Any, float] = {}
        try:
            super().__init__((host, port), PageHandler)
        except OSError as error:
            raise os_error(
                error,
                f"cannot serve on {host}, port {port}: {error.strerror}; "
                "take another with --listen",
                HmdError,
            ) from None

    @property
    def url(self) -> str:
        """URL of the page."""
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}/" if ":" in str(host) else f"http://{host!s}:{port}/"

    def server_bind(self) -> None:
        """Bind without resolving the address's name, as HTTPServer does: that may take long."""
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, unless there are too many."""
        if len(self._deadlines) >= MAX_CONNECTIONS:
            self.shutdown_request(request)
            return
        self._deadlines[request] = time.monotonic() + CONNECTION_S
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections that take too long; called twice per second."""
        now_s = time.monotonic()
        for request, deadline_s in list(self._deadlines.items()):
            if deadline_s <= now_s:
                _hang_up(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing about clients that disconnect or are too slow."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # closed meanwhile


class PageHandler(BaseHTTPRequestHandler):
    """One request: GET or HEAD of a known path, with a Host header of this machine."""

    server: PageServer
    server_version = "hmd"
    sys_version = ""
    timeout = CONNECTION_S

    def parse_request(self) -> bool:
        """Read the request; refuses other methods and other hosts."""
        if not super().parse_request():
            return False
        if self.command not in ("GET", "HEAD"):
            self._answer(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD: this page reads\n")
        elif _host_name(self.headers.get("Host", "")) not in HOSTS:
            # A foreign page whose name resolves to this machine (DNS rebinding) sends that name.
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, "ask for localhost\n")
        else:
            return True
        return False

    def do_GET(self) -> None:
        """Send the path's content."""
        path, _, asked = self.path.partition("?")
        query = {name: values[-1] for name, values in parse_qs(asked).items()}
        content = self.server.contents.get(path)
        body = content.body(query) if content is not None else None
        if content is None or body is None:
            self._answer(HTTPStatus.NOT_FOUND, "there is nothing here\n")
            return
        tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        if self.headers.get("If-None-Match") == tag:
            self._send(HTTPStatus.NOT_MODIFIED, {"ETag": tag}, b"")
        else:
            self._send(HTTPStatus.OK, {"ETag": tag, "Content-Type": content.media_type}, body)

    do_HEAD = do_GET  # noqa: N815 - the base class's name

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that cannot be read."""
        del explain
        self._answer(HTTPStatus(code), f"{message or HTTPStatus(code).phrase}\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's
        """Log nothing: the page polls every second."""

    def version_string(self) -> str:
        """Return the Server header."""
        return self.server_version

    def _answer(self, status: HTTPStatus, text: str) -> None:
        headers = {"Content-Type": TEXT}
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = "GET, HEAD"
        self._send(status, headers, text.encode("utf-8", "replace"))

    def _send(self, status: HTTPStatus, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, **headers}.items():
            self.send_header(name, value)
        if status is not HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _host_name(host: str) -> str:
    """Return a Host header's name without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host
