# SPDX-License-Identifier: MIT
"""The DAMON sampler: what most virtual machines have, since they have no PMU.

The kernel checks accessed bits of one page in each of some hundred regions of processes' memory
(Park and others, "Profiling Dynamic Data Access Patterns with Controlled Overhead and Quality",
Middleware 2019; mm/damon/). ``damon_regions`` chooses the regions and converts them to rows. Kinds
are all LOAD: an accessed bit does not distinguish loads from stores.

A *cycle* starts a kdamond with the regions to count next, reads their counts and stops it, in a
thread, because it takes ``INTERVALS_PER_CYCLE`` sampling intervals. Nothing runs between two
cycles, which bounds the cost: about 100 µs of the kernel's CPU time, and as much of hmd's, per
region. (A longer sampling interval would also cost less, but all pages that are accessed more than
once per interval look alike.) The sampler's period is the time between two cycles in milliseconds.

The interval adapts to the program: half of the checks of an accessed page find an access, averaged
over accesses. A shorter interval misses cold pages; with a longer one, hot pages look alike.
"""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.linux.damon import (
    NOTE,
    DamonClaim,
    DamonError,
    DamonRegions,
    Kdamond,
    Kdamonds,
)
from hmd.linux.mappings import covering_mappings
from hmd.linux.page_calls import query_nodes
from hmd.linux.process_table import ProcessTable
from hmd.linux.procfs import PROC, SYSFS, ProcessId, alive
from hmd.sample.access_batch import AccessBatch
from hmd.sample.damon_regions import Addresses, MappedPieces, RegionMap, find_mapped, make_rows
from hmd.sample.periods import RecordTime, clamp
from hmd.sample.sampler import (
    CAPABILITIES,
    DEFAULTS,
    Sampler,
    SamplerStats,
    SampleSettings,
)

START_INTERVAL_US: Final = 5000
"""DAMON's default."""
MIN_INTERVAL_US, MAX_INTERVAL_US = 500, 50_000
INTERVALS_PER_CYCLE: Final = 40
"""Intervals per count, which determines the share of those with an access to 8 %."""
MAX_ROWS: Final = 1 << 13
"""Rows of one read; finding out which of them have a page takes about 2 ms."""
MAX_REGIONS, MIN_REGIONS = 400, 25
DETAIL: Final = "memory regions by DAMON"
PERIODS: Final = (500, 700, 1000, 1400, 2000, 2800, 4000, 5600, 8000, 11200, 16000, 22400, 32000)
START_PERIOD: Final = 1000
MAX_PROCESSES: Final = 128
"""Monitored processes; if there are more, the first ones."""

_HIT_SHARE_AIM, _MIN_HIT_SHARE, _MAX_HIT_SHARE = 0.5, 0.35, 0.65
_MAX_INTERVAL_STEP: Final = 2.0
_ANY_REGION: Final = DamonRegions(
    np.array([PAGE_BYTES], np.uint64), np.array([2 * PAGE_BYTES], np.uint64), np.zeros(1, np.uint32)
)


def next_interval_us(sample_us: int, hit_share: float) -> int:
    """Return the next interval; ``hit_share`` is the mean share of checks with an access."""
    if _MIN_HIT_SHARE <= hit_share <= _MAX_HIT_SHARE:
        return sample_us
    step = _HIT_SHARE_AIM / max(hit_share, 1e-3)
    step = min(max(step, 1 / _MAX_INTERVAL_STEP), _MAX_INTERVAL_STEP)
    return min(max(round(sample_us * step), MIN_INTERVAL_US), MAX_INTERVAL_US)


class CycleRows(NamedTuple):
    """The result of a cycle: per process its pages and the accesses that each represents."""

    time_ns: int
    rows: tuple[tuple[ProcessId, Addresses, npt.NDArray[np.uint32]], ...]


