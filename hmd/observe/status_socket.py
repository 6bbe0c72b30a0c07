"""The status socket: one JSON line in, one JSON line out, on a Unix stream socket.

A thread of its own answers from what the daemon last published, so that no client, however slow
or wrong, holds up a tick. Requests are bounded in size, clients in number and in time.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hmd.errors import HmdError

MAX_REQUEST_BYTES = 4096
MAX_CLIENTS = 32
CLIENT_TIME_S = 5.0
MAX_PATH_BYTES = 107
"""sun_path holds 108 bytes with its final zero (unix(7))."""

Answers = Mapping[str, Callable[[], bytes]]
"""By command: a function that returns the JSON document of the answer, called in the thread."""


@dataclass(slots=True)
class _Client:
    socket: socket.socket
    deadline_s: float
    request: bytearray = field(default_factory=bytearray)
    answer: memoryview | None = None


class StatusSocket:
    """Serves ``answers`` on ``path`` from construction to ``close``."""

    def __init__(self, path: Path, answers: Answers) -> None:
        """Bind (mode 0660, replacing what a dead daemon left) and start answering.

        Raises ``HmdError`` where the path cannot be bound.
        """
        self.path = path
        self._answers = answers
        self._listener = _bind(path)
        self._inode = path.stat().st_ino
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._clients: dict[int, _Client] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="hmd-status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering and remove the socket; may be called twice."""
        if self._closing:
            return
        self._closing = True
        os.write(self._wake_write, b"x")
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

    def _serve(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select(self._patience_s()):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, _Client):
                    with contextlib.suppress(BlockingIOError):
                        self._step(key.data)
            now_s = time.monotonic()
            for client in [c for c in self._clients.values() if c.deadline_s <= now_s]:
                self._drop(client)

    def _patience_s(self) -> float | None:
        if not self._clients:
            return None
        return max(0.0, min(c.deadline_s for c in self._clients.values()) - time.monotonic())

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            # EMFILE and its like: no busy loop on a listener that stays readable.
            time.sleep(0.1)
            return
        if len(self._clients) >= MAX_CLIENTS:
            connection.close()
            return
        connection.setblocking(False)
        client = _Client(connection, time.monotonic() + CLIENT_TIME_S)
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
            client.answer = memoryview(self._answer(bytes(line)) + b"\n")
            self._selector.modify(client.socket, selectors.EVENT_WRITE, client)

    def _write(self, client: _Client) -> None:
        assert client.answer is not None
        client.answer = client.answer[client.socket.send(client.answer) :]
        if not client.answer:
            self._drop(client)

    def _answer(self, line: bytes) -> bytes:
        if len(line) > MAX_REQUEST_BYTES:
            return _error(f"a request has {MAX_REQUEST_BYTES} bytes at most")
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            return _error('not JSON; ask as in {"command":"status"}')
        command = request.get("command") if isinstance(request, dict) else None
        answer = self._answers.get(command) if isinstance(command, str) else None
        if answer is None:
            return _error(f"no such command; there are {', '.join(sorted(self._answers))}")
        return answer()

    def _drop(self, client: _Client) -> None:
        self._clients.pop(client.socket.fileno(), None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(client.socket)
        client.socket.close()


def _error(text: str) -> bytes:
    return json.dumps({"error": text}).encode()


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
        raise HmdError(
            f"cannot make the status socket {path}: {error.strerror}; set observe.socket"
        ) from None
    finally:
        os.umask(umask)
    return listener
