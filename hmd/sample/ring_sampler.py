# SPDX-License-Identifier: MIT
"""The sampler over perf rings of any writer: PMU, page faults, the emulated machine.

A read drains all rings into columns (``perf_ring``), finds each row's process (``Attribution``),
drops samples that are not user accesses of a tracked process, and returns the rest as a batch.
Costs about 20 ns per sample in total (bench/stages/ring.py), and per read one small file for each
process that has samples.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from hmd.linux.procfs import ProcessId
from hmd.sample.access_batch import COLUMNS, AccessBatch, Kind
from hmd.sample.perf_ring import RecordColumns, Ring, RingCounts
from hmd.sample.periods import (
    RecordTime,
    StorePeriodMultiplier,
    accesses_per_sample,
    clamp,
    second_period,
)
from hmd.sample.sampler import CAPABILITIES, SamplerName, SamplerStats

MAX_READ_ROWS: Final = 1 << 18
"""Most rows of one read, which bounds its time; further samples are lost. Left in the rings, they
would begin the next read, and heat would lag behind."""

USER_END: Final = 1 << 56
"""Upper bound of user addresses (x86-64 with five levels; Documentation/arch/x86/x86_64/mm.rst)."""

_NO_COUNTS: Final = RingCounts()


class RingControl(Protocol):
    """Control of the source that writes the rings; ``close`` frees it and the rings.

    ``record_s`` is what a record takes of its CPU, in seconds; 0: not known.
    ``adapts_store_period``: stores are sampled more rarely where their records show nothing
    (``StorePeriodMultiplier``). ``has_buffer``: one interrupt may empty a buffer of records.
    ``delay_s`` after an access at the latest, a read returns its sample.
    """

    record_s: float = 0.0
    adapts_store_period: bool = False
    has_buffer: bool = False
    delay_s: float = 0.0

    @property
    def active(self) -> bool:
        """Whether accesses are sampled once it is started."""
        return True

    @property
    def now_s(self) -> float:
        """The time now, in seconds, by the clock of programs."""
        return time.monotonic()

    @property
    def time_offset_ns(self) -> int:
        """What is added to times of samples, so that they are of that clock."""
        return 0

    @property
    def running_share(self) -> float:
        """The least share of its time for which an event had a counter; 1: all of it."""
        return 1.0

    def start(self) -> None:
        """Start sampling."""

    def stop(self) -> None:
        """Stop sampling; the rings keep their records."""

    def publish(self) -> None:
        """Write what is held back into the rings, before they are read."""
        return

    def set_period(self, period: int, store_multiplier: int) -> None:
        """Sample one in ``period`` accesses from now on; of stores, multiplied."""

    def close(self) -> None:
        """Stop sampling permanently. Called once."""


ScaleLoads = Callable[[npt.NDArray[np.uint32], npt.NDArray[np.uint16]], npt.NDArray[np.uint32]]
"""Returns the accesses that samples of loads stand for, from what was counted, and their CPUs."""


class Attribution(Protocol):
    """Finds the process of each sample."""

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Attribute samples to these processes only."""

    def find_processes(self, columns: RecordColumns) -> npt.NDArray[np.int32]:
        """Return each row's index among the tracked processes, -1 for other processes."""


