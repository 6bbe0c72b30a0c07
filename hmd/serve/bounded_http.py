"""An HTTP server that clients cannot exhaust: one thread, bounded connections, deadlines.

Each connection carries one GET or HEAD request and closes. The head has ``HEAD_S`` to arrive and
``MAX_HEAD_BYTES``, the response ``SEND_S`` to be taken. Owners of connections, users of this
machine or addresses, have a limit each (:mod:`hmd.serve.connection_limits`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from hmd.serve.connection_limits import ConnectionLimiter
from hmd.serve.http_message import (
    END_OF_HEAD,
    MAX_HEAD_BYTES,
    HttpRequest,
    HttpResponse,
    parse_head,
    text_response,
)
from hmd.serve.tcp_owner import TcpOwners, owner_of

MAX_CONNECTIONS: Final = 256
MAX_OWN_CONNECTIONS: Final = 64
HEAD_S: Final = 5.0
SEND_S: Final = 10.0
_BACKLOG: Final = 1024
_ACCEPTS_AT_ONCE: Final = 64
_NO_DESCRIPTOR_S: Final = 0.1

Answer = Callable[[HttpRequest], HttpResponse]


@dataclass(eq=False, slots=True)
class _Connection:
    """A client: its head so far, then what is left to send."""

    socket: socket.socket
    uid: int | None
    deadline_s: float
    head: bytearray = field(default_factory=bytearray)
    unsent: memoryview | None = None


class BoundedHttpServer:
    """Answers GET and HEAD with ``answer``, in the thread of ``serve``."""

    def __init__(
        self, host: str, port: int, answer: Answer, headers: Mapping[str, str] = {}
    ) -> None:
        """Listen; every response has ``headers``.

        Raises OSError where the address is not available.
        """
        self._answer, self._headers = answer, headers
        self._limiter: ConnectionLimiter[_Connection] = ConnectionLimiter(
            MAX_CONNECTIONS, MAX_OWN_CONNECTIONS, [("uid", 0), ("uid", os.geteuid())]
        )
        self._listener = _listen(host, port)
        self.server_address: tuple[str, int] = self._listener.getsockname()[:2]
        self._owners = TcpOwners()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._connections: set[_Connection] = set()
        self._stop = threading.Event()
        self._defects: set[str] = set()

    def serve_forever(self) -> None:
        """Answer until ``shutdown``."""
        while not self._stop.is_set():
            for key, _ in self._selector.select(self._timeout_s()):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, _Connection):
                    self._step(key.data)
            now_s = time.monotonic()
            for late in [c for c in self._connections if c.deadline_s <= now_s]:
                self._drop(late)

    def shutdown(self) -> None:
        """Make ``serve_forever`` return; for any thread."""
        self._stop.set()
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"x")

    def server_close(self) -> None:
        """Close all; ``serve_forever`` has returned."""
        for connection in list(self._connections):
            self._drop(connection)
        self._selector.close()
        self._listener.close()
        self._owners.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _timeout_s(self) -> float | None:
        if not self._connections:
            return None
        return max(0.0, min(c.deadline_s for c in self._connections) - time.monotonic())

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                accepted, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                # After EMFILE and the like the listener stays readable: do not spin.
                time.sleep(_NO_DESCRIPTOR_S)
                return
            self._take(accepted)

    def _take(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        uid = self._owners.uid(accepted)
        connection = _Connection(accepted, uid, time.monotonic() + HEAD_S)
        try:
            owner = owner_of(accepted, uid)
        except OSError:  # gone already
            accepted.close()
            return
        self._connections.add(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)
        leaving = self._limiter.enter(connection, owner)
        if leaving is not None:
            self._drop(leaving)
        if leaving is not connection:
            self._step(connection)  # most have sent their request by now

    def _step(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return  # dropped since the selector returned
        try:
            if connection.unsent is None:
                self._read(connection)
            else:
                self._send(connection)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)

    def _read(self, connection: _Connection) -> None:
        data = connection.socket.recv(MAX_HEAD_BYTES)
        connection.head += data
        head, end, _ = bytes(connection.head).partition(END_OF_HEAD)
        if end and len(head) <= MAX_HEAD_BYTES:
            self._respond(connection, head)
        elif len(connection.head) > MAX_HEAD_BYTES:
            self._begin(connection, text_response(HTTPStatus.BAD_REQUEST, "too long\n"))
        elif not data:
            self._drop(connection)

    def _respond(self, connection: _Connection, head: bytes) -> None:
        try:
            request = parse_head(head, connection.uid)
        except ValueError:
            self._begin(connection, text_response(HTTPStatus.BAD_REQUEST, "not HTTP\n"))
            return
        if request.method not in ("GET", "HEAD"):
            refusal = {"Allow": "GET, HEAD"}
            text = "only GET and HEAD\n"
            response = text_response(HTTPStatus.METHOD_NOT_ALLOWED, text, refusal)
        else:
            response = self._answered(request)
        self._begin(connection, response, with_body=request.method != "HEAD")

    def _answered(self, request: HttpRequest) -> HttpResponse:
        try:
            return self._answer(request)
        except Exception as defect:
            if repr(defect) not in self._defects and len(self._defects) < 8:
                self._defects.add(repr(defect))
                logging.getLogger("hmd").error("an HTTP request failed", exc_info=defect)
            return text_response(HTTPStatus.INTERNAL_SERVER_ERROR, "failed: see the log\n")

    def _begin(
        self, connection: _Connection, response: HttpResponse, *, with_body: bool = True
    ) -> None:
        """Send as much of a response as the client takes now, the rest later."""
        self._limiter.requested(connection)
        connection.unsent = memoryview(response.encode(self._headers, with_body=with_body))
        connection.deadline_s = time.monotonic() + SEND_S
        # Nothing more is read: further input must not wake the thread.
        self._selector.modify(connection.socket, selectors.EVENT_WRITE, connection)
        self._send(connection)

    def _send(self, connection: _Connection) -> None:
        assert connection.unsent is not None
        while connection.unsent:
            connection.unsent = connection.unsent[connection.socket.send(connection.unsent) :]
        self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        self._limiter.leave(connection)
        self._connections.discard(connection)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        connection.socket.close()


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; the name of the address is not resolved in reverse."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
