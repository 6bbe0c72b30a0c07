"""The sampler over perf rings of any writer: PMU, page faults, the emulated machine.

A read drains all rings into columns (``perf_ring``), finds each row's process (``Attribution``),
drops samples that are not user accesses of a tracked process, and returns the rest as a batch.
Sources differ in how sampling is started and its period set (``RingControl``), and in how a sample
identifies its process.

Costs about 20 ns per sample in total (bench/stages/ring.py), and per read one small file for each
process that has samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from hmd.machine.process_id import ProcessId
from hmd.sample.access_batch import AccessBatch, Kind
from hmd.sample.capabilities import Capabilities
from hmd.sample.perf_ring import RecordColumns, RingCounts
from hmd.sample.period_control import clamp, partner, stands_for
from hmd.sample.record_cost import RecordTime
from hmd.sample.sampler import SamplerStats
from hmd.sample.store_factor import StoreFactor

READ_ROWS = 1 << 18
"""Most rows of one read, which bounds its time; further samples are lost and counted as lost.

If they stayed in the rings, each read would begin with the rest of the last one, and heat would lag
behind."""

USER_END = 1 << 56
"""Upper bound of user addresses (x86-64 with five levels; Documentation/arch/x86/x86_64/mm.rst)."""


_NO_COUNTS: Final = RingCounts()


class Drainable(Protocol):
    """A ring that can be drained: ``Ring``, or ``EventRing``, which also owns its memory."""

    @property
    def counts(self) -> RingCounts:
        """Records read from the ring."""
        ...

    @property
    def pending(self) -> bool:
        """As ``Ring.pending``."""
        ...

    def drain(self, columns: RecordColumns) -> bool:
        """As ``Ring.drain``."""
        ...


class RingControl(Protocol):
    """Control of the source that writes the rings; ``close`` frees it and the rings."""

    @property
    def cpus(self) -> Sequence[int]:
        """The CPU of each ring."""
        ...

    @property
    def record_s(self) -> float:
        """What a record takes of its CPU, in seconds; 0: not known."""
        ...

    @property
    def now_s(self) -> float:
        """The time now, in seconds, by the clock of programs."""
        ...

    @property
    def thins_stores(self) -> bool:
        """Whether stores are sampled more rarely where their records show nothing.

        See :mod:`hmd.sample.store_factor`.
        """
        ...

    def start(self) -> None:
        """Start sampling."""
        ...

    def stop(self) -> None:
        """Stop sampling; the rings keep their records."""
        ...

    def set_period(self, period: int, store_factor: int) -> None:
        """Sample one in ``period`` accesses from now on, stores more rarely by ``store_factor``."""
        ...

    def close(self) -> None:
        """Stop sampling permanently. Called once."""
        ...


class Attribution(Protocol):
    """Finds the process of each sample."""

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Attribute samples to these processes only."""
        ...

    def index(self, columns: RecordColumns) -> npt.NDArray[np.int32]:
        """Return each row's index among the tracked processes, -1 for other processes."""
        ...