class DamonCycle:
    """Monitors processes through one kdamond; ``sample_us`` is the interval of the next cycle."""

    def __init__(
        self,
        kdamond: Kdamond,
        proc: Path,
        clock: Callable[[], float] = time.monotonic,
        max_regions: int = MAX_REGIONS,
    ) -> None:
        self.cpu_s = 0.0
        self.sample_us = START_INTERVAL_US
        self._kdamond = kdamond
        self._proc = proc
        self._clock = clock
        self._random = random.Random(0)
        self._max_regions = max_regions
        self._map = RegionMap(max_regions)
        self._floor_us = MIN_INTERVAL_US
        self._ended_s: float | None = None

    def stop(self) -> None:
        """Stop the kdamond."""
        self._kdamond.stop()

    def run_cycle(self, processes: Sequence[ProcessId]) -> CycleRows | None:
        """Return the accesses, extrapolated to the time since the last cycle.

        None if no process is alive, or all end meanwhile. Raises DamonError if another program
        has taken DAMON over.
        """
        begun_s = self._clock()
        found = {process: covering_mappings(process.pid, self._proc) for process in processes}
        mappings = {p: m for p, m in found.items() if m is not None and alive(p, self._proc)}
        regions = {p: chosen for p, chosen in self._map.choose(mappings).items() if len(chosen)}
        sample_us = self.sample_us
        if not regions:
            self._ended_s = None  # no time to extrapolate to
            return None
        if not self._start(regions, sample_us):
            return None
        try:
            counted = self._kdamond.read_regions()
        finally:
            self._kdamond.stop()
            self.cpu_s = self._kdamond.cpu_s
        if counted is None:
            return None
        answered = any(map(len, counted))
        self._adapt(answered)
        if not answered:
            return None
        before_s = begun_s if self._ended_s is None else self._ended_s
        self._ended_s = self._clock()
        interval_us = max(sample_us, self._kdamond.waited_s * 1e6 / INTERVALS_PER_CYCLE)
        intervals = (self._ended_s - before_s) * 1e6 / interval_us
        pieces: dict[ProcessId, MappedPieces] = {}
        for process, counts in zip(regions, counted, strict=True):
            self._map.record_shares(process, counts, INTERVALS_PER_CYCLE)
            if alive(process, self._proc):
                pieces[process] = find_mapped(
                    counts.accessed, mappings[process], INTERVALS_PER_CYCLE
                )
        return self._make_rows(pieces, intervals)

    def _adapt(self, answered: bool) -> None:
        """Adapt the number of regions to how fast the machine checks all of them.

        On a slow machine an interval takes longer than it was set to. The next ones are set to at
        least a quarter of that, because the kernel has ``PATIENCE`` times as long.
        """
        took_us = self._kdamond.waited_s * 1e6 / INTERVALS_PER_CYCLE
        floor_us, regions = self._floor_us, self._map.max_regions
        self._floor_us = round(took_us / 4 if answered else took_us / 2)
        self._floor_us = min(max(self._floor_us, MIN_INTERVAL_US), MAX_INTERVAL_US)
        if answered:
            self._map.max_regions = min(regions + regions // 16, self._max_regions)
            return
        self.sample_us = max(self.sample_us, self._floor_us)
        if floor_us == MAX_INTERVAL_US:
            self._map.max_regions = max(regions // 2, MIN_REGIONS)

    def _start(self, regions: dict[ProcessId, DamonRegions], sample_us: int) -> bool:
        """Monitor these regions; False if one of the processes has ended."""
        pids = [process.pid for process in regions]
        try:
            aggregation_us = INTERVALS_PER_CYCLE * sample_us
            self._kdamond.start(pids, list(regions.values()), sample_us, aggregation_us)
        except DamonError as error:
            if error.errno == errno.EINVAL and not self._all_alive(regions):
                return False
            raise
        if not self._all_alive(regions):
            self._kdamond.stop()  # another process may have the pid now
            return False
        return True

    def _all_alive(self, processes: Iterable[ProcessId]) -> bool:
        return all(alive(process, self._proc) for process in processes)

    def _make_rows(self, pieces: dict[ProcessId, MappedPieces], intervals: float) -> CycleRows:
        time_ns = time.monotonic_ns()
        accesses = sum(each.accesses_per_interval for each in pieces.values())
        if accesses:
            hits = sum(float(each.pages @ each.share**2) for each in pieces.values())
            interval_us = next_interval_us(self.sample_us, hits / accesses)
            self.sample_us = max(interval_us, self._floor_us)
        made = make_rows(
            list(pieces.values()),
            [partial(_find_present, process.pid) for process in pieces],
            intervals,
            MAX_ROWS,
            self._random.random(),
        )
        by_process = zip(pieces, made, strict=True)
        return CycleRows(time_ns, tuple((process, *columns) for process, columns in by_process))


def _find_present(pid: int, addresses: Addresses) -> npt.NDArray[np.bool_]:
    return query_nodes(pid, addresses) >= 0


def open_damon(
    settings: SampleSettings = DEFAULTS,
    proc: Path = PROC,
    sysfs: Path = SYSFS,
    before: Sampler | None = None,
    note: Path = NOTE,
    clock: Callable[[], float] = time.monotonic,
    kdamonds: Kdamonds | None = None,
    max_regions: int = MAX_REGIONS,
) -> DamonSampler:
    """Return a sampler of DAMON's regions; its period (1000) is in milliseconds.

    It is ``before``, the sampler that is open now, if that has DAMON, which has a single user; one
    that has lost it is closed. Raises MissingError if the kernel cannot monitor virtual addresses,
    or DAMON is in use.
    """
    if isinstance(before, DamonSampler):
        if before.usable:
            if settings.period is not None:
                before.set_period(settings.period)
            return before
        before.close()
    period = clamp(settings.period or START_PERIOD, PERIODS)
    kdamonds = kdamonds or Kdamonds(sysfs)
    claim = DamonClaim(kdamonds, note, proc)
    kdamond = Kdamond(kdamonds, proc)
    try:
        # Only a trial shows whether the kernel has all that this needs.
        aggregation_us = INTERVALS_PER_CYCLE * START_INTERVAL_US
        kdamond.start([os.getpid()], [_ANY_REGION], START_INTERVAL_US, aggregation_us)
        kdamond.stop()
    except BaseException:
        kdamond.stop()
        claim.release()
        raise
    return DamonSampler(claim, DamonCycle(kdamond, proc, clock, max_regions), period, clock)


class DamonSampler:
    """A ``Sampler`` over the regions of one kdamond; owns claim and cycle."""

    pair_period = None
    record_time = RecordTime()  # no records are taken on the programs' CPUs

    def __init__(
        self,
        claim: DamonClaim,
        cycle: DamonCycle,
        period: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = "damon"
        self.detail = DETAIL
        self.capabilities = CAPABILITIES["damon"]
        self.periods: tuple[int, ...] = PERIODS
        self.stats = SamplerStats()
        self._claim = claim
        self._changed = threading.Condition()
        self._cycle = cycle
        self._clock = clock
        self.period = period
        self._processes: tuple[ProcessId, ...] = ()
        self._requested = False
        self._closed = False
        self._seen: CycleRows | Exception | None = None
        self._thread: threading.Thread | None = None

    @property
    def usable(self) -> bool:
        """Whether DAMON is still set up for this sampler, and not by another program."""
        return not self._closed and self._claim.held

    @property
    def outside_cpu_s(self) -> float:
        """CPU time of the kernel's threads up to the last cycle."""
        return self._cycle.cpu_s

    def set_period(self, period: int) -> int:
        """Set the time between cycles, clamped to the bounds of ``PERIODS``; returns it."""
        self.period = clamp(period, PERIODS)
        return self.period

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Monitor the first ``MAX_PROCESSES`` of these processes."""
        with self._changed:
            if self._closed:
                return
            self._processes = tuple(processes)
            self._request_cycle()
        if self._thread is None and processes:
            self._thread = threading.Thread(target=self._work, name="hmd-damon", daemon=True)
            self._thread.start()

    def read(self) -> AccessBatch:
        """Return the rows of the last cycle, once, and request the next; may raise its error."""
        with self._changed:
            seen, self._seen = self._seen, None
            if self._closed:
                return AccessBatch.empty()
            self._request_cycle()
        if isinstance(seen, Exception):
            raise seen
        if seen is None:
            return AccessBatch.empty()
        return self._batch(seen)

    def _request_cycle(self) -> None:
        self._requested = True
        self._changed.notify_all()

    def _batch(self, seen: CycleRows) -> AccessBatch:
        table = ProcessTable(self._processes)
        tracked = [row for row in seen.rows if row[0] in table]
        count = sum(len(address) for _, address, _ in tracked)
        self.stats.samples += count
        self.stats.dropped += sum(len(address) for _, address, _ in seen.rows) - count
        self.stats.wakeups += count > 0
        if not tracked:
            return AccessBatch.empty()
        processes, addresses, accesses = zip(*tracked, strict=True)
        return AccessBatch.of(
            np.concatenate(addresses),
            np.repeat(table.slots_of(processes), [len(address) for address in addresses]),
            time_ns=seen.time_ns,
            period=np.concatenate(accesses),
        )

    def _work(self) -> None:
        """Run a cycle when a read or a new set of processes requests it and the last was read."""
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or (self._requested and self._seen is None)
                )
                if self._closed:
                    return
                self._requested = False
                processes, period_s = self._processes, self.period / 1000
            begun_s = self._clock()
            seen: CycleRows | Exception | None
            try:
                seen = self._cycle.run_cycle(processes[:MAX_PROCESSES])
            except Exception as error:
                seen = error  # raised by the next read
            with self._changed:
                self._seen = seen
            self._rest(processes, max(0.0, begun_s + period_s - self._clock()))

    def _rest(self, tracked: tuple[ProcessId, ...], seconds: float) -> None:
        """Wait for close, or until the processes differ from ``tracked``, but no longer."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._processes != tracked, seconds)

    def close(self) -> None:
        """Stop the kdamond and release DAMON; waits for two aggregations at most."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        try:
            if self._thread is not None:
                self._cycle.stop()  # a waiting cycle returns
                self._thread.join()
                self._cycle.stop()  # a kdamond that it may have started meanwhile
        finally:
            self._claim.release()
