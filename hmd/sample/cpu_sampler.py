"""Sampling with one event per CPU for all processes: what ``pmu`` and ``faults`` have in common.

A ring per CPU and event, every process in it, and a filter on pid when it is read. The other
layout, an inherited event per thread and CPU, needs threads x CPUs descriptors and misses
threads that start between two looks at /proc/PID/task; an inherited event on all CPUs at once
cannot have a ring at all (mmap gives EINVAL). This layout needs CPUs x events descriptors
whatever runs, follows new threads at once, and needs no map of threads, because the kernel
puts the process's pid beside the thread's. Its price: samples of other programs are taken and
thrown away, so that nothing is enabled while nothing is tracked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hmd.machine.process import PROC, ProcessId
from hmd.sample.batch import AccessBatch
from hmd.sample.perf import PerfRing
from hmd.sample.ring import Columns
from hmd.sample.sampler import SamplerStats
from hmd.sample.tracked import Tracked, to_batch, user_rows

READ_ROWS = 1 << 16
"""Most rows of one read, which bounds its time; the rest waits in the rings."""


class CpuSampler:
    """Drains the rings of events that were opened per CPU; owns the rings.

    ``scales`` are, per ring, what the sampler's period is multiplied by.
    """

    def __init__(
        self,
        name: str,
        rings: Sequence[PerfRing],
        *,
        period: int,
        ladder: tuple[int, ...],
        scales: Sequence[int] | None = None,
        ns_per_weight: float = 1.0,
        proc: Path = PROC,
    ) -> None:
        self.name = name
        self.stats = SamplerStats()
        self.ladder = ladder
        self._rings = tuple(rings)
        self._scales = tuple(scales) if scales is not None else (1,) * len(self._rings)
        self._period = period
        self._ns_per_weight = ns_per_weight
        self._proc = proc
        self._columns = Columns(READ_ROWS)
        self._tracked = Tracked((), proc)
        self._first = 0
        self._closed = False

    @property
    def period(self) -> int:
        """Accesses a sample stands for (stores may be sampled more rarely: see the rows)."""
        return self._period

    def set_period(self, period: int) -> int:
        """Set the period, brought into the ladder's bounds, on all CPUs; returns it."""
        period = min(max(period, self.ladder[0]), self.ladder[-1])
        if period != self._period and not self._closed:
            for ring, scale in zip(self._rings, self._scales, strict=True):
                ring.set_period(period * scale)
            self._period = period
        return self._period

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Follow these processes; sampling is on while there is one."""
        was_on = len(self._tracked) > 0
        self._tracked = Tracked(processes, self._proc)
        if self._closed or was_on == (len(processes) > 0):
            return
        for ring in self._rings:
            if processes:
                ring.enable()
            else:
                ring.disable()

    def read(self) -> AccessBatch:
        """Drain all rings; what does not fit into ``READ_ROWS`` rows comes next time."""
        if self._closed:
            return AccessBatch.empty()
        columns = self._columns
        columns.clear()
        self._drain(columns)
        count = columns.count
        period = columns.period[:count]
        period[period == 0] = self._period  # of a ring whose samples do not say
        process = self._tracked.index(columns.pid[:count])
        process[~user_rows(columns.address[:count])] = -1
        self._tracked.drop_gone(process)
        batch = to_batch(columns, process, self._ns_per_weight)
        self.stats.samples += len(batch)
        self.stats.dropped += count - len(batch)
        self.stats.wakeups += count > 0
        return batch

    def _drain(self, columns: Columns) -> None:
        # Starts where the last read stopped, so that a busy CPU cannot starve those after it.
        rings = self._rings[self._first :] + self._rings[: self._first]
        for passed, ring in enumerate(rings):
            if ring.drain(columns):
                self._first = (self._first + passed) % len(self._rings)
                break
        self._count()

    def _count(self) -> None:
        counts = [ring.counts for ring in self._rings]
        self.stats.lost = sum(c.lost for c in counts)
        self.stats.throttled = sum(c.throttled for c in counts)
        self.stats.corrupt = sum(c.corrupt for c in counts)

    def close(self) -> None:
        """Stop sampling and free rings and descriptors."""
        self._closed = True
        for ring in self._rings:
            ring.close()
