"""One DAMON cycle: a kdamond runs for a short time, and its regions become rows.

A cycle starts the kdamond with the regions to count next (``region_map``), reads their counts and
stops it. Nothing runs between two cycles, which bounds the cost. A longer sampling interval would
also cost less, but all pages that are accessed more than once per interval look alike.

The interval adapts to the program: half of the checks of an accessed page find an access, averaged
over accesses. A shorter interval misses cold pages; with a longer one, hot pages look alike.

A cycle takes ``INTERVALS_PER_CYCLE`` intervals, and costs about 100 µs of the kernel's CPU time and
as much of hmd's per region, of at most ``REGIONS``.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hmd.machine.damon.damon_sysfs import DamonError
from hmd.machine.damon.kdamond import DamonRegions, Kdamond, Monitoring
from hmd.machine.pages.maps_pieces import covering_mappings
from hmd.machine.pages.move_pages import query_nodes
from hmd.machine.process_id import ProcessId, alive
from hmd.sample.damon_regions import Addresses, Pieces, mapped, rows
from hmd.sample.region_map import RegionMap

FIRST_US = 5000
"""DAMON's default interval."""
SHORTEST_US, LONGEST_US = 500, 50_000
INTERVALS_PER_CYCLE = 40
"""Intervals per count, which determines the share of those with an access to 8 %."""
ROWS = 1 << 13
"""Most rows of one read; finding out which of them have a page takes about 2 ms."""
REGIONS, REGIONS_LEAST = 400, 25

_AIM, _LOW, _HIGH = 0.5, 0.35, 0.65
_STEP_MOST = 2.0


def monitoring(sample_us: int) -> Monitoring:
    """Return DAMON's settings for a sampling interval."""
    return Monitoring(sample_us, INTERVALS_PER_CYCLE * sample_us)


def next_interval_us(sample_us: int, seen: float) -> int:
    """Return the next interval; ``seen`` is the mean share of checks with an access."""
    if _LOW <= seen <= _HIGH:
        return sample_us
    step = min(max(_AIM / max(seen, 1e-3), 1 / _STEP_MOST), _STEP_MOST)
    return min(max(round(sample_us * step), SHORTEST_US), LONGEST_US)


@dataclass(frozen=True, slots=True)
class Seen:
    """Rows of a cycle: per process its pages and the accesses that each represents."""

    time_ns: int
    rows: tuple[tuple[ProcessId, Addresses, npt.NDArray[np.uint32]], ...]


class DamonCycle:
    """Monitors processes through one kdamond, for one thread.

    ``cpu_s`` is the CPU time of the kernel's threads up to the last cycle, ``sample_us`` the
    interval of the next. ``clock`` gives seconds; ``regions`` are counted at most.
    """

    def __init__(
        self,
        kdamond: Kdamond,
        proc: Path,
        clock: Callable[[], float] = time.monotonic,
        regions: int = REGIONS,
    ) -> None:
        self.cpu_s = 0.0
        self.sample_us = FIRST_US
        self._kdamond = kdamond
        self._proc = proc
        self._clock = clock
        self._random = random.Random(0)
        self._most = regions
        self._map = RegionMap(regions)
        self._floor_us = SHORTEST_US
        self._ended_s: float | None = None

    def stop(self) -> None:
        """Stop the kdamond."""
        self._kdamond.stop()

    def run_cycle(self, processes: Sequence[ProcessId]) -> Seen | None:
        """Return the accesses, extrapolated to the time since the last cycle.

        None if no process is alive, or all end meanwhile. Raises DamonError if another program
        has taken DAMON over.
        """
        begun_s = self._clock()
        found = {process: covering_mappings(process.pid, self._proc) for process in processes}
        mappings = {p: m for p, m in found.items() if m is not None and alive(p, self._proc)}
        chosen = self._map.choose(mappings)
        regions = {process: its for process, its in chosen.items() if len(its)}
        settings = monitoring(self.sample_us)
        if not regions:
            self._ended_s = None  # no time to extrapolate to
            return None
        if not self._start(regions, settings):
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
        interval_us = max(settings.sample_us, self._kdamond.waited_s * 1e6 / INTERVALS_PER_CYCLE)
        intervals = (self._ended_s - before_s) * 1e6 / interval_us
        pieces: dict[ProcessId, Pieces] = {}
        for process, its in zip(regions, counted, strict=True):
            self._map.learn(process, its, settings.most_accesses)
            if alive(process, self._proc):
                pieces[process] = mapped(its.accessed, mappings[process], settings.most_accesses)
        return self._rows(pieces, intervals)

    def _adapt(self, answered: bool) -> None:
        """Adapt the number of regions to how fast the machine checks all of them.

        Its intervals are longer than they are meant to be then: those to come are a quarter of
        that, because the kernel has ``PATIENCE`` times as long.
        """
        took_us = self._kdamond.waited_s * 1e6 / INTERVALS_PER_CYCLE
        least_us = round(took_us / 4 if answered else took_us / 2)
        before_us, self._floor_us = self._floor_us, min(max(least_us, SHORTEST_US), LONGEST_US)
        if answered:
            self._map.most = min(self._map.most + self._map.most // 16, self._most)
            return
        self.sample_us = max(self.sample_us, self._floor_us)
        if before_us == LONGEST_US:
            self._map.most = max(self._map.most // 2, REGIONS_LEAST)

    def _start(self, regions: dict[ProcessId, DamonRegions], settings: Monitoring) -> bool:
        """Monitor these regions; False if one of the processes has ended."""
        pids = [process.pid for process in regions]
        try:
            self._kdamond.start(pids, list(regions.values()), settings)
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

    def _rows(self, pieces: dict[ProcessId, Pieces], intervals: float) -> Seen:
        time_ns = time.monotonic_ns()
        mass = sum(each.mass for each in pieces.values())
        if mass:
            seen = sum(float(each.pages @ each.share**2) for each in pieces.values()) / mass
            self.sample_us = max(next_interval_us(self.sample_us, seen), self._floor_us)
        made = rows(
            list(pieces.values()),
            [_present(process.pid) for process in pieces],
            intervals,
            ROWS,
            self._random.random(),
        )
        of = zip(pieces, made, strict=True)
        return Seen(time_ns, tuple((process, *columns) for process, columns in of))


def _present(pid: int) -> Callable[[Addresses], npt.NDArray[np.bool_]]:
    def present(addresses: Addresses) -> npt.NDArray[np.bool_]:
        return query_nodes(pid, addresses) >= 0

    return present