class RingSampler:
    """A ``Sampler`` over rings; owns its ``control``.

    ``detail`` describes what it samples. ``optional`` names the optional columns that rows have, by
    samples' READ (``instructions``) and IP (``code_address``). ``pairs``: two counters count loads,
    the second with the ``second_period``. ``scale_loads`` turns counted loads into accesses where
    the counter does not count every one.
    """

    outside_cpu_s = 0.0  # samples are taken in the time of the programs

    def __init__(
        self,
        name: SamplerName,
        detail: str,
        rings: Sequence[Ring],
        control: RingControl,
        attribution: Attribution,
        *,
        period: int,
        periods: tuple[int, ...],
        ns_per_latency_unit: float = 1.0,
        read_rows: int = MAX_READ_ROWS,
        optional: Collection[str] = (),
        pairs: bool = False,
        scale_loads: ScaleLoads | None = None,
    ) -> None:
        self.name = name
        self.detail = detail
        self.capabilities = CAPABILITIES[name]
        self.stats = SamplerStats()
        self.periods = periods
        self._rings = tuple(rings)
        self.control = control
        self._attribution = attribution
        self._period = period
        self._store_multiplier = StorePeriodMultiplier()
        self._ns_per_latency_unit = ns_per_latency_unit
        self._copied_columns = [
            name
            for name, column in COLUMNS.items()
            if name not in ("process", "latency_ns") and (name in optional or not column.optional)
        ]
        self._pairs, self._scale_loads = pairs, scale_loads
        self._columns = RecordColumns(read_rows, optional=optional)
        self._started = False
        self._first_ring = 0
        self._useless_stores = 0
        self._counts: dict[Ring, RingCounts] = {}
        self._closed = False
        self.load_factor = 1.0

    @property
    def period(self) -> int:
        """Accesses between two samples of a counter; what a row stands for is its ``period``."""
        return self._period

    @property
    def pair_period(self) -> int | None:
        """The period of the second counter of loads, None if there is none."""
        return second_period(self._period) if self._pairs else None

    def calibrate(self, load_factor: float, record_s: float | None = None) -> None:
        """Let each sample of a load represent ``load_factor`` times its period.

        For events that do not count every load, as load latency on Intel. ``record_s`` is what a
        record takes of its CPU, None: as expected.
        """
        self.load_factor = load_factor
        if record_s is not None:
            self.control.record_s = record_s

    @property
    def record_time(self) -> RecordTime:
        """What records have cost the programs on the CPU with most of them."""
        control = self.control
        return RecordTime(self.stats.busiest_records * control.record_s, control.now_s)

    def set_period(self, period: int) -> int:
        """Set the period, clamped to the bounds of ``periods``; returns it."""
        period = clamp(period, self.periods)
        if period != self._period and not self._closed:
            self.control.set_period(period, self._store_multiplier.value)
            self._period = period
        return self._period

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Sample these processes; sampling is off while there are none."""
        if self._closed:
            return
        self._attribution.track(processes)
        if bool(processes) == self._started:
            return
        if processes:
            self.control.start()
        else:
            self.control.stop()
        self._started = bool(processes)

    def read(self) -> AccessBatch:
        """Drain all rings; samples beyond the most rows of a read are lost."""
        if self._closed:
            return AccessBatch.empty()
        self.control.publish()
        columns = self._columns
        columns.clear()
        self._drain(columns)
        count = columns.count
        self._set_accesses(columns.period[:count], columns.kind[:count], columns.cpu[:count])
        process = columns.keep(self._attribution.find_processes(columns), USER_END)
        kept = len(process)
        self.stats.samples += kept
        self.stats.dropped += count - kept
        self.stats.without_address = columns.without_address
        self.stats.wakeups += count > 0
        self.stats.running_share = self.control.running_share
        if offset_ns := self.control.time_offset_ns:
            time_ns = columns.time_ns[:kept].view(np.int64)
            time_ns += offset_ns
        batch: dict[str, Any] = {
            name: getattr(columns, name)[:kept].copy() for name in self._copied_columns
        }
        return AccessBatch(process=process, latency_ns=self._to_ns(columns.latency[:kept]), **batch)

    def _set_accesses(
        self,
        period: npt.NDArray[np.uint32],
        kind: npt.NDArray[np.uint8],
        cpu: npt.NDArray[np.uint16],
    ) -> None:
        """Replace counters' periods in samples by the accesses that each sample represents."""
        period[period == 0] = self._period  # a ring whose samples have no period
        # A longer period is that of another counter, of prefetched lines.
        counted = (period <= max(self._period, self.pair_period or 0)) & (kind == Kind.LOAD)
        if self.pair_period is not None:
            period[counted] = accesses_per_sample(self._period, self.pair_period)
        if self._scale_loads is not None:
            period[counted] = self._scale_loads(period[counted], cpu[counted])
        if self.load_factor != 1.0:
            loads = kind == Kind.LOAD
            accesses = np.maximum(np.rint(period[loads] * self.load_factor), 1)
            period[loads] = np.minimum(accesses, np.iinfo(np.uint32).max)

    def _to_ns(self, latency: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        if self._ns_per_latency_unit == 1.0:
            return latency.copy()
        ns = np.minimum(latency * self._ns_per_latency_unit, np.iinfo(np.uint32).max)
        return np.asarray(ns, np.uint32)

    def _drain(self, columns: RecordColumns) -> None:
        """Drain the rings that have records: of 512 CPUs, most may be idle."""
        # Starts after the ring at which the last read was full, so that no busy CPU starves others.
        rings = self._rings[self._first_ring :] + self._rings[: self._first_ring]
        filled = [(position, ring) for position, ring in enumerate(rings) if ring.pending]
        full = [position for position, ring in filled if ring.drain(columns)]
        if full:
            self._first_ring = (self._first_ring + full[0] + 1) % len(rings)
        records = Counter[int]()
        self._useless_stores = 0
        for _, ring in filled:
            records[ring.cpu] += self._add_counts(ring)
        self.stats.records += records.total()
        self.stats.busiest_records += max(records.values(), default=0)
        multiplier, useless = self._store_multiplier, self._useless_stores
        if self.control.adapts_store_period and multiplier.update(records.total(), useless):
            self.control.set_period(self._period, multiplier.value)

    def _add_counts(self, ring: Ring) -> int:
        """Add to the statistics what has come since the ring was last counted; return records."""
        now, before = ring.counts, self._counts.get(ring, _NO_COUNTS)
        self._counts[ring] = now
        lost, dropped = now.lost - before.lost, now.dropped - before.dropped
        self.stats.lost += lost
        self.stats.throttled += now.throttled - before.throttled
        self.stats.corrupt += now.corrupt - before.corrupt
        self.stats.dropped += dropped
        self.stats.kernel_addresses += now.kernel_addresses - before.kernel_addresses
        self._useless_stores += now.useless_stores - before.useless_stores
        return now.samples - before.samples + lost + dropped

    def close(self) -> None:
        """Stop sampling and free all resources."""
        if not self._closed:
            self._closed = True
            self._rings = ()  # before their memory is unmapped
            self._counts.clear()
            self.control.close()
