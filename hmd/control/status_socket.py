"""The status socket: one JSON line in, one JSON line out, on a Unix stream socket.

A thread of its own answers queries from what the daemon last published, so that no client, however
slow or wrong, delays a tick. An admin request, which changes something, is queued with the caller's
credentials and answered when the daemon's loop has executed it. The size of requests, the number of
clients and the time of each are bounded.
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
from typing import Any

from hmd.control.request import (
    MAX_REQUEST_BYTES,
    ControlRequest,
    Peer,
    error_answer,
    parse_request,
    peer_of,
)
from hmd.errors import HmdError, UsageError, os_error

MAX_CLIENTS = 32
CLIENT_TIME_S = 5.0
ADMIN_TIME_S = 60.0
"""Longest time that an admin request waits for the daemon's loop; then it is withdrawn."""

MAX_PATH_BYTES = 107
"""sun_path holds 108 bytes with its final zero (unix(7))."""

Queries = Mapping[str, Callable[[Mapping[str, Any]], bytes]]
"""By command: a function that returns, for the arguments of a request, the JSON document of the
answer; called in the socket's thread."""

PendingAnswer = Future[bytes]
AdminHandlers = Mapping[str, Callable[[ControlRequest], PendingAnswer]]
"""By command: a function that queues an admin request and returns the future of its answer, a JSON
document."""


@dataclass(slots=True)
class _Client:
    """One connection: it waits for its request, then for a pending answer, then to be read."""

    socket: socket.socket
    peer: Peer
    deadline_s: float
    request: bytearray = field(default_factory=bytearray)
    pending: PendingAnswer | None = None
    answer: memoryview | None = None


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
        self._listener = _bind(path)
        self._inode = path.stat().st_ino
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._clients: dict[int, _Client] = {}
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
                    with contextlib.suppress(BlockingIOError):
                        self._step(key.data)
                else:
                    self._answer_pending()
            now_s = time.monotonic()
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
        if not self._clients:
            return None
        return max(0.0, min(c.deadline_s for c in self._clients.values()) - time.monotonic())

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
            peer = peer_of(connection)
        except OSError:
            # After EMFILE and the like the listener stays readable: do not spin.
            time.sleep(0.1)
            return
        if len(self._clients) >= MAX_CLIENTS:
            connection.close()
            return
        connection.setblocking(False)
        client = _Client(connection, peer, time.monotonic() + CLIENT_TIME_S)
        self._clients[connection.fileno()] = client
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _step(self, client: _Client) -> None:
        try:
            if client.answer is None:
                self._read(client)
            else:
                self._write(client)
        except BlockingIOError:
            raise
        except OSError:
            self._drop(client)

    def _read(self, client: _Client) -> None:
        data = client.socket.recv(MAX_REQUEST_BYTES)
        client.request += data
        line, newline, _ = client.request.partition(b"\n")
        if not newline and not data:
            self._drop(client)
        elif newline or len(client.request) > MAX_REQUEST_BYTES:
            # Read no more of it: further input of the client must not wake the thread.
            self._selector.unregister(client.socket)
            self._dispatch(client, bytes(line))

    def _dispatch(self, client: _Client, line: bytes) -> None:
        """Answer a query now, or queue an admin request."""
        try:
            request = parse_request(line, client.peer)
            query = self._queries.get(request.command)
            if query is not None:
                self._send(client, query(request.arguments))
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
        client.answer = memoryview(answer + b"\n")
        client.deadline_s = time.monotonic() + CLIENT_TIME_S
        self._selector.register(client.socket, selectors.EVENT_WRITE, client)

    def _write(self, client: _Client) -> None:
        assert client.answer is not None
        client.answer = client.answer[client.socket.send(client.answer) :]
        if not client.answer:
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
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(client.socket)
        client.socket.close()


def _result(pending: PendingAnswer) -> bytes:
    """Return the answer of a completed request, or that of its error."""
    try:
        return pending.result()
    except Exception as error:
        return error_answer(error)


def _bind(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise HmdError(f"observe.socket: {path} is longer than {MAX_PATH_BYTES} bytes: shorten it")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o117)  # the socket has mode 0660 from its creation on
    try:
        if path.is_socket():
            path.unlink()
        listener.bind(str(path))
        listener.listen(MAX_CLIENTS)
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
