"""The migration budget, in bytes: a token bucket.

Page copies take memory bandwidth from the programs that they are to speed up; the bucket bounds
that share. The caller passes the time, in seconds, which only needs to be monotonic.
"""

from __future__ import annotations

from typing import Final

from hmd.units import HUGE_PAGE_BYTES

UNLIMITED_BYTES: Final = 2**63 - 1


class TokenBucket:
    """Fills at ``rate_bytes_per_s`` up to the bytes of ``burst_s`` seconds, and starts full.

    Its capacity is at least one huge page: with a small rate none could be moved otherwise. A rate
    of None is no limit.
    """

    def __init__(self, rate_bytes_per_s: int | None, burst_s: float) -> None:
        if rate_bytes_per_s is not None and rate_bytes_per_s < 0:
            raise ValueError(f"a rate of {rate_bytes_per_s} bytes per second is negative")
        if burst_s < 0:
            raise ValueError(f"a burst of {burst_s} seconds is negative")
        self._rate = rate_bytes_per_s
        self._capacity = max((rate_bytes_per_s or 0) * burst_s, float(HUGE_PAGE_BYTES))
        self._tokens = self._capacity
        self._filled_s: float | None = None

    def available_bytes(self, now_s: float) -> int:
        """Return how many bytes may be moved now."""
        if self._rate is None:
            return UNLIMITED_BYTES
        if self._filled_s is not None:
            elapsed_s = max(0.0, now_s - self._filled_s)
            self._tokens = min(self._capacity, self._tokens + elapsed_s * self._rate)
        self._filled_s = now_s
        return max(0, int(self._tokens))

    def spend(self, moved_bytes: int) -> None:
        """Take bytes that were moved; an excess becomes a debt, which later fills pay first."""
        self._tokens -= moved_bytes
