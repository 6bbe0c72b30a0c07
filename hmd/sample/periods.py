# SPDX-License-Identifier: MIT
"""Control of the sampling period, which keeps the cost of sampling within its limits.

Periods are primes, because a period that divides the length of a program's loop would always sample
the same place in it. The idea and the range from 199 are those of Memtis (SOSP 2023). Two costs
limit the period, and the longer of both periods is used:

- The daemon's CPU time for samples is proportional to 1/period; its other work is not. Samples may
  cost what the other work leaves of the quota, and half of the quota in any case. Where there are
  more accesses, the period goes at once to the value that this allows; where there are fewer, it
  halves per tick at most.
- The CPU writes a record in microcode, or interrupts the program for it. That is time of the
  program, which has a limit of its own on the CPU with most records. This period shortens by a
  sixth per tick at most: the first tick after a quiet phase, such as a program's initialization,
  would have many times the records of the limit.

A program that has just started is sampled with the initial period, not with that of the program
before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import isqrt
from typing import Final

PRIME_PERIODS: Final = (
    *(199, 233, 277, 317, 373, 439, 509, 601, 701, 823),
    *(967, 1129, 1327, 1553, 1823, 2137, 2503, 2939, 3449, 4049),
    *(4751, 5573, 6529, 7649, 8969, 10513, 12323, 14449, 16937, 19997),
    *(23399, 27397, 32057, 37507, 43889, 51347, 60077, 70289, 82241, 96221),
    *(112573, 131711, 154111, 180307, 210961, 246817, 288803, 337873, 395309, 462529),
    *(541133, 633133, 740749, 866693, 1014029),
)
"""Periods for real machines: primes from 199 to a million, with a ratio of about 1.17. Those above
20,000 are for machines of many CPUs while nothing changes (:mod:`hmd.tick.cpu_budget`)."""

SHORT_PRIME_PERIODS: Final = (7, 11, 13, 17, 23, 29, 37, 47, 59, 73, 89, 109, 131, 163)
"""Shorter periods for slow machines with few accesses (the emulated machine)."""

STORE_PERIOD_RATIO: Final = 64
"""How much longer the period of stores is than that of loads: a store event also counts hits of the
first-level cache, a load event only slow loads."""

_SECOND_PERIOD_PERCENT: Final = 6
"""How much longer the period of a second counter is: enough that the phase between both varies
quickly, and so little that both give about as many samples."""

_RECORD_COST_DECAY: Final = 1 / 1.17
"""Decay per tick of the peak record cost: one step of ``PRIME_PERIODS``."""

_TICK_DECAY: Final = 0.9
"""Weight of a tick relative to the next one in ``SampleCost``: about ten ticks count."""
_HALF_TRUST_SPREAD: Final = 0.05
"""Variance of the numbers of samples, over their squared mean, at which a slope counts half."""
_MIN_SLOPE_SHARE: Final = 0.05
"""The slope is at least this share of its upper bound: no sample is free."""
_BOUND_GROWTH: Final = 1.02
"""Growth per tick of the upper bound, which is the lowest cost per sample of any recent tick."""

MAX_STORE_MULTIPLIER: Final = 16
_MULTIPLIER_RECORDS: Final = 64
"""Records between two changes of the store period's multiplier, at least."""
_DOUBLE_ABOVE: Final = 1 / 2
_HALVE_BELOW: Final = 1 / 8
"""Shares of cached stores in all records at which the multiplier doubles and halves."""


@dataclass(frozen=True, slots=True)
class RecordCost:
    """A record takes ``record_ns``, and an interrupt of ``interrupt_ns`` empties a full buffer.

    The timing model of the emulated machine and the simulator charge PEBS by the same figures.
    """

    record_ns: float
    interrupt_ns: float
    buffer_records: int

    def seconds(self, *, buffered: bool = True) -> float:
        """Return the mean time of a record; not ``buffered``: each has its interrupt."""
        records = self.buffer_records if buffered else 1
        return (self.record_ns + self.interrupt_ns / records) * 1e-9


PEBS_RECORD: Final = RecordCost(record_ns=250, interrupt_ns=4000, buffer_records=327)
"""PEBS of Skylake and later.

Akiyama and Hirofuchi, Quantitative Evaluation of Intel PEBS Overhead, ROSS 2017,
doi 10.1145/3095770.3095773: 200 to 300 ns per record. Kernel commit 3569c0d7c544, kernbench with
one interrupt per record against a full buffer: some 12,000 cycles per interrupt. A buffer of 64 KiB
(PEBS_BUFFER_SIZE) holds 327 records of 200 bytes.
"""

IBS_RECORD: Final = RecordCost(record_ns=0, interrupt_ns=4000, buffer_records=1)
"""AMD's IBS has no buffer: each record is an interrupt, assumed to cost what one of PEBS does."""

SPE_RECORD: Final = RecordCost(record_ns=10, interrupt_ns=4000, buffer_records=2048)
"""ARM's SPE writes records of 64 bytes, assumed to cost what a write of a line does. An interrupt,
assumed to cost what one of PEBS does, comes with half of 256 KiB."""


