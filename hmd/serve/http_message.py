"""An HTTP request as one value, and the bytes of a response (RFC 9112)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

MAX_HEAD_BYTES: Final = 16384
MAX_HEADERS: Final = 100
END_OF_HEAD: Final = b"\r\n\r\n"
TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request without a body; names of ``headers`` are in lower case, the last value counts.

    ``uid`` is the user who asks, None where that is not known.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    uid: int | None = None


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A status, a body, and headers other than Content-Length and Connection."""

    status: HTTPStatus
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self, common: Mapping[str, str], *, with_body: bool) -> bytes:
        """Return the bytes to send, with headers ``common`` too; without the body for HEAD."""
        lines = [f"HTTP/1.1 {self.status.value} {self.status.phrase}", "Connection: close"]
        if self.status is not HTTPStatus.NOT_MODIFIED:
            lines.append(f"Content-Length: {len(self.body)}")
        lines += [f"{name}: {value}" for name, value in {**common, **self.headers}.items()]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
        return head + self.body if with_body else head


def text_response(status: HTTPStatus, text: str, headers: Mapping[str, str] = {}) -> HttpResponse:
    """Return a line of plain text."""
    return HttpResponse(status, text.encode("utf-8", "replace"), {"Content-Type": TEXT, **headers})


def parse_head(data: bytes, uid: int | None = None) -> HttpRequest:
    """Return the request of a head, which ends before the empty line; raises ``ValueError``."""
    request, *fields = data.decode("latin-1").split("\r\n")
    method, target, version = request.split(" ")
    if version not in ("HTTP/1.0", "HTTP/1.1") or not method.isascii() or not target.isascii():
        raise ValueError("not HTTP/1")
    if len(fields) > MAX_HEADERS:
        raise ValueError("too many headers")
    headers: dict[str, str] = {}
    for line in fields:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise ValueError("not a header")
        headers[name.lower()] = value.strip(" \t")
    path, _, query = target.partition("?")
    return HttpRequest(method, path, query, headers, uid)
