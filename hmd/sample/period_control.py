"""Control of the sampling period: keeps the daemon within its CPU quota.

Takes the CPU time that the daemon used since the last update, and the number of lost samples; gives
the period to use. Periods are primes, because a period that divides the length of a program's loop
would always sample the same place in it. The idea and the range from 199 are those of Memtis (SOSP
2023).

The cost of sampling is approximately proportional to 1/period. Above the quota, the period
therefore goes at once to the value that this law gives. Below the quota it decreases by one rung
at a time, which accounts for costs outside the law (other work of the daemon, processes that
start and exit).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

PRIMES = (
    *(199, 233, 277, 317, 373, 439, 509, 601, 701, 823),
    *(967, 1129, 1327, 1553, 1823, 2137, 2503, 2939, 3449, 4049),
    *(4751, 5573, 6529, 7649, 8969, 10513, 12323, 14449, 16937, 19997),
)
"""Periods for real machines: 30 primes from 199 to 19997, with a ratio of about 1.17."""

SMALL_PRIMES = (7, 11, 13, 17, 23, 29, 37, 47, 59, 73, 89, 109, 131, 163)
"""Shorter periods for slow machines with few accesses (the emulated machine)."""

_PARTNER_PERCENT = 6
"""Large enough that the phase of two counters varies quickly, small enough that both give about as
many samples."""


def partner(period: int) -> int:
    """Return the period of a second counter of the same event: a prime some 6 % longer.

    Periods without a common divisor overflow at every distance from each other equally often, once
    per product of the periods. Pairs of samples close together are thus an unbiased sample of
    accesses close together.
    """
    longer = period + max(1, -(-period * _PARTNER_PERCENT // 100))
    while any(longer % divisor == 0 for divisor in range(2, isqrt(longer) + 1)):
        longer += 1
    return longer


def stands_for(period: int, second: int) -> int:
    """Return the accesses per sample of two counters together, rounded."""
    return max(1, round(period * second / (period + second)))


@dataclass(frozen=True, slots=True)
class PeriodSettings:
    """``quota`` is a share of one CPU; within ``hysteresis`` (a share) of it the period stays."""

    quota: float = 0.01
    hysteresis: float = 0.2
    smoothing: float = 0.3
    """Weight of the newest observation in the running mean of the CPU use."""


class PeriodControl:
    """Steps along a ladder of periods; no clock and no sampler of its own."""

    def __init__(
        self, settings: PeriodSettings, ladder: Sequence[int] = PRIMES, start: int | None = None
    ) -> None:
        """Start at the rung at or above ``start``, else at the ladder's middle.

        ``ladder`` must ascend; ValueError if it does not or is empty.
        """
        self._ladder = tuple(ladder)
        if not self._ladder or any(
            a >= b for a, b in zip(self._ladder, self._ladder[1:], strict=False)
        ):
            raise ValueError("a ladder of periods ascends")
        self._settings = settings
        self._rung = len(self._ladder) // 2 if start is None else self._at_least(start)
        self._use: float | None = None

    @property
    def period(self) -> int:
        """The period to use."""
        return self._ladder[self._rung]

    @property
    def use(self) -> float:
        """Running mean of the CPU time used, as a share of one CPU."""
        return self._use or 0.0

    def update(self, cpu_s: float, elapsed_s: float, lost: int = 0) -> int:
        """Return the period after ``cpu_s`` CPU seconds were used in ``elapsed_s`` seconds.

        ``lost`` samples since the last call mean that rings overflow between two reads; the period
        then increases by one rung and does not decrease.
        """
        if elapsed_s <= 0:
            return self.period
        seen = cpu_s / elapsed_s
        weight = self._settings.smoothing
        self._use = seen if self._use is None else self._use + weight * (seen - self._use)
        quota, slack = self._settings.quota, self._settings.hysteresis
        if self._use > quota * (1 + slack):
            self._lengthen(self._use / quota)
        elif lost > 0:
            self._lengthen(1.0)
        elif self._use < quota * (1 - slack) and self._rung > 0:
            self._shift(self._rung - 1)
        return self.period

    def _lengthen(self, factor: float) -> None:
        """Go to the first rung at or above ``factor`` times the period, one rung at least."""
        self._shift(max(self._rung + 1, self._at_least(self.period * factor)))

    def _at_least(self, period: float) -> int:
        return min(bisect_left(self._ladder, period), len(self._ladder) - 1)

    def _shift(self, rung: int) -> None:
        """Take the rung; the running mean becomes what the new period should cost.

        Otherwise the period would increase at every call after one expensive tick, until the mean
        has decayed.
        """
        before = self.period
        self._rung = min(rung, len(self._ladder) - 1)
        if self._use is not None:
            self._use *= before / self.period