@dataclass(frozen=True, slots=True)
class RecordTime:
    """Sums of a sampler: ``taken_s`` of the CPU with most records, by a clock at ``now_s``.

    The clock is that of the programs, which is not the daemon's in the emulated machine.
    """

    taken_s: float = 0.0
    now_s: float = 0.0

    def share_since(self, earlier: RecordTime) -> float:
        """Return the share of the CPU's time that records have taken since an earlier reading."""
        elapsed_s = self.now_s - earlier.now_s
        return (self.taken_s - earlier.taken_s) / elapsed_s if elapsed_s > 0 else 0.0


class SampleCost:
    """The CPU time of one more sample, from the costs of recent ticks.

    Reading and counting samples takes CPU = a + b x samples per tick, of which only b depends on
    the sampling period. b is the slope of a least-squares line through the recent ticks, whose
    weights decay. Where the numbers of samples differ too little, the slope stays as it was; it
    begins as the mean cost per sample, which is too large rather than too small.

    ``per_unit_s`` is the slope, in seconds per sample or other unit of work.
    """

    def __init__(self) -> None:
        self.per_unit_s = 0.0
        self._max_s = float("inf")
        self._sums: tuple[float, ...] = (0.0,) * 5

    def add(self, units: float, cpu_s: float) -> None:
        """Add a tick that took ``cpu_s`` of CPU time for ``units``."""
        terms = (1.0, units, cpu_s, units * units, units * cpu_s)
        ticks, all_units, all_cpu_s, squares, products = self._sums = tuple(
            _TICK_DECAY * total + term for total, term in zip(self._sums, terms, strict=True)
        )
        if all_units <= 0:
            return
        if units > 0:  # includes the fixed part, so no sample can cost more
            self._max_s = min(_BOUND_GROWTH * self._max_s, cpu_s / units)
        mean_units = all_units / ticks
        variance = squares / ticks - mean_units**2
        if not self.per_unit_s:
            self.per_unit_s = self._max_s
        if variance > 0:
            covariance = products / ticks - mean_units * all_cpu_s / ticks
            trust = variance / (variance + _HALF_TRUST_SPREAD * mean_units**2)
            self.per_unit_s += trust * (covariance / variance - self.per_unit_s)
        self.per_unit_s = min(max(self.per_unit_s, _MIN_SLOPE_SHARE * self._max_s), self._max_s)


def clamp(period: int, periods: Sequence[int]) -> int:
    """Return the period, or the end of the ascending periods that it is beyond."""
    return min(max(period, periods[0]), periods[-1])


