# SPDX-License-Identifier: MIT
"""The status socket: one JSON line in, one JSON line out, on a Unix stream socket.

A thread of its own answers queries from what the daemon last published, so that no client, however
slow or wrong, delays a tick. An admin request, which changes something, is queued with the caller's
credentials and answered when the daemon's loop has executed it. The size of requests and the time
of clients are bounded; each user has limits on clients and unread answers of its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hmd.base.errors import HmdError, UsageError, os_error
from hmd.config.schema import MAX_SOCKET_BYTES
from hmd.control.requests import (
    MAX_REQUEST_BYTES,
    ControlRequest,
    Peer,
    error_answer,
    parse_request,
    peer_of,
)
from hmd.serve.bounded_server import BACKLOG, BoundedServer, Client, ConnectionLimiter

MAX_CLIENTS: Final = 128
MAX_OWN_CLIENTS: Final = 32
"""Clients at once, and those of one user: see :mod:`hmd.serve.bounded_server`."""

MAX_OWN_UNREAD_BYTES: Final = 128 * 2**20
"""Answers that one user has not read yet; a heat map has up to 48 MiB."""

CLIENT_TIME_S: Final = 5.0
ADMIN_TIME_S: Final = 60.0
"""Longest time that an admin request waits for the daemon's loop; then it is withdrawn."""

PendingAnswer = Future[bytes]

Queries = Mapping[str, Callable[[ControlRequest], bytes]]
"""By command: a function that returns the JSON document of the answer to a request, as far as its
caller may see it; called in the socket's thread."""

AdminHandlers = Mapping[str, Callable[[ControlRequest], PendingAnswer]]
"""By command: a function that queues an admin request and returns the future of its answer, a JSON
document."""


def listen(path: Path) -> socket.socket:
    """Bind ``path`` (mode 0660), replacing the socket of a killed daemon; raises ``HmdError``."""
    if len(os.fsencode(path)) > MAX_SOCKET_BYTES:
        raise HmdError(
            f"observe.socket: {path} is longer than {MAX_SOCKET_BYTES} bytes: shorten it"
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o117)  # the socket has mode 0660 from its creation on
    try:
        if path.is_socket():
            path.unlink()
        listener.bind(str(path))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise os_error(
            error,
            f"cannot make the status socket {path}: {error.strerror}; set observe.socket",
            HmdError,
        ) from None
    finally:
        os.umask(umask)
    return listener


@dataclass(eq=False, slots=True, kw_only=True)
class StatusClient(Client):
    """A connection with its user; ``pending`` is the answer to an admin request."""

    peer: Peer
    pending: PendingAnswer | None = None


class StatusSocket(BoundedServer[StatusClient]):
    """Serves ``queries`` and ``handlers`` on ``path`` from construction to ``close``."""

    def __init__(
        self,
        path: Path,
        queries: Queries,
        handlers: AdminHandlers | None = None,
        admin_time_s: float = ADMIN_TIME_S,
    ) -> None:
        """Bind (mode 0660, replacing the socket of a killed daemon) and start answering.

        Raises ``HmdError`` where the path cannot be bound.
        """
        self.path = path
        self._queries, self._handlers = queries, handlers or {}
        self._admin_time_s = admin_time_s
        limiter: ConnectionLimiter[StatusClient] = ConnectionLimiter(
            MAX_CLIENTS, MAX_OWN_CLIENTS, [0, os.geteuid()]
        )
        super().__init__(listen(path), limiter, MAX_REQUEST_BYTES)
        self._inode = path.stat().st_ino
        self._thread = threading.Thread(target=self.serve_forever, name="hmd-status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering and remove the socket; may be called twice."""
        with self._closing_lock:
            if self._closing:
                return
            self._closing = True
        self.shutdown()
        self._thread.join()
        self.server_close()
        with contextlib.suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()

    def _admit(self, connection: socket.socket) -> StatusClient:
        peer = peer_of(connection)
        return StatusClient(connection, peer.uid, time.monotonic() + CLIENT_TIME_S, peer=peer)

    def _refuse(self, client: StatusClient) -> None:
        """End a client that is over a limit, with the reason where it still reads."""
        reason = error_answer(HmdError("too many connections of one user at once: try again"))
        with contextlib.suppress(OSError):
            client.socket.send(reason + b"\n")
            client.socket.recv(MAX_REQUEST_BYTES)  # unread input would make the answer a reset
        self._drop(client)

    def _find_request(self, client: StatusClient) -> bytes | None:
        line, newline, _ = client.received.partition(b"\n")
        return bytes(line) if newline or len(line) > MAX_REQUEST_BYTES else None

    def _handle(self, client: StatusClient, request: bytes) -> None:
        """Answer a query now, or queue an admin request."""
        try:
            parsed = parse_request(request, client.peer)
            query = self._queries.get(parsed.command)
            if query is not None:
                self._answer(client, query(parsed))
                return
            handler = self._handlers.get(parsed.command)
            if handler is None:
                names = ", ".join(sorted([*self._queries, *self._handlers]))
                raise UsageError(f"no such command; there are {names}")
            pending = handler(parsed)
        except Exception as error:
            self._answer(client, error_answer(error))
            return
        client.pending = pending
        client.deadline_s = time.monotonic() + self._admin_time_s
        pending.add_done_callback(lambda _: self._wake())

    def _answer_pending(self) -> None:
        for client in list(self._clients):
            if client.pending is not None and client.pending.done():
                self._answer(client, _result(client.pending))

    def _answer(self, client: StatusClient, answer: bytes) -> None:
        client.pending = None
        own = (c.unsent for c in self._clients if c.owner == client.owner)
        unread_bytes = sum(len(unsent) for unsent in own if unsent is not None)
        if unread_bytes + len(answer) > MAX_OWN_UNREAD_BYTES:
            answer = error_answer(HmdError("read the answers that wait for you first"))
        self._send(client, answer + b"\n", CLIENT_TIME_S)

    def _expire(self, client: StatusClient) -> None:
        """End a client whose time is over; an admin request that still waits is withdrawn."""
        pending = client.pending
        if pending is None:
            self._drop(client)
        elif pending.done() and not pending.cancelled():
            self._answer(client, _result(pending))
        else:
            state = "withdrawn" if pending.cancel() else "being executed: see hmd status"
            waited = f"within {self._admin_time_s:g} s; it is {state}"
            error = HmdError(f"the daemon did not execute the request {waited}")
            self._answer(client, error_answer(error))


def _result(pending: PendingAnswer) -> bytes:
    try:
        return pending.result()
    except Exception as error:
        return error_answer(error)
