"""Looks at processes by DAMON: a kdamond runs for a moment, and its regions become rows.

A look starts the kdamond with the regions that are to be counted next (``region_map``), reads their
counts and stops it. Between two looks nothing runs, which is how cost is held: a longer sampling
interval would cost less, too, but sees less, because all pages look alike that are accessed more
than once an interval.

The interval follows the program: it is so long that a page that is accessed was seen so at half
of the looks, by mean over accesses. Shorter, cold pages are lost, longer, hot ones look alike.

A look takes ``LOOKS`` intervals, and costs some 100 µs of the kernel's and as much of our CPU time
for each region of at most ``REGIONS``.
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

from hmd.machine.damon_sysfs import DamonError
from hmd.machine.kdamond import DamonRegions, Kdamond, Monitoring
from hmd.machine.mappings import read_mappings
from hmd.machine.move_pages import query_nodes
from hmd.machine.process_id import ProcessId, alive
from hmd.sample.damon_regions import Addresses, Pieces, mapped, rows
from hmd.sample.region_map import RegionMap

FIRST_US = 5000
"""DAMON's own interval."""
SHORTEST_US, LONGEST_US = 500, 50_000
LOOKS = 40
"""Intervals that a count is taken over: the share of those with an access is known to 8 %."""
ROWS = 1 << 13
"""Most rows of one read: about 2 ms for finding out which of them have a page."""
REGIONS, REGIONS_LEAST = 400, 25

_AIM, _LOW, _HIGH = 0.5, 0.35, 0.65
_STEP_MOST = 2.0


def monitoring(sample_us: int) -> Monitoring:
    """Return DAMON's settings for a sampling interval."""
    return Monitoring(sample_us, LOOKS * sample_us)


def next_interval_us(sample_us: int, seen: float) -> int:
    """Return the interval after ``seen``, the mean share of looks with an access, over accesses."""
    if _LOW <= seen <= _HIGH:
        return sample_us
    step = min(max(_AIM / max(seen, 1e-3), 1 / _STEP_MOST), _STEP_MOST)
    return min(max(round(sample_us * step), SHORTEST_US), LONGEST_US)


@dataclass(frozen=True, slots=True)
class Seen:
    """Rows of a look: for each process its pages and what each stands for."""

    time_ns: int
    rows: tuple[tuple[ProcessId, Addresses, npt.NDArray[np.uint32]], ...]


class DamonCycle:
    """Looks at processes through one kdamond, for one thread.

    ``cpu_s`` is the CPU time of the kernel's threads up to the last look, ``sample_us`` the
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
        self._looked_s: float | None = None

    def stop(self) -> None:
        """Stop the kdamond."""
        self._kdamond.stop()

    def look(self, processes: Sequence[ProcessId]) -> Seen | None:
        """Return what was accessed, told for all the time since the last look.

        None where nothing can be told: nobody lives, or all ended meanwhile. Raises DamonError
        where DAMON has become another's.
        """
        begun_s = self._clock()
        found = {process: read_mappings(process.pid, self._proc) for process in processes}
        mappings = {p: m for p, m in found.items() if m is not None and alive(p, self._proc)}
        chosen = self._map.choose(mappings)
        regions = {process: its for process, its in chosen.items() if len(its)}
        settings = monitoring(self.sample_us)
        if not regions:
            self._looked_s = None  # nobody's time passes
            return None
        if not self._start(regions, settings):
            return None
        try:
            counted = self._kdamond.look()
        finally:
            self._kdamond.stop()
            self.cpu_s = self._kdamond.cpu_s
        if counted is None:
            return None
        told = any(map(len, counted))
        self._adapt(told)
        if not told:
            return None
        before_s = begun_s if self._looked_s is None else self._looked_s
        self._looked_s = self._clock()
        interval_us = max(settings.sample_us, self._kdamond.waited_s * 1e6 / LOOKS)
        intervals = (self._looked_s - before_s) * 1e6 / interval_us
        pieces: dict[ProcessId, Pieces] = {}
        for process, its in zip(regions, counted, strict=True):
            self._map.learn(process, its, settings.most_accesses)
            if alive(process, self._proc):
                pieces[process] = mapped(its.accessed, mappings[process], settings.most_accesses)
        return self._rows(pieces, intervals)

    def _adapt(self, told: bool) -> None:
        """Ask less of a machine that is slow to get through all regions, and more again.

        Its intervals are longer than they are meant to be then: those to come are a quarter of
        that, because the kernel has ``PATIENCE`` times as long.
        """
        took_us = self._kdamond.waited_s * 1e6 / LOOKS
        least_us = round(took_us / 4 if told else took_us / 2)
        before_us, self._floor_us = self._floor_us, min(max(least_us, SHORTEST_US), LONGEST_US)
        if told:
            self._map.most = min(self._map.most + self._map.most // 16, self._most)
            return
        self.sample_us = max(self.sample_us, self._floor_us)
        if before_us == LONGEST_US:
            self._map.most = max(self._map.most // 2, REGIONS_LEAST)

    def _start(self, regions: dict[ProcessId, DamonRegions], settings: Monitoring) -> bool:
        """Monitor these; False where one of them has ended meanwhile."""
        pids = [process.pid for process in regions]
        try:
            self._kdamond.start(pids, list(regions.values()), settings)
        except DamonError as error:
            if error.errno == errno.EINVAL and not self._all_alive(regions):
                return False
            raise
        if not self._all_alive(regions):
            self._kdamond.stop()  # it may be another that has the pid
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
