"""The throughput of recent moves, which bounds the length of plans.

A plan that exceeds its time has made its demotions and deferred its promotions: pages have left the
fast node without gain so far. So a policy receives the bytes that can move in the time, as it
receives its budget, and plans what pays most within both.
"""

from __future__ import annotations

from math import isinf

from hmd.migrate.budget import UNLIMITED_BYTES
from hmd.units import HUGE_PAGE_BYTES

APPLY_TICKS = 2
"""Ticks that a plan may take. A tick has a fixed cost before it moves anything, and has it again
after a plan that was cut off: where hot sets change fast, plans of two ticks move more in total
(docs/explanation/comparison.md)."""

_MEASURABLE_BYTES = 256 << 10
"""The duration of a plan that moved less is mostly the fixed cost of its calls."""


class Throughput:
    """The bytes that can be moved within ``limit_s``, from the plans that were applied."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._bytes_per_s: float | None = None

    def observe(self, moved_bytes: int, seconds: float) -> None:
        """Average in a plan's throughput: the last plan counts half."""
        if moved_bytes < _MEASURABLE_BYTES or seconds <= 0:
            return
        speed = moved_bytes / seconds
        self._bytes_per_s = speed if self._bytes_per_s is None else (self._bytes_per_s + speed) / 2

    @property
    def bytes(self) -> int:
        """The bytes, at least a huge page; no limit before the first plan."""
        if self._bytes_per_s is None or isinf(self._limit_s):
            return UNLIMITED_BYTES
        return max(int(self._bytes_per_s * self._limit_s), HUGE_PAGE_BYTES)
