"""How much of all accesses a tier is to serve, where its bandwidth is the limit.

Takes the share that a tier serves now, and how long loads wait for it and for the tier below; gives
the share that it may serve. A tier for which loads wait longer than for the one below serves too
much, however short its latency is when idle. The share at which both wait alike is found by
bisection, as each look at a share costs moves (Vuppalapati and Agarwal, "Tiered Memory Management:
Access Latency is the Key!", SOSP 2024). As long as no tier is crowded nothing is limited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_ALIKE: Final = 0.1
"""Waits that differ by less are alike."""

_MOST_STEP: Final = 0.1
"""What moves in one tick at most: moves take bandwidth, too, and what overshoots moves twice."""

_LEAST_STEP: Final = 0.02
"""Bounds of a share that are closer than this have met: the program is another."""


class Balance:
    """The bounds between which each tier's right share lies, so far."""

    def __init__(self) -> None:
        self._known: dict[int, _Bounds] = {}

    def ceiling(self, tier: int, share: float, wait_ns: float, below_ns: float) -> float:
        """Return the share of all accesses that a tier may serve; 1.0 is no limit.

        ``share`` is what it serves now, with loads that wait ``wait_ns`` for it, and ``below_ns``
        for the tier below.
        """
        crowded = wait_ns > below_ns * (1 + _ALIKE)
        if tier not in self._known:
            if not crowded:
                return 1.0
            self._known[tier] = _Bounds()
        bounds = self._known[tier]
        if crowded:
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
class _Bounds:
    """The right share lies between ``low`` and ``high``.

    Where they meet, but loads still do not wait alike, the program is another: the bound that
    fails goes away, in steps that double.
    """

    low: float = 0.0
    high: float = 1.0
    step: float = _LEAST_STEP

    def at_most(self, share: float) -> None:
        """Take that a share is too much."""
        self.high = min(self.high, share)
        if self._met():
            self.low = max(0.0, self.high - self._next_step())

    def at_least(self, share: float) -> None:
        """Take that a share is too little."""
        self.low = max(self.low, share)
        if self._met():
            self.high = self.low + self._next_step()

    def _met(self) -> bool:
        return self.high - self.low < _LEAST_STEP

    def _next_step(self) -> float:
        self.step *= 2
        return self.step
