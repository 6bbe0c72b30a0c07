"""Control of the sampling period: keeps the cost of sampling within its limits.

Takes the CPU time of each tick and of sampling in it, the number of samples, and the time that
records took of programs; gives the period to use. Periods are primes, because a period that divides
the length of a program's loop would always sample the same place in it. The idea and the range from
199 are those of Memtis (SOSP 2023).

What samples cost is proportional to 1/period. The daemon's other work is not: a longer period
cannot save it. Samples may therefore cost what the other work leaves of the quota, and half of the
quota in any case. The period goes at once to the value that this allows where accesses become more,
and halves per tick at most where they become fewer.

Records also take time of the programs that they are taken on (``record_cost``), on the CPU that
accesses most up to a limit of its own. The longer of both periods is used. This one shortens more
slowly, by a sixth per tick: programs have quiet phases, such as their initialization, and the first
tick after one would have many times the records of the limit.

A program that has just started is seen with the period of the start, not with that of the program
before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt

from hmd.sample.record_cost import RecordTime
from hmd.sample.sample_cost import SampleCost

PRIMES = (
    *(199, 233, 277, 317, 373, 439, 509, 601, 701, 823),
    *(967, 1129, 1327, 1553, 1823, 2137, 2503, 2939, 3449, 4049),
    *(4751, 5573, 6529, 7649, 8969, 10513, 12323, 14449, 16937, 19997),
)
"""Periods for real machines: 30 primes from 199 to 19997, with a ratio of about 1.17."""

SMALL_PRIMES = (7, 11, 13, 17, 23, 29, 37, 47, 59, 73, 89, 109, 131, 163)
"""Shorter periods for slow machines with few accesses (the emulated machine)."""

_FADE = 1 / 1.17
"""What a tick keeps of the most that records of every access would take: a rung of ``PRIMES``."""

_PARTNER_PERCENT = 6
"""Large enough that the phase of two counters varies quickly, small enough that both give about as
many samples."""


def clamp(period: int, ladder: Sequence[int]) -> int:
    """Return the period, or the end of the ladder that it is beyond."""
    return min(max(period, ladder[0]), ladder[-1])


def partner(period: int) -> int:
    """Return the period of a second counter of the same event: a prime some 6 % longer.

    Periods without a common divisor overflow at every distance from each other equally often, once
    per product of the periods. Pairs of samples close together are thus an unbiased sample of
    accesses close together.
    """
    return _prime_from(period + max(1, -(-period * _PARTNER_PERCENT // 100)))


def scaled(period: int, scale: int) -> int:
    """Return the period of a rarer event, some ``scale`` times as long: a prime, too.

    A multiple of the words in a cache line would always sample the same store of each line that a
    program fills: the one that misses, which then stands for all, or one that hits.
    """
    return period if scale == 1 else _prime_from(period * scale)


@lru_cache(maxsize=256)
def _prime_from(least: int) -> int:
    """Return the first prime that is not below ``least``."""
    number = max(least, 2)
    while any(number % divisor == 0 for divisor in range(2, isqrt(number) + 1)):
        number += 1
    return number


def stands_for(period: int, second: int) -> int:
    """Return the accesses per sample of two counters together, rounded."""
    return max(1, round(period * second / (period + second)))


@dataclass(frozen=True, slots=True)
class PeriodSettings:
    """``quota`` is a share of one CPU; within ``hysteresis`` (a share) of it the period stays.

    ``overhead`` is the share of a CPU that records may take of the programs on it.
    """

    quota: float = 0.01
    overhead: float = 0.01
    hysteresis: float = 0.2
    smoothing: float = 0.3
    """Weight of the newest observation in running means of the CPU use."""
    least: float = 0.5
    """Share of the quota that samples may cost whatever the other work takes."""


@dataclass(frozen=True, slots=True)
class TickCost:
    """CPU seconds of a tick of ``elapsed_s``, and the part of them that sampling took.

    ``units`` is what that part grows with: samples, or these CPU seconds themselves where all of
    them follow from the period. ``lost`` samples did not fit into rings. ``stretch`` is how many
    times longer the quota has made the tick: other work counts as if it had not, since samples
    would otherwise take what longer ticks save. ``overhead`` is the share of its time that records
    took of the CPU with most of them. ``period`` is that with which the samples were taken, 0 for
    the present one: a tick reads what was sampled before it set its own.
    """

    elapsed_s: float
    cpu_s: float
    sampling_cpu_s: float
    units: float
    lost: int = 0
    stretch: float = 1.0
    overhead: float = 0.0
    period: int = 0


@dataclass(frozen=True, slots=True)
class CostCounters:
    """Sums since the start: seconds on the clock and of CPU time, samples, lost ones, records."""

    now_s: float
    cpu_s: float
    sampling_cpu_s: float
    samples: int
    lost: int
    records: RecordTime

    def since(self, earlier: CostCounters) -> TickCost:
        """Return what came since an earlier reading."""
        return TickCost(
            self.now_s - earlier.now_s,
            self.cpu_s - earlier.cpu_s,
            self.sampling_cpu_s - earlier.sampling_cpu_s,
            self.samples - earlier.samples,
            self.lost - earlier.lost,
            overhead=self.records.share_since(earlier.records),
        )


class PeriodControl:
    """Selects from a ladder of periods; no clock and no sampler of its own."""

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
        self._start = len(self._ladder) // 2 if start is None else self._at_least(start)
        self._rung = self._start
        self._cost = SampleCost()
        self._use = self._other = 0.0
        self._accesses = self._records = 0.0
        # Records of a program that has the most at the period of the start: nothing is known yet.
        self._at_start = settings.overhead * self._ladder[self._start]
        self._ticks = 0

    @property
    def period(self) -> int:
        """The period to use."""
        return self._ladder[self._rung]

    @property
    def use(self) -> float:
        """Running mean of the CPU time used, as a share of one CPU."""
        return self._use

    def update(self, tick: TickCost, quota: float | None = None) -> int:
        """Return the period after a tick; ``quota`` replaces that of the settings.

        Lost samples mean that rings overflow between two reads; the period then increases by one
        rung at least. Without samples it goes back to that of the start, as what comes next is not
        known, and halves per tick at most; it never becomes longer.
        """
        if tick.elapsed_s <= 0:
            return self.period
        self._cost.add(tick.units, tick.sampling_cpu_s)
        samples_s = self._cost.per_unit_s * tick.units
        other_s = max(0.0, tick.cpu_s - samples_s) * tick.stretch
        self._observe(tick.cpu_s / tick.elapsed_s, other_s / tick.elapsed_s)
        if tick.units > 0:
            period = tick.period or self.period
            self._accesses = max(tick.units * period / tick.elapsed_s, self._accesses / 2)
            if tick.overhead > 0:
                before = self._records or self._at_start
                self._records = max(tick.overhead * period, _FADE * before)
            share = self._settings.quota if quota is None else quota
            self._approach(self._wanted(self._cost.per_unit_s * self._accesses, share))
        else:
            self._accesses /= 2
            self._records = min(self._records, max(self._records / 2, self._at_start))
            if self._rung > self._start:
                self._rung = max(self._start, self._at_least(self.period / 2))
        if tick.lost > 0:
            self._rung = min(self._rung + 1, len(self._ladder) - 1)
        return self.period

    def _observe(self, use: float, other: float) -> None:
        """Update the running means of all CPU time and of that of other work than samples."""
        weight = self._settings.smoothing if self._ticks else 1.0
        self._ticks += 1
        self._use += weight * (use - self._use)
        self._other += weight * (other - self._other)

    def _wanted(self, cost: float, quota: float) -> float:
        """Return the shortest period at which samples are within what they may cost.

        ``cost`` is what samples of every access would take of the daemon, as a share of one CPU;
        ``_records`` is what their records would take of the programs on a CPU.
        """
        allowed = max(quota - self._other, self._settings.least * self._settings.quota)
        return max(cost / allowed, self._records / self._settings.overhead)

    def _approach(self, period: float) -> None:
        """Take the rung at a period, unless the present one is within the slack of it.

        A shorter period is at least half of the present one: a tick in which a program accesses
        little, such as its first, says nothing of the next one.
        """
        slack = self._settings.hysteresis
        period = max(period, self.period / 2)
        if not period / (1 + slack) <= self.period <= period / (1 - slack):
            self._rung = self._at_least(period)

    def _at_least(self, period: float) -> int:
        return min(bisect_left(self._ladder, period), len(self._ladder) - 1)
