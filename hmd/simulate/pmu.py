# SPDX-License-Identifier: MIT
"""The PMU of a simulated machine: samples of what its program has replayed, as PEBS takes them.

The counters are those of the emulated machine (:mod:`hmd.sample.emulated_pebs`): loads that miss,
one sample per period; loads of lines that the prefetcher has asked for, and stores, each with a
longer period. Each begins at random. Records carry the latency of the miss, and each takes time of
the program's CPU. Records are lost in bursts, as when a ring is full. Stores that hit a cache are
not recorded. Costs about 50 ns per sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.base.units import LINE_BYTES
from hmd.emulate.recordings.misses import MissFlag
from hmd.sample.access_batch import AccessBatch, Kind
from hmd.sample.emulated_pebs import PERIODS, PREFETCH_PERIOD_RATIO, START_PERIOD
from hmd.sample.periods import (
    STORE_PERIOD_RATIO,
    PeriodControl,
    PeriodSettings,
    TickCost,
    scaled_period,
)
from hmd.sample.sampler import CAPABILITIES
from hmd.simulate.machine import SimulatedMachine

_BURST = 200  # records that a full ring loses at once

MAX_PERIOD = 2**31 // max(STORE_PERIOD_RATIO, PREFETCH_PERIOD_RATIO)
"""Longest period whose multiples, the other counters' periods, are 32-bit numbers."""

MAX_SEED = 2**32 - 2
"""Largest seed; optuna and stable-baselines3 take 32 bits, and tuning uses the next one too."""


@dataclass(frozen=True, slots=True)
class PmuSettings:
    """One of ``period`` load misses is sampled; the share ``loss`` of records is lost.

    With an ``overhead`` the period begins so, and changes that records may take at most that share
    of the program's time. Records cost the program time unless they are ``free``.
    """

    period: int = START_PERIOD
    loss: float = 0.0
    seed: int = 1
    free: bool = False
    overhead: float | None = None


class SimulatedPmu:
    """Samples a machine's program: each ``read`` returns the samples since the last."""

    name = "simulated"
    capabilities = CAPABILITIES["emulated"]

    def __init__(self, machine: SimulatedMachine, sampling: PmuSettings) -> None:
        stream = machine.stream
        counted = stream.sampled() & (stream.page < stream.user_pages)
        store = (stream.flags & np.uint8(MissFlag.STORE)) != 0
        prefetched = (stream.flags & np.uint8(MissFlag.COVERED)) != 0
        self.period = sampling.period
        self.records = 0
        """Records taken, lost ones included."""
        self._rng = np.random.default_rng(sampling.seed)
        self._counters = [
            _Counter(np.flatnonzero(counted & of), scale, self._rng, self.period)
            for of, scale in (
                (~store & ~prefetched, 1),
                (~store & prefetched, PREFETCH_PERIOD_RATIO),
                (store, STORE_PERIOD_RATIO),
            )
        ]
        self._bursts = np.zeros(0, np.bool_)
        self._machine, self._sampling, self._read_s = machine, sampling, machine.now_s
        self._control = None
        if sampling.overhead is not None:
            limits = PeriodSettings(overhead=sampling.overhead)
            self._control = PeriodControl(limits, PERIODS, self.period)

    def set_period(self, period: int) -> int:
        """Sample every so many accesses from now on."""
        self.period = period
        return period

    def read(self) -> AccessBatch:
        """Return the samples since the last read; the program pays for them and for lost ones."""
        stream, outcomes = self._machine.stream, self._machine.outcomes
        found = [each.until(self._machine.row, self.period) for each in self._counters]
        rows = np.concatenate(found)
        periods = np.repeat(
            np.array(
                [scaled_period(self.period, each.scale) for each in self._counters], np.uint32
            ),
            [len(each) for each in found],
        )
        order = np.argsort(rows, kind="stable")
        if not self._sampling.free:
            self._machine.charge_samples(len(rows))
        self._set_period(len(rows))
        kept = self._arrived(len(rows))
        rows, periods = rows[order][kept], periods[order][kept]
        count = len(rows)
        store = (stream.flags[rows] & np.uint8(MissFlag.STORE)) != 0
        line = stream.line[rows].astype(np.uint64) * np.uint64(LINE_BYTES)
        return AccessBatch(
            process=np.zeros(count, np.int32),
            address=stream.page_address[stream.page[rows]] + line,
            kind=np.where(store, np.uint8(Kind.STORE), np.uint8(Kind.LOAD)),
            cpu=np.zeros(count, np.uint16),
            thread=np.zeros(count, np.uint32),
            time_ns=outcomes.clock_ps[rows] // np.uint64(1000),
            latency_ns=outcomes.latency_ps[rows] // np.uint32(1000),
            period=periods,
            instructions=stream.instructions[rows],
        )

    def _set_period(self, records: int) -> None:
        """Set the period of the next records by what those since the last read took."""
        now_s = self._machine.now_s
        elapsed_s, self._read_s = now_s - self._read_s, now_s
        if self._control is not None:
            taken_s = records * self._machine.record_s
            share = taken_s / elapsed_s if elapsed_s > 0 else 0.0
            self.period = self._control.update(
                TickCost(elapsed_s, 0.0, 0.0, records, overhead=share)
            )

    def _arrived(self, records: int) -> npt.NDArray[np.bool_]:
        """Return which of the next records are not lost."""
        numbers = self.records + np.arange(records)
        self.records += records
        missing = self.records // _BURST + 1 - len(self._bursts)
        drawn = self._rng.random(max(missing, 0)) >= self._sampling.loss
        self._bursts = np.append(self._bursts, drawn)
        return self._bursts[numbers // _BURST]


class _Counter:
    """A counter of the misses of some ``rows``, sampled with ``scale`` times the period."""

    def __init__(
        self, rows: npt.NDArray[np.int64], scale: int, rng: np.random.Generator, period: int
    ) -> None:
        self.scale = scale
        self.rows, self._next = rows, int(rng.integers(0, scale * period))

    def until(self, row: int, period: int) -> npt.NDArray[np.int64]:
        """Return the sampled rows before ``row`` that no call has returned."""
        end, step = int(np.searchsorted(self.rows, row)), scaled_period(period, self.scale)
        taken = self.rows[self._next : end : step]
        self._next += len(taken) * step
        return taken
