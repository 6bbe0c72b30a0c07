"""Clients that try to keep others out: idle connections, requests that are refused, busy loops.

Each runs in a process of its own as a user who may connect to the status socket, that is, a member
of its group, until it is killed. What the daemon closes is opened again.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ATTACKER_UID: Final = 64711
HTTP_CONNECTIONS: Final = 2000
SOCKET_CONNECTIONS: Final = 40
REFUSED_PER_S: Final = 1000
BUSY_PER_CPU: Final = 40
BUSY_S: Final = 10.0
REOPEN_S: Final = 1.0

Connect = Callable[[], socket.socket]


def hold_idle(connect: Connect, count: int) -> None:
    """Keep ``count`` connections open that send half a request at most."""
    held: list[socket.socket] = []
    while True:
        begun_s = time.monotonic()
        held = [s for s in held if _open(s)]
        while len(held) < count:
            try:
                held.append(connect())
            except OSError:
                break
        time.sleep(max(0.0, REOPEN_S - (time.monotonic() - begun_s)))


def request_refused(path: Path, rate_per_s: int) -> None:
    """Send admin requests that this user may not make, ``rate_per_s`` of them."""
    due_s = time.monotonic()
    while True:
        with contextlib.suppress(OSError), _unix(path) as s:
            s.sendall(b'{"command": "pause"}\n')
            s.recv(4096)
        due_s = max(due_s + 1 / rate_per_s, time.monotonic() - 1)
        time.sleep(max(0.0, due_s - time.monotonic()))


def keep_busy() -> None:
    """Use all CPU time that there is, every other 10 seconds: meanwhile requests are few."""
    while True:
        turn, left_s = divmod(time.monotonic(), BUSY_S)
        if turn % 2:
            time.sleep(BUSY_S - left_s)


@contextmanager
def attackers(path: Path, metrics_port: int, group: int) -> Iterator[None]:
    """Run all of them at once."""
    half_a_request = b"GET /metrics HT"

    def http() -> socket.socket:
        s = socket.create_connection(("127.0.0.1", metrics_port), timeout=5)
        s.sendall(half_a_request)
        s.setblocking(False)
        return s

    def idle_client() -> socket.socket:
        s = _unix(path)
        s.sendall(b'{"comm')
        s.setblocking(False)
        return s

    works: list[Callable[[], None]] = [
        lambda: hold_idle(http, HTTP_CONNECTIONS),
        lambda: hold_idle(idle_client, SOCKET_CONNECTIONS),
        lambda: request_refused(path, REFUSED_PER_S),
        *[keep_busy] * (BUSY_PER_CPU * len(os.sched_getaffinity(0))),
    ]
    context = multiprocessing.get_context("fork")
    running = [context.Process(target=_as_attacker, args=(work, group)) for work in works]
    try:
        for process in running:
            process.start()
        yield
    finally:
        for process in running:
            if process.is_alive():
                process.kill()
                process.join()


def _as_attacker(work: Callable[[], None], group: int) -> None:
    most = max(resource.getrlimit(resource.RLIMIT_NOFILE)[1], HTTP_CONNECTIONS + 64)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.setgroups([])
    os.setgid(group)
    os.setuid(ATTACKER_UID)
    work()


def _unix(path: Path) -> socket.socket:
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(5)
    try:
        s.connect(str(path))
    except BaseException:
        s.close()
        raise
    return s


def _open(s: socket.socket) -> bool:
    """Return whether the other end has not closed a connection; closes it otherwise."""
    try:
        if s.recv(4096):
            return True
    except BlockingIOError:
        return True
    except OSError:
        pass
    s.close()
    return False
