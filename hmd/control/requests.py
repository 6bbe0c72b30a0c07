# SPDX-License-Identifier: MIT
"""Requests on the status socket: their form, how often a user may ask, and who may ask for what.

A request is one line of JSON, ``{"command": NAME, ...}``; the other keys are its arguments. The
caller is identified by the credentials that the kernel took when it connected (SO_PEERCRED,
unix(7)).

Administrators, root and the daemon's user, may everything. Other users may control and see their
own processes: those whose pages the kernel would let them move without hmd. move_pages(2) asks for
PTRACE_MODE_READ_REALCREDS (ptrace(2), "Ptrace access mode checking"); :mod:`hmd.linux.procfs` has
what that compares. Heat maps show addresses and when a program accesses what, so those of other
users' processes are hidden; sums of targets are for everyone who may connect. Only other users have
limits of requests per second and of lines in the log; requests that take long count as several.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from hmd.base.errors import Exit, HmdError, NotPermittedError, TargetError, UsageError
from hmd.linux.procfs import PROC, ProcessId, read_identity, read_int, read_stat, read_text

MAX_REQUEST_BYTES: Final = 4096
_UCRED: Final = struct.Struct("iII")
"""struct ucred (unix(7)): pid, uid, gid."""

RATE_PER_S: Final = 20.0
BURST: Final = 256
"""Requests at once: as many as one user may have pins."""

REQUEST_CPU_S: Final = 0.0005
"""CPU time of the loop that counts as one request: the requests of a user take 1 % of a CPU."""

LOG_WINDOW_S: Final = 60.0
MAX_OWN_LINES: Final = 3
MAX_LINES: Final = 10
"""Lines per window about the requests of one user, and of all users."""

_MAX_USERS: Final = 1024

ROOT: Final = 0
_ALL_UIDS: Final = str(2**32 - 1)


@dataclass(frozen=True, slots=True)
class Peer:
    """The credentials of a client, which the kernel took when it connected."""

    pid: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A command with its arguments, and the client that sent it."""

    command: str
    arguments: Mapping[str, Any]
    peer: Peer


def peer_of(connection: socket.socket) -> Peer:
    """Return the credentials of a connected Unix socket's other end (SO_PEERCRED, unix(7))."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return Peer(*_UCRED.unpack(data))


def parse_request(line: bytes, peer: Peer) -> ControlRequest:
    """Return the request of a line; raises ``UsageError``."""
    if len(line) > MAX_REQUEST_BYTES:
        raise UsageError(f"a request has at most {MAX_REQUEST_BYTES} bytes")
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise UsageError('not JSON: send a line such as {"command":"status"}') from None
    command = document.pop("command", None) if isinstance(document, dict) else None
    if not isinstance(command, str):
        raise UsageError('no command: send a line such as {"command":"status"}')
    return ControlRequest(command, document, peer)


def error_answer(error: Exception) -> bytes:
    """Return the answer for an error: one line, and the exit code that goes with it."""
    text = " ".join(str(error).split()) or type(error).__name__
    code = error.exit_code if isinstance(error, HmdError) else Exit.FAILURE
    return json.dumps({"error": text, "code": int(code)}).encode()


class RequestRate:
    """A token bucket per user; for any thread.

    The socket's thread takes a token per request, the loop as many as its CPU time is worth.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._buckets: dict[int, tuple[float, float]] = {}

    def admit(self, peer: Peer) -> None:
        """Count a request; raises ``HmdError`` where its user has asked too often."""
        with self._lock:
            now_s, tokens = self._tokens(peer)
            if tokens < 1:
                raise HmdError(
                    f"uid {peer.uid} asks too often: at most {RATE_PER_S:g} requests per second,"
                    f" fewer that take long; next in {math.ceil((1 - tokens) / RATE_PER_S)} s"
                )
            self._set(peer, tokens - 1, now_s)

    def charge(self, peer: Peer, cpu_s: float) -> None:
        """Count the CPU time of a request beyond that of one; a user may owe tokens."""
        with self._lock:
            now_s, tokens = self._tokens(peer)
            self._set(peer, tokens - max(cpu_s / REQUEST_CPU_S - 1, 0.0), now_s)

    def _tokens(self, peer: Peer) -> tuple[float, float]:
        """Return the time, and the tokens that a user has by then."""
        now_s = self._clock()
        tokens, since_s = self._buckets.get(peer.uid, (float(BURST), now_s))
        return now_s, min(float(BURST), tokens + (now_s - since_s) * RATE_PER_S)

    def _set(self, peer: Peer, tokens: float, now_s: float) -> None:
        if len(self._buckets) >= _MAX_USERS and peer.uid not in self._buckets:
            self._drop_full(now_s)
        self._buckets[peer.uid] = (tokens, now_s)

    def _drop_full(self, now_s: float) -> None:
        """Drop users whose buckets are full again, and the oldest where there is none."""
        self._buckets = {
            uid: (tokens, since_s)
            for uid, (tokens, since_s) in self._buckets.items()
            if tokens + (now_s - since_s) * RATE_PER_S < BURST
        }
        while len(self._buckets) >= _MAX_USERS:
            del self._buckets[next(iter(self._buckets))]