class RingSampler:
    """A ``Sampler`` over rings. ``detail`` describes what it samples."""

    def __init__(
        self,
        name: str,
        detail: str,
        rings: Sequence[Drainable],
        control: RingControl,
        attribution: Attribution,
        *,
        capabilities: Capabilities,
        period: int,
        ladder: tuple[int, ...],
        ns_per_weight: float = 1.0,
        read_rows: int = READ_ROWS,
        counts_instructions: bool = False,
        pairs: bool = False,
    ) -> None:
        """Own ``control`` from now on. ``ns_per_weight`` is the unit of the latency.

        ``counts_instructions``: samples contain an instruction count (READ). ``pairs``: two
        counters count loads, the second with the ``partner`` of the period.
        """
        self.name = name
        self.detail = detail
        self.capabilities = capabilities
        self.stats = SamplerStats()
        self.ladder = ladder
        self._rings = tuple(rings)
        self._cpu_of = dict(zip(rings, control.cpus, strict=True))
        self._control = control
        self._attribution = attribution
        self._period = period
        self._store_factor = StoreFactor()
        self._ns_per_weight = ns_per_weight
        self._counts_instructions = counts_instructions
        self._pairs = pairs
        self._columns = RecordColumns(read_rows)
        self._started = False
        self._first = 0
        self._counted: dict[Drainable, RingCounts] = {}
        self._closed = False

    @property
    def period(self) -> int:
        """Accesses between two samples of a counter.

        Stores may be sampled more rarely and loads by two counters: see the ``period`` of a row.
        """
        return self._period

    @property
    def pair_period(self) -> int | None:
        """The period of the second counter of loads, None if there is none."""
        return partner(self._period) if self._pairs else None

    @property
    def outside_cpu_s(self) -> float:
        """0: samples are taken in the time of the programs, which is not measured separately."""
        return 0.0

    @property
    def record_time(self) -> RecordTime:
        """What records have cost the programs on the CPU with most of them."""
        control = self._control
        return RecordTime(self.stats.busiest_records * control.record_s, control.now_s)

    def set_period(self, period: int) -> int:
        """Set the period, clamped to the ladder's bounds; returns it."""
        period = clamp(period, self.ladder)
        if period != self._period and not self._closed:
            self._control.set_period(period, self._store_factor.value)
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
            self._control.start()
        else:
            self._control.stop()
        self._started = bool(processes)

    def read(self) -> AccessBatch:
        """Drain all rings; samples beyond the most rows of a read are lost."""
        if self._closed:
            return AccessBatch.empty()
        columns = self._columns
        columns.clear()
        self._drain(columns)
        count = columns.count
        self._set_represented(columns.period[:count], columns.kind[:count])
        process = columns.keep(self._attribution.index(columns), USER_END)
        kept = len(process)
        self.stats.samples += kept
        self.stats.dropped += count - kept
        self.stats.wakeups += count > 0
        instructions = columns.instructions[:kept].copy() if self._counts_instructions else None
        return AccessBatch(
            process=process,
            address=columns.address[:kept].copy(),
            kind=columns.kind[:kept].copy(),
            cpu=columns.cpu[:kept].copy(),
            thread=columns.tid[:kept].copy(),
            time_ns=columns.time_ns[:kept].copy(),
            weight_ns=self._to_ns(columns.weight[:kept]),
            period=columns.period[:kept].copy(),
            instructions=instructions,
        )

    def _set_represented(self, period: npt.NDArray[np.uint32], kind: npt.NDArray[np.uint8]) -> None:
        """Replace counters' periods in samples by the accesses that each sample represents."""
        period[period == 0] = self._period  # a ring whose samples have no period
        if self.pair_period is not None:
            # A longer period is that of another counter, of prefetched lines.
            paired = period <= max(self._period, self.pair_period)
            period[paired & (kind == Kind.LOAD)] = stands_for(self._period, self.pair_period)

    def _to_ns(self, weight: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        if self._ns_per_weight == 1.0:
            return weight.copy()
        ns: npt.NDArray[np.uint32] = np.clip(
            weight * self._ns_per_weight, 0, np.iinfo(np.uint32).max
        ).astype(np.uint32)
        return ns

    def _drain(self, columns: RecordColumns) -> None:
        """Drain the rings that have records: of 512 CPUs, most may be idle."""
        # Starts after the ring at which the last read was full, so that no busy CPU starves others.
        rings = self._rings[self._first :] + self._rings[: self._first]
        filled = [(place, ring) for place, ring in enumerate(rings) if ring.pending]
        over = [place for place, ring in filled if ring.drain(columns)]
        if over:
            self._first = (self._first + over[0] + 1) % len(rings)
        records, dropped = Counter[int](), self.stats.dropped
        for _, ring in filled:
            records[self._cpu_of[ring]] += self._add_counts(ring)
        self.stats.records += records.total()
        self.stats.busiest_records += max(records.values(), default=0)
        hits = self.stats.dropped - dropped
        if self._control.thins_stores and self._store_factor.update(records.total(), hits):
            self._control.set_period(self._period, self._store_factor.value)

    def _add_counts(self, ring: Drainable) -> int:
        """Add to the statistics what has come since the ring was last counted; return records."""
        now, before = ring.counts, self._counted.get(ring, _NO_COUNTS)
        self.stats.lost += now.lost - before.lost
        self.stats.throttled += now.throttled - before.throttled
        self.stats.corrupt += now.corrupt - before.corrupt
        self.stats.dropped += now.cached - before.cached
        self._counted[ring] = now
        samples, lost = now.samples - before.samples, now.lost - before.lost
        return samples + lost + now.cached - before.cached

    def close(self) -> None:
        """Stop sampling and free all resources."""
        if not self._closed:
            self._closed = True
            self._rings = ()  # before their memory is unmapped
            self._cpu_of.clear()
            self._counted.clear()
            self._control.close()
