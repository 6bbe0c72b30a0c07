# SPDX-License-Identifier: MIT
"""An HTTP/1.1 server for GET and HEAD that clients cannot exhaust (RFC 9112).

The head of a request has ``HEAD_S`` to arrive and ``MAX_HEAD_BYTES``, the response ``SEND_S`` to be
taken. Owners of connections are users of this machine, else addresses. The kernel knows the user of
every socket and reports it over sock_diag(7), in a time that does not depend on how many there are
and without privilege.

A page whose name resolves to this machine (DNS rebinding) makes a browser send that name as Host.
An address, or a name that is known to be this machine's, cannot come from such a page.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from hmd.serve.bounded_server import BACKLOG, BoundedServer, Client, ConnectionLimiter

MAX_HEAD_BYTES: Final = 16384
MAX_HEADERS: Final = 100
END_OF_HEAD: Final = b"\r\n\r\n"
TEXT: Final = "text/plain; charset=utf-8"
MAX_CONNECTIONS: Final = 256
MAX_OWN_CONNECTIONS: Final = 64
HEAD_S: Final = 5.0
SEND_S: Final = 10.0
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST_FLAG: Final = 1
_NO_COOKIE: Final = 0xFFFFFFFF
_HEADER: Final = struct.Struct("=IHHII")
"""struct nlmsghdr (netlink(7)): length, type, flags, sequence, port."""
_QUERY: Final = struct.Struct("=BBBBI2s2s16s16sIII")
"""struct inet_diag_req_v2: family, protocol, extensions, padding, states, ports, addresses,
interface, cookie."""
_UID_OFFSET: Final = _HEADER.size + 4 + 48 + 12
"""idiag_uid in struct inet_diag_msg: four bytes, inet_diag_sockid, three numbers."""
_ALL_STATES: Final = 0xFFFFFFFF
_TIMEOUT_S: Final = 1.0


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


class TcpOwners:
    """The users at the other ends of TCP connections of this machine; for one thread."""

    def __init__(self) -> None:
        """Open a netlink socket, where this process may."""
        self._netlink: socket.socket | None = None
        try:
            kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
            self._netlink = socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG)
            self._netlink.settimeout(_TIMEOUT_S)
        except OSError:
            pass  # a sandbox without AF_NETLINK: owners are addresses only
        self._sequence = 0

    def close(self) -> None:
        """Close the netlink socket."""
        if self._netlink is not None:
            self._netlink.close()

    def uid(self, connection: socket.socket) -> int | None:
        """Return the user of the other end of a TCP connection, None where that is not known.

        It is on another machine or in another network namespace, or the kernel was built without
        CONFIG_INET_DIAG.
        """
        if self._netlink is None:
            return None
        try:
            client, server = connection.getpeername(), connection.getsockname()
            if client[0] != server[0] and not ipaddress.ip_address(client[0]).is_loopback:
                return None
            return self._query(connection.family, client, server)
        except (OSError, ValueError):
            return None

    def _query(self, family: int, client: tuple[str, int], server: tuple[str, int]) -> int | None:
        assert self._netlink is not None
        self._sequence += 1
        ports = [end[1].to_bytes(2, "big") for end in (client, server)]
        addresses = [socket.inet_pton(family, end[0]) for end in (client, server)]
        query = _QUERY.pack(
            family,
            socket.IPPROTO_TCP,
            0,
            0,
            _ALL_STATES,
            *ports,
            *addresses,
            0,
            _NO_COOKIE,
            _NO_COOKIE,
        )
        length = _HEADER.size + len(query)
        header = _HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _REQUEST_FLAG, self._sequence, 0)
        self._netlink.sendto(header + query, (0, 0))
        while True:
            answer = self._netlink.recv(4096)
            _, kind, _, sequence, _ = _HEADER.unpack_from(answer)
            if sequence == self._sequence:
                break  # an answer that was too late for its own query is skipped
        if kind != _SOCK_DIAG_BY_FAMILY:
            return None
        (uid,) = struct.unpack_from("=I", answer, _UID_OFFSET)
        return int(uid)


def owner_of(connection: socket.socket, uid: int | None) -> Hashable:
    """Return whose a connection is: a user of this machine, else an address or IPv6 /64 network."""
    if uid is not None:
        return ("uid", uid)
    address = ipaddress.ip_address(connection.getpeername()[0].partition("%")[0])
    if address.version == 6:
        mapped = address.ipv4_mapped
        return ("address", str(mapped)) if mapped else ("network", address.packed[:8])
    return ("address", str(address))


@dataclass(eq=False, slots=True)
class HttpClient(Client):
    """A connection; ``uid`` is the user at its other end, None where that is not known."""

    uid: int | None = None


class BoundedHttpServer(BoundedServer[HttpClient]):
    """Answers GET and HEAD with ``answer``, in the thread of ``serve_forever``."""

    def __init__(
        self,
        host: str,
        port: int,
        answer: Callable[[HttpRequest], HttpResponse],
        headers: Mapping[str, str] = {},
    ) -> None:
        """Listen; every response has ``headers``.

        Raises OSError where the address is not available.
        """
        self._answer, self._headers = answer, headers
        self._defects: set[str] = set()
        kept = [("uid", 0), ("uid", os.geteuid())]
        listener = listen(host, port)
        self.server_address: tuple[str, int] = listener.getsockname()[:2]
        self._owners = TcpOwners()
        super().__init__(
            listener, ConnectionLimiter(MAX_CONNECTIONS, MAX_OWN_CONNECTIONS, kept), MAX_HEAD_BYTES
        )

    def server_close(self) -> None:
        """Close all; ``serve_forever`` has returned."""
        super().server_close()
        self._owners.close()

    def _admit(self, connection: socket.socket) -> HttpClient:
        uid = self._owners.uid(connection)
        owner = owner_of(connection, uid)
        return HttpClient(connection, owner, time.monotonic() + HEAD_S, uid=uid)

    def _find_request(self, client: HttpClient) -> bytes | None:
        head, end, _ = bytes(client.received).partition(END_OF_HEAD)
        return head if end or len(head) > MAX_HEAD_BYTES else None

    def _handle(self, client: HttpClient, request: bytes) -> None:
        with_body = True
        if len(request) > MAX_HEAD_BYTES:
            response = text_response(HTTPStatus.BAD_REQUEST, "too long\n")
        else:
            try:
                parsed = parse_head(request, client.uid)
            except ValueError:
                response = text_response(HTTPStatus.BAD_REQUEST, "not HTTP\n")
            else:
                response, with_body = self._respond(parsed), parsed.method != "HEAD"
        self._send(client, response.encode(self._headers, with_body=with_body), SEND_S)

    def _respond(self, request: HttpRequest) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            allowed = {"Allow": "GET, HEAD"}
            return text_response(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD\n", allowed)
        try:
            return self._answer(request)
        except Exception as defect:
            if repr(defect) not in self._defects and len(self._defects) < 8:
                self._defects.add(repr(defect))
                logging.getLogger("hmd").error("an HTTP request failed", exc_info=defect)
            return text_response(HTTPStatus.INTERNAL_SERVER_ERROR, "failed: see the log\n")


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raises OSError or UnicodeError for what is no address here.

    The name of the address is not resolved in reverse.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def host_name(host: str) -> str:
    """Return a Host header's name without its port, which may be any, so that ``ssh -L`` works."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isascii() and port.isdecimal() else host


def names_this_machine(host: str, names: Collection[str]) -> bool:
    """Return whether a Host header has an address, ``localhost`` or one of ``names``."""
    name = host_name(host).lower()
    if name in LOOPBACK_NAMES or name in {known.lower() for known in names}:
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
