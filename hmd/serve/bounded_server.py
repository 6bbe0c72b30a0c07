# SPDX-License-Identifier: MIT
"""A server on a stream socket that clients cannot exhaust: one thread, limits, deadlines.

Each connection carries one request and its answer. An owner of connections is a user or an address.
One owner has a limited number of them, and where there are as many as the server has in all, a new
one replaces one of the owner with the most. A connection that has not sent its request yet is idle
and is replaced first, so that idle connections never keep anyone out.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

BACKLOG: Final = 1024
"""Connections that wait to be accepted; the kernel has its own limit."""

_ACCEPTS_AT_ONCE: Final = 64
_NO_DESCRIPTOR_S: Final = 0.1
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

Connection = TypeVar("Connection", bound=Hashable)


class ConnectionLimiter(Generic[Connection]):
    """The connections of a server, oldest first; those of owners in ``kept`` are replaced last."""

    def __init__(self, limit: int, per_owner: int, kept: Collection[Hashable] = ()) -> None:
        """Permit ``limit`` connections in all, ``per_owner`` of one owner."""
        self._limit, self._per_owner, self._kept = limit, per_owner, frozenset(kept)
        self._owner: dict[Connection, Hashable] = {}
        self._idle: set[Connection] = set()

    def __len__(self) -> int:
        return len(self._owner)

    def enter(self, connection: Connection, owner: Hashable) -> Connection | None:
        """Add a new, idle connection; return the connection that has to close, if any.

        That is the new one itself where its owner has as many connections with requests as it may.
        """
        closing: Connection | None = None
        counts = Counter(self._owner.values())
        if counts[owner] >= self._per_owner:
            closing = self._oldest(owner, only_idle=True)
            if closing is None:
                return connection
        elif len(self._owner) >= self._limit:
            others = {each: n for each, n in counts.items() if each not in self._kept} or counts
            greediest = max(others, key=others.__getitem__)
            closing = self._oldest(greediest, only_idle=True)
            if closing is None:
                closing = self._oldest(greediest, only_idle=False)
        if closing is not None:
            self.leave(closing)
        self._owner[connection] = owner
        self._idle.add(connection)
        return closing

    def mark_requested(self, connection: Connection) -> None:
        """Note that a connection has sent its request."""
        self._idle.discard(connection)

    def leave(self, connection: Connection) -> None:
        """Remove a connection; one that is not there is ignored."""
        self._owner.pop(connection, None)
        self._idle.discard(connection)

    def _oldest(self, owner: Hashable, *, only_idle: bool) -> Connection | None:
        for connection, its in self._owner.items():
            if its == owner and (connection in self._idle or not only_idle):
                return connection
        return None


@dataclass(eq=False, slots=True)
class Client:
    """A connection: its request so far, then what is left to send of the answer.

    ``watched`` are the events that the selector waits for: none while an answer is being made.
    """

    socket: socket.socket
    owner: Hashable
    deadline_s: float
    received: bytearray = field(default_factory=bytearray)
    unsent: memoryview | None = None
    watched: int = 0


AnyClient = TypeVar("AnyClient", bound=Client)


class BoundedServer(ABC, Generic[AnyClient]):
    """Serves a listening socket in the thread of ``serve_forever``."""

    def __init__(
        self, listener: socket.socket, limiter: ConnectionLimiter[AnyClient], max_bytes: int
    ) -> None:
        """Read requests in parts of ``max_bytes``, which is the longest one."""
        self._listener, self._limiter, self._max_bytes = listener, limiter, max_bytes
        self._clients: set[AnyClient] = set()
        self._closing = False
        self._closing_lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, _READ)
        self._selector.register(self._wake_read, _READ)

    @abstractmethod
    def _admit(self, connection: socket.socket) -> AnyClient:
        """Return the client of a new connection; raises OSError where it has gone already."""

    @abstractmethod
    def _find_request(self, client: AnyClient) -> bytes | None:
        """Return the request, also an overlong one, or None while it is incomplete."""

    @abstractmethod
    def _handle(self, client: AnyClient, request: bytes) -> None:
        """Answer a request with ``_send``, now or after ``_wake``."""

    def _refuse(self, client: AnyClient) -> None:
        """End a client that is over a limit."""
        self._drop(client)

    def _expire(self, client: AnyClient) -> None:
        """End a client whose time is over."""
        self._drop(client)

    def _answer_pending(self) -> None:
        """Send the answers that are complete since ``_wake``."""
        return

    def serve_forever(self) -> None:
        """Answer until ``shutdown``."""
        while not self._closing:
            for key, _ in self._selector.select(self._timeout_s()):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data is not None:
                    self._step(key.data)
                else:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                    self._answer_pending()
            now_s = time.monotonic()
            for late in [c for c in self._clients if c.deadline_s <= now_s]:
                self._expire(late)

    def shutdown(self) -> None:
        """Make ``serve_forever`` return; for any thread."""
        self._closing = True
        self._wake()

    def server_close(self) -> None:
        """Close all; ``serve_forever`` has returned."""
        with self._closing_lock:
            self._closing = True
            os.close(self._wake_write)
            self._wake_write = -1
        for client in list(self._clients):
            self._drop(client)
        self._selector.close()
        self._listener.close()
        os.close(self._wake_read)

    def _wake(self) -> None:
        """Wake the thread; for any thread, also after ``server_close``."""
        with self._closing_lock, contextlib.suppress(BlockingIOError):
            if self._wake_write >= 0:
                os.write(self._wake_write, b"x")

    def _timeout_s(self) -> float | None:
        if not self._clients:
            return None
        return max(0.0, min(c.deadline_s for c in self._clients) - time.monotonic())

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                # After EMFILE and the like the listener stays readable: do not spin.
                time.sleep(_NO_DESCRIPTOR_S)
                return
            connection.setblocking(False)
            try:
                client = self._admit(connection)
            except OSError:
                connection.close()
                continue
            self._clients.add(client)
            leaving = self._limiter.enter(client, client.owner)
            if leaving is not None:
                self._refuse(leaving)
            if leaving is not client:
                self._step(client)  # most have sent their request by now

    def _step(self, client: AnyClient) -> None:
        if client not in self._clients:
            return  # dropped since the selector returned
        try:
            if client.unsent is None:
                self._read(client)
            else:
                self._write(client)
        except BlockingIOError:
            self._watch(client, _READ if client.unsent is None else _WRITE)
        except OSError:
            self._drop(client)

    def _read(self, client: AnyClient) -> None:
        data = client.socket.recv(self._max_bytes)
        client.received += data
        request = self._find_request(client)
        if request is not None:
            # Read no more: further input of the client must not wake the thread.
            self._watch(client, 0)
            self._limiter.mark_requested(client)
            self._handle(client, request)
        elif data:
            self._watch(client, _READ)
        else:
            self._drop(client)

    def _send(self, client: AnyClient, answer: bytes, within_s: float) -> None:
        """Send as much of an answer as the client takes now, the rest later."""
        client.unsent = memoryview(answer)
        client.deadline_s = time.monotonic() + within_s
        self._step(client)

    def _write(self, client: AnyClient) -> None:
        while client.unsent:
            client.unsent = client.unsent[client.socket.send(client.unsent) :]
        self._drop(client)

    def _watch(self, client: AnyClient, events: int) -> None:
        """Have the selector wait for other events of a client than before, or for none."""
        if events == client.watched:
            return
        if not client.watched:
            self._selector.register(client.socket, events, client)
        elif events:
            self._selector.modify(client.socket, events, client)
        else:
            self._selector.unregister(client.socket)
        client.watched = events

    def _drop(self, client: AnyClient) -> None:
        self._clients.discard(client)
        self._limiter.leave(client)
        self._watch(client, 0)
        client.socket.close()
