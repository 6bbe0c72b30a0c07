"""The status socket: one JSON line in, one JSON line out, on a Unix stream socket.

A thread of its own answers queries from what the daemon last published, so that no client, however
slow or wrong, delays a tick. An admin request, which changes something, is queued with the caller's
credentials and answered when the daemon's loop has executed it. The size of requests and the time
of clients are bounded; each user has limits on clients and unread answers of its own.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from hmd.control.listener import listen
from hmd.control.request import (
    MAX_REQUEST_BYTES,
    ControlRequest,
    Peer,
    error_answer,
    parse_request,
    peer_of,
)
from hmd.errors import HmdError, UsageError
from hmd.serve.connection_limits import ConnectionLimiter

MAX_CLIENTS = 128
MAX_OWN_CLIENTS = 32
"""Clients at once, and those of one user: see :mod:`hmd.serve.connection_limits`."""

MAX_OWN_UNREAD_BYTES = 128 * 2**20
"""Answers that one user has not read yet; a heat map has up to 48 MiB."""

CLIENT_TIME_S = 5.0
ADMIN_TIME_S = 60.0
"""Longest time that an admin request waits for the daemon's loop; then it is withdrawn."""

Queries = Mapping[str, Callable[[ControlRequest], bytes]]
"""By command: a function that returns the JSON document of the answer to a request, as far as its
caller may see it; called in the socket's thread."""

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

PendingAnswer = Future[bytes]
AdminHandlers = Mapping[str, Callable[[ControlRequest], PendingAnswer]]
"""By command: a function that queues an admin request and returns the future of its answer, a JSON
document."""


@dataclass(eq=False, slots=True)
class _Client:
    """One connection: it waits for its request, then for a pending answer, then to be read.

    ``watched`` is what the selector watches it for: nothing while it need not wait for it.
    """

    socket: socket.socket
    peer: Peer
    deadline_s: float
    request: bytearray = field(default_factory=bytearray)
    pending: PendingAnswer | None = None
    answer: memoryview | None = None
    watched: int = 0


