"""The sampler over perf rings, whoever writes them: PMU, page faults, the emulated machine.

A read drains all rings into columns (``ring``), finds each row's process (``Attribution``), drops
what is no user's access of a tracked process, and gives the rest as a batch. What differs
between sources is how sampling is started and its period set (``RingControl``), and how a sample
names its process.

Costs some 20 ns a sample in all (bench/ring.py), and one small file a read for each process that
has samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hmd.machine.process_id import ProcessId
from hmd.sample.access_batch import AccessBatch, Kind
from hmd.sample.capabilities import Capabilities
from hmd.sample.perf_ring import RecordColumns, RingCounts
from hmd.sample.period_control import partner, stands_for
from hmd.sample.sampler import SamplerStats

READ_ROWS = 1 << 18
"""Most rows of one read, which bounds its time; what is more is lost, and counted so.

If it waited in the rings, each read would begin with what the last one left, and heat would be
that of long ago."""

USER_END = 1 << 56
"""No user address lies above (x86-64 with five levels; Documentation/arch/x86/x86_64/mm.rst)."""


class Drainable(Protocol):
    """A ring that can be drained: ``Ring``, or ``PerfRing``, which also owns its memory."""

    @property
    def counts(self) -> RingCounts:
        """What was read from the ring."""
        ...

    def drain(self, columns: RecordColumns) -> bool:
        """As ``Ring.drain``."""
        ...


class RingControl(Protocol):
    """Switches the source that writes the rings; ``close`` frees it, and the rings."""

    def start(self) -> None:
        """Start sampling."""
        ...

    def stop(self) -> None:
        """Stop sampling; the rings keep what they have."""
        ...

    def set_period(self, period: int) -> None:
        """Sample one access in so many from now on."""
        ...

    def close(self) -> None:
        """Stop sampling for good. Called once."""
        ...


class Attribution(Protocol):
    """Finds the process of each sample."""

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Find these processes and no others."""
        ...

    def index(self, columns: RecordColumns) -> npt.NDArray[np.int32]:
        """Return each row's process as an index of the tracked, -1 for none or one that ended."""
        ...


class RingSampler:
    """A ``Sampler`` over rings. ``detail`` says for people what it samples."""

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
        """Own ``control`` from now on. ``ns_per_weight`` is what a unit of latency is.

        ``counts_instructions``: samples have a count of them (READ). ``pairs``: loads are counted
        by two counters, the second with the ``partner`` of the period.
        """
        self.name = name
        self.detail = detail
        self.capabilities = capabilities
        self.stats = SamplerStats()
        self.ladder = ladder
        self._rings = tuple(rings)
        self._control = control
        self._attribution = attribution
        self._period = period
        self._ns_per_weight = ns_per_weight
        self._counts_instructions = counts_instructions
        self._pairs = pairs
        self._columns = RecordColumns(read_rows)
        self._started = False
        self._first = 0
        self._closed = False

    @property
    def period(self) -> int:
        """Accesses between two samples of a counter.

        Stores may be sampled more rarely, loads by two counters: what a row stands for, it says.
        """
        return self._period

    @property
    def pair_period(self) -> int | None:
        """The period of the second counter of loads, None where there is none."""
        return partner(self._period) if self._pairs else None

    @property
    def outside_cpu_s(self) -> float:
        """None that could be told apart: samples are taken in the time of the programs."""
        return 0.0

    def set_period(self, period: int) -> int:
        """Set the period, brought into the ladder's bounds; returns it."""
        period = min(max(period, self.ladder[0]), self.ladder[-1])
        if period != self._period and not self._closed:
            self._control.set_period(period)
            self._period = period
        return self._period

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Follow these processes; sampling is on while there is one."""
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
        """Drain all rings; what does not fit into the most rows of a read is lost."""
        if self._closed:
            return AccessBatch.empty()
        columns = self._columns
        columns.clear()
        self._drain(columns)
        count = columns.count
        self._tell_period(columns.period[:count], columns.kind[:count])
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

    def _tell_period(self, period: npt.NDArray[np.uint32], kind: npt.NDArray[np.uint8]) -> None:
        """Make the periods of samples, which are their counters', the accesses they stand for."""
        period[period == 0] = self._period  # of a ring whose samples do not say
        if self.pair_period is not None:
            period[kind == Kind.LOAD] = stands_for(self._period, self.pair_period)

    def _to_ns(self, weight: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        if self._ns_per_weight == 1.0:
            return weight.copy()
        ns: npt.NDArray[np.uint32] = np.clip(
            weight * self._ns_per_weight, 0, np.iinfo(np.uint32).max
        ).astype(np.uint32)
        return ns

    def _drain(self, columns: RecordColumns) -> None:
        # Starts after the ring at which the last read was full, so that no busy CPU starves others.
        rings = self._rings[self._first :] + self._rings[: self._first]
        over = [ring.drain(columns) for ring in rings]
        if any(over):
            self._first = (self._first + over.index(True) + 1) % len(rings)
        counts = [ring.counts for ring in self._rings]
        self.stats.lost = sum(c.lost for c in counts)
        self.stats.throttled = sum(c.throttled for c in counts)
        self.stats.corrupt = sum(c.corrupt for c in counts)

    def close(self) -> None:
        """Stop sampling and free what it needed."""
        if not self._closed:
            self._closed = True
            self._rings = ()  # before their memory is unmapped
            self._control.close()
