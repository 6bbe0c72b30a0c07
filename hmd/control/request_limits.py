"""Limits of what one user may ask for and write to the log, in requests per second and lines.

Only administrators are free of them: a user who asks a thousand times per second costs the daemon's
loop no more than one who asks twenty times, and requests that take long count as several.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from hmd.control.request import Peer
from hmd.errors import HmdError

RATE_PER_S: Final = 20.0
BURST: Final = 256
"""Requests at once: as many as one user may have pins."""

REQUEST_CPU_S: Final = 0.0005
"""CPU time of the loop that counts as one request: the requests of a user take 1 % of a CPU."""

LOG_WINDOW_S: Final = 60.0
OWN_LINES: Final = 3
ALL_LINES: Final = 10
"""Lines per window about the requests of one user, and of all users."""

_MAX_USERS: Final = 1024


class RequestRate:
    """A token bucket per user; for any thread.

    The socket's thread takes a token per request, the loop those of the CPU time that it took.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with full buckets."""
        self._clock, self._lock = clock, threading.Lock()
        self._buckets: dict[int, tuple[float, float]] = {}

    def take(self, peer: Peer) -> None:
        """Count a request; raises ``HmdError`` where its user has asked too often."""
        with self._lock:
            now_s, tokens = self._tokens(peer)
            if tokens < 1:
                raise HmdError(
                    f"uid {peer.uid} asks too often: at most {RATE_PER_S:g} requests per second,"
                    f" fewer that take long; next in {math.ceil((1 - tokens) / RATE_PER_S)} s"
                )
            self._keep(peer, tokens - 1, now_s)

    def charge(self, peer: Peer, cpu_s: float) -> None:
        """Count the CPU time of a request beyond that of one; a user may owe tokens."""
        with self._lock:
            now_s, tokens = self._tokens(peer)
            self._keep(peer, tokens - max(cpu_s / REQUEST_CPU_S - 1, 0.0), now_s)

    def _tokens(self, peer: Peer) -> tuple[float, float]:
        """Return the time, and the tokens that a user has by then."""
        now_s = self._clock()
        tokens, since_s = self._buckets.get(peer.uid, (float(BURST), now_s))
        return now_s, min(float(BURST), tokens + (now_s - since_s) * RATE_PER_S)

    def _keep(self, peer: Peer, tokens: float, now_s: float) -> None:
        if len(self._buckets) >= _MAX_USERS and peer.uid not in self._buckets:
            self._forget_full(now_s)
        self._buckets[peer.uid] = (tokens, now_s)

    def _forget_full(self, now_s: float) -> None:
        """Drop users whose buckets are full again, and the oldest where there is none."""
        self._buckets = {
            uid: (tokens, since_s)
            for uid, (tokens, since_s) in self._buckets.items()
            if tokens + (now_s - since_s) * RATE_PER_S < BURST
        }
        while len(self._buckets) >= _MAX_USERS:
            del self._buckets[next(iter(self._buckets))]


class RequestLog:
    """Logs requests of users, ``OWN_LINES`` per window and user; then how many there were."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        """Log to ``log``; for any thread."""
        self._log, self._clock = log, clock
        self._lock = threading.Lock()
        self._since_s = clock()
        self._lines: Counter[int] = Counter()
        self._silent: Counter[int] = Counter()

    def write(self, peer: Peer, level: int, text: str) -> None:
        """Log one line about a request of a user, or count it."""
        self.flush()
        with self._lock:
            shown = self._lines[peer.uid] < OWN_LINES and self._lines.total() < ALL_LINES
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