class RequestLog:
    """Logs requests of users, ``MAX_OWN_LINES`` per window and user; then how many there were."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._lock = threading.Lock()
        self._since_s = clock()
        self._lines: Counter[int] = Counter()
        self._silent: Counter[int] = Counter()

    def write(self, peer: Peer, level: int, text: str) -> None:
        """Log one line about a request of a user, or count it."""
        self.flush()
        with self._lock:
            shown = self._lines[peer.uid] < MAX_OWN_LINES and self._lines.total() < MAX_LINES
            (self._lines if shown else self._silent)[peer.uid] += 1
        if shown:
            self._log.log(level, "%s", text)

    def flush(self) -> None:
        """At the end of a window, log what was not shown, in one line."""
        with self._lock:
            if self._clock() - self._since_s < LOG_WINDOW_S:
                return
            silent, self._silent = self._silent, Counter()
            self._lines.clear()
            self._since_s = self._clock()
        if silent:
            users = ", ".join(f"{count} by uid {uid}" for uid, count in silent.most_common(8))
            others = len(silent) - 8
            more = f", and of {others} other users" if others > 0 else ""
            self._log.warning("admin requests that were not logged: %s%s", users, more)


def is_administrator(peer: Peer) -> bool:
    """Return whether a caller is root or the daemon's user."""
    return peer.uid in (ROOT, os.geteuid())


def check_administrator(peer: Peer, what: str) -> None:
    """Raise ``NotPermittedError`` unless the caller is root or the daemon's user."""
    if not is_administrator(peer):
        raise NotPermittedError(
            f"only root and the daemon's user may {what}: you are uid {peer.uid}; try sudo"
        )


def check_owner(peer: Peer, process: ProcessId, what: str, proc: Path = PROC) -> None:
    """Raise ``NotPermittedError`` for another user's process, ``TargetError`` for an exited one."""
    if is_administrator(peer):
        return
    check_known(peer, proc)
    refusal = refusal_for(peer.uid, peer.gid, process, proc)
    if refusal is not None:
        raise NotPermittedError(
            f"process {process.pid} {refusal}, you are uid {peer.uid}, gid {peer.gid}: "
            f"only its owner, root and the daemon's user may {what}"
        )


def owns(peer: Peer, process: ProcessId, proc: Path = PROC) -> bool:
    """Return whether a process is the caller's own; an exited one is not."""
    try:
        check_owner(peer, process, "see it", proc)
    except (NotPermittedError, TargetError):
        return False
    return True


def refusal_for(uid: int, gid: int, process: ProcessId, proc: Path = PROC) -> str | None:
    """Return why the kernel lets no unprivileged process of ``uid`` and ``gid`` move its pages.

    Raises ``TargetError`` where the process has exited. Security modules (AppArmor, SELinux) are
    not asked; a process in another user namespace than the daemon counts as another user's.
    """
    identity = read_identity(process, proc)
    if identity is None:
        raise TargetError(f"process {process.pid} has exited: name another")
    if identity.uids != {uid}:
        return f"belongs to uid {_listed(identity.uids)}"
    if identity.gids != {gid}:
        return f"belongs to gid {_listed(identity.gids)}"
    if identity.capable:
        return "has capabilities"
    if not identity.dumpable:
        return "is protected (PR_SET_DUMPABLE, or a program that its user may not read)"
    if not identity.same_namespace:
        return "is in another user namespace"
    return None


def check_known(peer: Peer, proc: Path = PROC) -> None:
    """Raise ``NotPermittedError`` for a user whom the daemon's user namespace does not map.

    All such users have one uid there (user_namespaces(7), kernel.overflowuid), and are not the
    user who has that uid.
    """
    if peer.uid != read_int(proc / "sys/kernel/overflowuid"):
        return
    mapped = (read_text(proc / "self/uid_map") or "").split()
    if mapped and mapped != ["0", "0", _ALL_UIDS]:
        raise NotPermittedError(
            "the daemon's user namespace does not map your uid: ask as its root"
        )


def check_caller(peer: Peer, proc: Path = PROC) -> None:
    """Raise ``HmdError`` where the caller has exited, or runs with the rights of another user.

    The kernel compares real ids, and SO_PEERCRED has effective ones: they differ in a set-user-ID
    program. Pid 0 is in another pid namespace.
    """
    if not peer.pid:
        return
    stat = read_stat(peer.pid, proc)
    identity = read_identity(stat.process, proc) if stat and not stat.exited else None
    if identity is None:
        raise TargetError(
            f"process {peer.pid}, which sent the request, has exited: nothing is done"
        )
    if is_administrator(peer):
        return
    if (identity.real_uid, identity.real_gid) != (peer.uid, peer.gid):
        raise NotPermittedError(
            f"process {peer.pid}, which sent the request, has the real uid {identity.real_uid} "
            f"and gid {identity.real_gid}: ask without a set-user-ID program"
        )


def _listed(ids: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(ids)))


def visible_to(peer: Peer, proc: Path = PROC) -> Callable[[ProcessId], bool]:
    """Return the predicate of one request; it asks the kernel once per process."""
    if is_administrator(peer):
        return lambda _: True
    return cache(lambda process: owns(peer, process, proc))
