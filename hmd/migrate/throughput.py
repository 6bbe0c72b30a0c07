"""How far a plan can go in the time that it may take, by how fast pages moved of late.

A plan that is cut off by the clock has made its demotions and left its promotions: pages of the
fast node have gone for nothing yet. So a policy is told what can be moved, as it is told its
budget, and plans what pays most within both.
"""

from __future__ import annotations

from math import isinf

from hmd.migrate.budget import UNLIMITED_BYTES
from hmd.units import HUGE_PAGE_BYTES

APPLY_TICKS = 2
"""How many ticks' time a plan may take. What a tick costs before it moves anything it costs again
after a plan that was cut short: where hot sets move fast, plans of two ticks' time move more in all
(docs/explanation/comparison.md)."""

_TELLING_BYTES = 256 << 10
"""A plan that moved less tells the cost of its calls, not the speed of pages."""


class Reach:
    """What can be moved within ``limit_s``; learns from every plan that was applied."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._bytes_per_s: float | None = None

    def learn(self, moved_bytes: int, seconds: float) -> None:
        """Take note of a plan that moved so much in so long; the last ones count half each."""
        if moved_bytes < _TELLING_BYTES or seconds <= 0:
            return
        speed = moved_bytes / seconds
        self._bytes_per_s = speed if self._bytes_per_s is None else (self._bytes_per_s + speed) / 2

    @property
    def bytes(self) -> int:
        """At least a huge page, or a slow machine could never move one; at first no limit."""
        if self._bytes_per_s is None or isinf(self._limit_s):
            return UNLIMITED_BYTES
        return max(int(self._bytes_per_s * self._limit_s), HUGE_PAGE_BYTES)
