# SPDX-License-Identifier: MIT
"""The page's HTTP server: a few fixed paths, read-only, for browsers on this machine.

The page polls ``/state.json`` once per second instead of receiving events: a slow or absent client
holds no queue, a reconnect is the next request, and an unchanged answer costs a 304. It answers
root and the user who serves it: what the status socket shows them is not for others.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from importlib import resources
from pathlib import Path
from typing import Final, Self
from urllib.parse import parse_qs

from hmd.base.errors import HmdError, os_error
from hmd.serve.bounded_http import (
    LOOPBACK_NAMES,
    BoundedHttpServer,
    HttpRequest,
    HttpResponse,
    host_name,
    text_response,
)

ROOT: Final = 0
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
MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Content:
    """Content of a path; ``body`` takes the query's last value by name and returns None for 404."""

    media_type: str
    body: Callable[[Mapping[str, str]], bytes | None]


def page_contents() -> dict[str, Content]:
    """Return the files of the page by path; ``page.js`` imports the other modules."""
    contents = {}
    for file in (resources.files("hmd.dashboard") / "page").iterdir():
        media_type = MEDIA_TYPES.get(Path(file.name).suffix)
        if media_type is not None:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            contents[path] = _fixed(media_type, file.read_bytes())
    return contents


def _fixed(media_type: str, body: bytes) -> Content:
    return Content(media_type, lambda _: body)


class PageServer(BoundedHttpServer):
    """Serves ``contents`` by path on a loopback address, ``serve_forever`` until ``shutdown``."""

    def __init__(
        self,
        host: str,
        port: int,
        contents: Mapping[str, Content],
        users: Collection[int] | None = None,
    ) -> None:
        """Bind. Raises ``HmdError`` if the address is not available.

        Root and ``users`` may read; by default the user of this process.
        """
        self.contents = contents
        self._users = frozenset([os.geteuid()] if users is None else users) | {ROOT}
        try:
            super().__init__(host, port, self._page, HEADERS)
        except OSError as error:
            raise os_error(
                error,
                f"cannot serve on {host}, port {port}: {error.strerror}; "
                "take another with --listen",
                HmdError,
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server_close()

    @property
    def url(self) -> str:
        """URL of the page."""
        host, port = self.server_address
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    def _page(self, request: HttpRequest) -> HttpResponse:
        """Return the content of a path for those who may have it."""
        if host_name(request.headers.get("host", "")) not in LOOPBACK_NAMES:
            # A foreign page whose name resolves to this machine (DNS rebinding) sends that name.
            return text_response(HTTPStatus.MISDIRECTED_REQUEST, "ask for localhost\n")
        if request.uid not in self._users:
            names = ", ".join(map(str, sorted(self._users)))
            return text_response(HTTPStatus.FORBIDDEN, f"this page is for uid {names}\n")
        query = {name: values[-1] for name, values in parse_qs(request.query).items()}
        content = self.contents.get(request.path)
        body = content.body(query) if content is not None else None
        if content is None or body is None:
            return text_response(HTTPStatus.NOT_FOUND, "there is nothing here\n")
        tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        if request.headers.get("if-none-match") == tag:
            return HttpResponse(HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
        headers = {"ETag": tag, "Content-Type": content.media_type}
        return HttpResponse(HTTPStatus.OK, body, headers)