def second_period(period: int) -> int:
    """Return the period of a second counter of the same event: a prime some 6 % longer.

    Periods without a common divisor overflow at every distance from each other equally often, so
    that pairs of samples close together are an unbiased sample of accesses close together.
    """
    return _next_prime(period + max(1, -(-period * _SECOND_PERIOD_PERCENT // 100)))


def scaled_period(period: int, ratio: int) -> int:
    """Return the period of a rarer event, some ``ratio`` times as long: a prime, too.

    A multiple of the words in a cache line would always sample the same store of each line that a
    program fills: the one that misses, or one that hits.
    """
    return period if ratio == 1 else _next_prime(period * ratio)


@lru_cache(maxsize=256)
def _next_prime(number: int) -> int:
    """Return the first prime that is not below a number."""
    number = max(number, 2)
    while any(number % divisor == 0 for divisor in range(2, isqrt(number) + 1)):
        number += 1
    return number


def accesses_per_sample(period: int, second: int) -> int:
    """Return the accesses per sample of two counters together, rounded."""
    return max(1, round(period * second / (period + second)))


@dataclass(frozen=True, slots=True)
class PeriodSettings:
    """``quota`` is a share of one CPU; within ``hysteresis`` (a share) of it the period stays.

    ``overhead`` is the share of a CPU that records may take of the programs on it. ``smoothing`` is
    the weight of the newest tick in running means of the CPU use, ``min_share`` the share of the
    quota that samples may cost whatever the other work takes.
    """

    quota: float = 0.01
    overhead: float = 0.01
    hysteresis: float = 0.2
    smoothing: float = 0.3
    min_share: float = 0.5


@dataclass(frozen=True, slots=True)
class TickCost:
    """CPU seconds of a tick of ``elapsed_s``, and the part of them that sampling took.

    ``units`` is what that part grows with: samples, or these CPU seconds themselves where all of
    them follow from the period. ``lost`` samples did not fit into rings. ``tick_length_ratio`` is
    how many times longer the quota has made the tick: other work counts as if it had not.
    ``overhead`` is the share of its time that records took of the CPU with most of them. ``period``
    is that with which the samples were taken, 0 for the present one.
    """

    elapsed_s: float
    cpu_s: float
    sampling_cpu_s: float
    units: float
    lost: int = 0
    tick_length_ratio: float = 1.0
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
        """Return the cost of the tick since an earlier reading."""
        return TickCost(
            self.now_s - earlier.now_s,
            self.cpu_s - earlier.cpu_s,
            self.sampling_cpu_s - earlier.sampling_cpu_s,
            self.samples - earlier.samples,
            self.lost - earlier.lost,
            overhead=self.records.share_since(earlier.records),
        )


class PeriodControl:
    """Selects a step of ascending periods; no clock and no sampler of its own.

    Starts at the first of the periods that is not below ``start``, else at their middle.
    ``cpu_use`` is the running mean of the CPU time used, as a share of one CPU. ValueError where
    periods do not ascend.
    """

    def __init__(
        self,
        settings: PeriodSettings,
        periods: Sequence[int] = PRIME_PERIODS,
        start: int | None = None,
    ) -> None:
        self._periods = tuple(periods)
        if not self._periods or any(a >= b for a, b in pairwise(self._periods)):
            raise ValueError("sampling periods must ascend")
        self._settings = settings
        self._start = len(self._periods) // 2 if start is None else self._step_from(start)
        self._step = self._start
        self._cost = SampleCost()
        self.cpu_use = self._other_use = 0.0
        # Accesses per second, and the share of a CPU that records of all of them would take.
        self._access_rate = self._record_use = 0.0
        # No program is known yet: assumed to have the most records at the initial period.
        self._initial_record_use = settings.overhead * self._periods[self._start]
        self._ticks = 0

    @property
    def period(self) -> int:
        """The period to use."""
        return self._periods[self._step]

    def update(self, tick: TickCost, quota: float | None = None, least: float | None = None) -> int:
        """Return the period after a tick; ``quota`` replaces that of the settings.

        ``least`` is what samples may cost in any case, by default ``min_share`` of the settings'.
        Lost samples mean that rings overflow between two reads; the period then increases by one
        step at least. Without samples it returns to the initial one, and halves per tick at most;
        it never becomes longer.
        """
        if tick.elapsed_s <= 0:
            return self.period
        self._cost.add(tick.units, tick.sampling_cpu_s)
        samples_s = self._cost.per_unit_s * tick.units
        other_s = max(0.0, tick.cpu_s - samples_s) * tick.tick_length_ratio
        smoothing = self._settings.smoothing if self._ticks else 1.0
        self._ticks += 1
        self.cpu_use += smoothing * (tick.cpu_s / tick.elapsed_s - self.cpu_use)
        self._other_use += smoothing * (other_s / tick.elapsed_s - self._other_use)
        if tick.units > 0:
            period = tick.period or self.period
            rate = tick.units * period / tick.elapsed_s
            self._access_rate = max(rate, self._access_rate / 2)
            if tick.overhead > 0:
                before = self._record_use or self._initial_record_use
                self._record_use = max(tick.overhead * period, _RECORD_COST_DECAY * before)
            settings = self._settings
            least = settings.min_share * settings.quota if least is None else least
            quota = settings.quota if quota is None else quota
            self._approach(self._shortest_allowed(max(quota - self._other_use, least)))
        else:
            self._access_rate /= 2
            self._record_use = min(
                self._record_use, max(self._record_use / 2, self._initial_record_use)
            )
            if self._step > self._start:
                self._step = max(self._start, self._step_from(self.period / 2))
        if tick.lost > 0:
            self._step = min(self._step + 1, len(self._periods) - 1)
        return self.period

    def _shortest_allowed(self, share: float) -> float:
        """Return the shortest period at which samples cost ``share`` and records their limit."""
        sample_use = self._cost.per_unit_s * self._access_rate  # of a sample of every access
        return max(sample_use / share, self._record_use / self._settings.overhead)

    def _approach(self, period: float) -> None:
        """Take the step at a period, unless the present one is within the hysteresis of it.

        A shorter period is at least half of the present one: a tick in which a program accesses
        little, such as its first, does not predict the next one.
        """
        slack = self._settings.hysteresis
        period = max(period, self.period / 2)
        if not period / (1 + slack) <= self.period <= period / (1 - slack):
            self._step = self._step_from(period)

    def _step_from(self, period: float) -> int:
        return min(bisect_left(self._periods, period), len(self._periods) - 1)


class StorePeriodMultiplier:
    """Adaptive multiplier of the store period, driven by the share of useless records.

    Store events count all stores (Intel's mem_inst_retired.all_stores), and a record of one that
    hit the first-level cache, or of the kernel's memory, shows no access to a program's memory, but
    costs its program as much as any other. With the multiplier they are at most about half of all
    records. It has an upper bound, as no load shows memory that a stream of stores fills.

    ``value`` is a power of two from 1 to ``MAX_STORE_MULTIPLIER``.
    """

    def __init__(self) -> None:
        self.value = 1
        self._records = self._useless = 0

    def update(self, records: int, useless: int) -> bool:
        """Add the records of a read, and the useless ones; return whether the value has changed."""
        self._records += records
        self._useless += useless
        if self._records < _MULTIPLIER_RECORDS:
            return False
        useless_share = self._useless / self._records
        self._records = self._useless = 0
        before = self.value
        if useless_share > _DOUBLE_ABOVE:
            self.value = min(2 * before, MAX_STORE_MULTIPLIER)
        elif useless_share < _HALVE_BELOW:
            self.value = max(before // 2, 1)
        return self.value != before
