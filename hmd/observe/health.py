"""Liveness of the tick, for probes of a container runtime or a load balancer.

The tick records that it ended; threads of the metrics server read how long ago that was. A process
that only answers is not proof of a daemon that works: its answering threads outlive a hung tick.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

ALLOWED_TICKS = 3
"""Ticks that may be missed: the next one waits while one takes too long."""

ALLOWED_S = 30.0
"""Added to them: one tick may wait for the kernel, as move_pages does under memory pressure."""


class TickHealth(NamedTuple):
    """Whether ticks end in time, and one line for a person."""

    healthy: bool
    text: str


class TickWatch:
    """The time of the last tick; one thread records, any thread reads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the time in seconds from ``clock``."""
        self._clock = clock
        self._last: tuple[float, float] | None = None

    def ticked(self, tick_s: float) -> None:
        """Record that a tick has ended and that the next is due in ``tick_s``."""
        self._last = self._clock(), ALLOWED_TICKS * tick_s + ALLOWED_S

    def health(self) -> TickHealth:
        """Return unhealthy before the first tick, and where the last one is too long ago."""
        if self._last is None:
            return TickHealth(False, "no tick yet")
        ended_s, limit_s = self._last
        age_s = self._clock() - ended_s
        text = f"last tick {age_s:.1f} s ago, at most {limit_s:.0f} s"
        return TickHealth(age_s <= limit_s, text)
