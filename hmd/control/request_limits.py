"""Limits of what one user may ask for and write to the log, in requests per second and lines.

Only administrators are free of them: a user who asks a thousand times per second costs the daemon's
loop no more than one who asks twenty times.
"""

from __future__ import annotations

import logging
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

LOG_WINDOW_S: Final = 60.0
OWN_LINES: Final = 3
ALL_LINES: Final = 10
"""Lines per window about the requests of one user, and of all users."""

_MAX_USERS: Final = 1024


class RequestRate:
    """A token bucket per user; for one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with full buckets."""
        self._clock = clock
        self._buckets: dict[int, tuple[float, float]] = {}

    def take(self, peer: Peer) -> None:
        """Count a request; raises ``HmdError`` where its user has asked too often."""
        now_s = self._clock()
        tokens, since_s = self._buckets.get(peer.uid, (float(BURST), now_s))
        tokens = min(float(BURST), tokens + (now_s - since_s) * RATE_PER_S)
        if tokens < 1:
            raise HmdError(
                f"uid {peer.uid} asks too often: at most {RATE_PER_S:g} requests per second"
            )
        if len(self._buckets) >= _MAX_USERS and peer.uid not in self._buckets:
            self._forget_full(now_s)
        self._buckets[peer.uid] = (tokens - 1, now_s)

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
