"""Bandwidth balance: the share of all accesses that a tier may serve.

Takes the share that a tier serves now and the loaded latencies of it and of the tier below, gives
the share that it may serve. A tier with a higher loaded latency than the tier below serves too
much, however low its idle latency is. Bisection finds the share at which both latencies are equal,
since each share that is tried costs moves (Vuppalapati and Agarwal, "Tiered Memory Management:
Access Latency is the Key!", SOSP 2024). Without a saturated tier there is no limit.

A tier is saturated when its latency is higher in two ticks in a row: in the tick after many moves,
loads wait for those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_ALIKE: Final = 0.1
"""Latencies that differ by less count as equal."""

_MOST_STEP: Final = 0.1
"""Largest change of a share per tick: moves use bandwidth too, and overshoot moves twice."""

_LEAST_STEP: Final = 0.02
"""Bounds that are closer than this have met: if latencies still differ, the program changed."""


class Balance:
    """Keeps the bounds of each tier's share from tick to tick."""

    def __init__(self) -> None:
        self._known: dict[int, _ShareBounds] = {}
        self._saturated: set[int] = set()

    def ceiling(self, tier: int, share: float, wait_ns: float, below_ns: float) -> float:
        """Return the share of all accesses that a tier may serve; 1.0 is no limit.

        ``share`` is what it serves now, ``wait_ns`` its loaded latency and ``below_ns`` that of
        the tier below.
        """
        saturated = wait_ns > below_ns * (1 + _ALIKE)
        before = tier in self._saturated
        if saturated:
            self._saturated.add(tier)
        else:
            self._saturated.discard(tier)
        if tier not in self._known:
            if not (saturated and before):
                return 1.0
            self._known[tier] = _ShareBounds()
        bounds = self._known[tier]
        if saturated:
            bounds.at_most(share)
        elif wait_ns < below_ns * (1 - _ALIKE):
            bounds.at_least(share)
        else:
            bounds.step = _LEAST_STEP
            return share
        if bounds.high > 1.0:
            del self._known[tier]
            return 1.0
        middle = (bounds.low + bounds.high) / 2
        return min(max(middle, share - _MOST_STEP), share + _MOST_STEP)


@dataclass(slots=True)
class _ShareBounds:
    """The share at which latencies are equal lies between ``low`` and ``high``.

    Where the bounds meet and latencies still differ, the program has changed: the bound that fails
    is moved away, in steps that double.
    """

    low: float = 0.0
    high: float = 1.0
    step: float = _LEAST_STEP

    def at_most(self, share: float) -> None:
        """Record that a share is too large."""
        self.high = min(self.high, share)
        if self._met():
            self.low = max(0.0, self.high - self._next_step())

    def at_least(self, share: float) -> None:
        """Record that a share is too small."""
        self.low = max(self.low, share)
        if self._met():
            self.high = self.low + self._next_step()

    def _met(self) -> bool:
        return self.high - self.low < _LEAST_STEP

    def _next_step(self) -> float:
        self.step *= 2
        return self.step
