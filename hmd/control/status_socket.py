"""The status socket: one JSON line in, one JSON line out, on a Unix stream socket.

A thread of its own answers from what the daemon last published, so that no client, however slow
or wrong, holds up a tick. What changes something is an order: it is handed on with the caller's
credentials, and answered when the daemon has come to it. Requests are bounded in size, clients in
number and in time.
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
PROMISE_TIME_S = 60.0
"""How long an order waits for the daemon to come to it; one that takes longer is withdrawn."""

MAX_PATH_BYTES = 107
"""sun_path holds 108 bytes with its final zero (unix(7))."""

Answers = Mapping[str, Callable[[Mapping[str, Any]], bytes]]
"""By command: a function that returns, for the arguments of a request, the JSON document of the
answer; called in the thread."""

Promise = Future[bytes]
Orders = Mapping[str, Callable[[ControlRequest], Promise]]
"""By command: a function that takes an order down and promises its answer, a JSON document."""


@dataclass(slots=True)
class _Client:
    """One connection; it waits for its request, then for a promise to be kept, then to be read."""

    socket: socket.socket
    peer: Peer
    deadline_s: float
    request: bytearray = field(default_factory=bytearray)
    promise: Promise | None = None
    answer: memoryview | None = None


class StatusSocket:
    """Serves ``answers`` and ``orders`` on ``path`` from construction to ``close``."""

    def __init__(
        self,
        path: Path,
        answers: Answers,
        orders: Orders | None = None,
        promise_time_s: float = PROMISE_TIME_S,
    ) -> None:
        """Bind (mode 0660, replacing what a dead daemon left) and start answering.

        Raises ``HmdError`` where the path cannot be bound.
        """
        self.path = path
        self._answers, self._orders = answers, orders or {}
        self._promise_time_s = promise_time_s
        self._listener = _bind(path)
        self._inode = path.stat().st_ino
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._clients: dict[int, _Client] = {}
        self._closing = False
        self._waking = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="hmd-status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering and remove the socket; may be called twice."""
        with self._waking:
            if self._closing:
                return
            self._closing = True
            self._ring()
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
        """Have the thread look around; for whoever keeps a promise, also when all is closed."""
        with self._waking:
            if not self._closing:
                self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"x")

    def _serve(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select(self._patience_s()):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, _Client):
                    with contextlib.suppress(BlockingIOError):
                        self._step(key.data)
                else:
                    self._woken()
            now_s = time.monotonic()
            for client in [c for c in self._clients.values() if c.deadline_s <= now_s]:
                self._expire(client)

    def _woken(self) -> None:
        """Answer those whose promises were kept."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        for client in list(self._clients.values()):
            if client.promise is not None and client.promise.done():
                self._say(client, _kept(client.promise))

    def _patience_s(self) -> float | None:
        if not self._clients:
            return None
        return max(0.0, min(c.deadline_s for c in self._clients.values()) - time.monotonic())

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
            peer = peer_of(connection)
        except OSError:
            # EMFILE and its like: no busy loop on a listener that stays readable.
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
            # Nothing more is heard of it: what it does while it waits must not wake the thread.
            self._selector.unregister(client.socket)
            self._take(client, bytes(line))

    def _take(self, client: _Client, line: bytes) -> None:
        """Answer a request, or have an order answered when its time comes."""
        try:
            request = parse_request(line, client.peer)
            answer = self._answers.get(request.command)
            if answer is not None:
                self._say(client, answer(request.arguments))
                return
            order = self._orders.get(request.command)
            if order is None:
                names = ", ".join(sorted([*self._answers, *self._orders]))
                raise UsageError(f"no such command; there are {names}")
            promise = order(request)
        except Exception as error:
            self._say(client, error_answer(error))
            return
        client.promise = promise
        client.deadline_s = time.monotonic() + self._promise_time_s
        promise.add_done_callback(lambda _: self._wake())

    def _say(self, client: _Client, answer: bytes) -> None:
        client.promise = None
        client.answer = memoryview(answer + b"\n")
        client.deadline_s = time.monotonic() + CLIENT_TIME_S
        self._selector.register(client.socket, selectors.EVENT_WRITE, client)

    def _write(self, client: _Client) -> None:
        assert client.answer is not None
        client.answer = client.answer[client.socket.send(client.answer) :]
        if not client.answer:
            self._drop(client)

    def _expire(self, client: _Client) -> None:
        """Let go of a client whose time is over; an order that nobody came to is withdrawn."""
        promise = client.promise
        if promise is None:
            self._drop(client)
        elif promise.done() and not promise.cancelled():
            self._say(client, _kept(promise))
        else:
            told = "is withdrawn" if promise.cancel() else "is under way: see hmd status"
            late = f"the daemon did not come to it in {self._promise_time_s:g} s; the order {told}"
            self._say(client, error_answer(HmdError(late)))

    def _drop(self, client: _Client) -> None:
        self._clients.pop(client.socket.fileno(), None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(client.socket)
        client.socket.close()


def _kept(promise: Promise) -> bytes:
    """Return what was promised; whatever went wrong is an answer too."""
    try:
        return promise.result()
    except Exception as error:
        return error_answer(error)


def _bind(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise HmdError(f"observe.socket: {path} is longer than {MAX_PATH_BYTES} bytes: shorten it")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o117)  # the socket is born 0660, with no moment at which it is wider
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