class StatusSocket:
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
        self._listener = listen(path)
        self._inode = path.stat().st_ino
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._clients: dict[int, _Client] = {}
        self._limiter: ConnectionLimiter[_Client] = ConnectionLimiter(
            MAX_CLIENTS, MAX_OWN_CLIENTS, [0, os.geteuid()]
        )
        self._next_s = float("inf")
        self._closing = False
        self._closing_lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="hmd-status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering and remove the socket; may be called twice."""
        with self._closing_lock:
            if self._closing:
                return
            self._closing = True
            self._write_wakeup()
        self._thread.join()
        for client in list(self._clients.values()):
            self._drop(client)
        self._listener.close()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        with contextlib.suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()

    def _wake(self) -> None:
        """Wake the thread. Called by any thread that completes an answer, also after ``close``."""
        with self._closing_lock:
            if not self._closing:
                self._write_wakeup()

    def _write_wakeup(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"x")

    def _serve(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select(self._timeout_s()):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, _Client):
                    self._step(key.data)
                else:
                    self._answer_pending()
            now_s = time.monotonic()
            if now_s >= self._next_s:
                for client in [c for c in self._clients.values() if c.deadline_s <= now_s]:
                    self._expire(client)

    def _answer_pending(self) -> None:
        """Send the pending answers that are complete."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        for client in list(self._clients.values()):
            if client.pending is not None and client.pending.done():
                self._send(client, _result(client.pending))

    def _timeout_s(self) -> float | None:
        self._next_s = min((c.deadline_s for c in self._clients.values()), default=float("inf"))
        return max(0.0, self._next_s - time.monotonic()) if self._clients else None

    def _accept(self) -> None:
        for _ in range(MAX_CLIENTS):
            try:
                connection, _ = self._listener.accept()
                peer = peer_of(connection)
            except BlockingIOError:
                return
            except OSError:
                # After EMFILE and the like the listener stays readable: do not spin.
                time.sleep(0.1)
                return
            self._take(connection, peer)

    def _take(self, connection: socket.socket, peer: Peer) -> None:
        connection.setblocking(False)
        client = _Client(connection, peer, time.monotonic() + CLIENT_TIME_S)
        self._clients[connection.fileno()] = client
        leaving = self._limiter.enter(client, peer.uid)
        if leaving is not None:
            self._refuse(leaving)
        if leaving is not client:
            self._step(client)  # most have sent their request by now

    def _refuse(self, client: _Client) -> None:
        """Drop a client that is over a limit, with the reason where it still reads."""
        reason = error_answer(HmdError("too many connections of one user at once: try again"))
        with contextlib.suppress(OSError):
            client.socket.send(reason + b"\n")
            client.socket.recv(MAX_REQUEST_BYTES)  # unread input would make the answer a reset
        self._drop(client)

    def _step(self, client: _Client) -> None:
        if self._clients.get(client.socket.fileno()) is not client:
            return  # dropped since the selector returned
        try:
            if client.answer is None:
                self._read(client)
            else:
                self._write(client)
        except BlockingIOError:
            self._watch(client, _WRITE if client.answer is not None else _READ)
        except OSError:
            self._drop(client)

    def _watch(self, client: _Client, events: int) -> None:
        """Have the selector watch a client for other events than before, or for nothing."""
        if events == client.watched:
            return
        if not client.watched:
            self._selector.register(client.socket, events, client)
        elif events:
            self._selector.modify(client.socket, events, client)
        else:
            self._selector.unregister(client.socket)
        client.watched = events

    def _read(self, client: _Client) -> None:
        data = client.socket.recv(MAX_REQUEST_BYTES)
        client.request += data
        line, newline, _ = client.request.partition(b"\n")
        if not newline and not data:
            self._drop(client)
        elif not newline and len(client.request) <= MAX_REQUEST_BYTES:
            self._watch(client, _READ)
        else:
            # Read no more of it: further input of the client must not wake the thread.
            self._watch(client, 0)
            self._limiter.requested(client)
            self._dispatch(client, bytes(line))

    def _dispatch(self, client: _Client, line: bytes) -> None:
        """Answer a query now, or queue an admin request."""
        try:
            request = parse_request(line, client.peer)
            query = self._queries.get(request.command)
            if query is not None:
                self._send(client, query(request))
                return
            handler = self._handlers.get(request.command)
            if handler is None:
                names = ", ".join(sorted([*self._queries, *self._handlers]))
                raise UsageError(f"no such command; there are {names}")
            pending = handler(request)
        except Exception as error:
            self._send(client, error_answer(error))
            return
        client.pending = pending
        client.deadline_s = time.monotonic() + self._admin_time_s
        pending.add_done_callback(lambda _: self._wake())

    def _send(self, client: _Client, answer: bytes) -> None:
        client.pending = None
        if self._unread_bytes(client.peer) + len(answer) > MAX_OWN_UNREAD_BYTES:
            answer = error_answer(HmdError("read the answers that wait for you first"))
        client.answer = memoryview(answer + b"\n")
        client.deadline_s = time.monotonic() + CLIENT_TIME_S
        self._step(client)  # most take the answer at once

    def _unread_bytes(self, peer: Peer) -> int:
        own = (c.answer for c in self._clients.values() if c.peer.uid == peer.uid)
        return sum(len(answer) for answer in own if answer is not None)

    def _write(self, client: _Client) -> None:
        assert client.answer is not None
        client.answer = client.answer[client.socket.send(client.answer) :]
        if client.answer:
            self._watch(client, _WRITE)
        else:
            self._drop(client)

    def _expire(self, client: _Client) -> None:
        """End a client whose time is over; an admin request that still waits is withdrawn."""
        pending = client.pending
        if pending is None:
            self._drop(client)
        elif pending.done() and not pending.cancelled():
            self._send(client, _result(pending))
        else:
            state = "withdrawn" if pending.cancel() else "being executed: see hmd status"
            self._send(
                client,
                error_answer(
                    HmdError(
                        f"the daemon did not execute the request within {self._admin_time_s:g} s; "
                        f"it is {state}"
                    )
                ),
            )

    def _drop(self, client: _Client) -> None:
        self._clients.pop(client.socket.fileno(), None)
        self._limiter.leave(client)
        self._watch(client, 0)
        client.socket.close()


def _result(pending: PendingAnswer) -> bytes:
    """Return the answer of a completed request, or that of its error."""
    try:
        return pending.result()
    except Exception as error:
        return error_answer(error)
