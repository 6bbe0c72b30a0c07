"""What watches by DAMON: the right processes monitored, and rows made of their regions.

Takes the processes that are to be watched at each look, starts the kdamond anew where one of
them is not, and gives the rows of what was accessed since the look before. Processes that have
ended stay among its targets, which costs nothing, until it starts anew. A look waits for DAMON.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hmd.machine.damon import DamonError
from hmd.machine.kdamond import Kdamond, Monitoring, Regions
from hmd.machine.mappings import read_mappings
from hmd.machine.pages import query_nodes
from hmd.machine.process import ProcessId, alive
from hmd.sample.regions import Addresses, Pieces, mapped, rows

AGGREGATION_S = 2.0
"""Counts are taken over no longer time, or a program's phases would blur."""
ROWS = 1 << 13
"""Most rows of one read: about 2 ms for finding out which of them have a page."""

_LOOKS = 20
_LOOKS_LEAST = 5
_UPDATE_US = 1_000_000


def monitoring(period: int) -> Monitoring:
    """Return DAMON's settings for a sampling interval in milliseconds."""
    looks = max(_LOOKS_LEAST, min(_LOOKS, int(AGGREGATION_S * 1000 / period)))
    sample_us = period * 1000
    return Monitoring(sample_us, sample_us * looks, max(_UPDATE_US, sample_us * looks))


@dataclass(frozen=True, slots=True)
class Seen:
    """Rows of a look: for each process its pages and what each stands for."""

    time_ns: int
    rows: tuple[tuple[ProcessId, Addresses, npt.NDArray[np.uint32]], ...]


class Watch:
    """Looks at processes through one kdamond, for one thread.

    ``cpu_s`` is the CPU time of the kernel's thread at the last look. ``clock`` gives seconds.
    """

    def __init__(self, kdamond: Kdamond, proc: Path, clock: Callable[[], float]) -> None:
        self.cpu_s = 0.0
        self._kdamond = kdamond
        self._proc = proc
        self._clock = clock
        self._random = random.Random(0)
        self._targets: tuple[ProcessId, ...] = ()
        self._period = 0
        self._looked_s = 0.0

    def stop(self) -> None:
        """Stop the kdamond."""
        self._kdamond.stop()

    def look(self, processes: Sequence[ProcessId], period: int) -> Seen | None:
        """Return what was accessed since the last look; None where there is nothing to tell."""
        living = tuple(process for process in processes if alive(process, self._proc))
        if not living or not self._monitored(living, period):
            self._kdamond.stop()
            self._targets = ()
            if not living or not self._start(living, period):
                return None
        regions = self._kdamond.look()
        self.cpu_s = self._kdamond.cpu_s
        if regions is None:
            self._targets = ()
            return None
        before_s, self._looked_s = self._looked_s, self._clock()
        return self._rows(regions, (self._looked_s - before_s) * 1000 / period)

    def _monitored(self, living: Sequence[ProcessId], period: int) -> bool:
        """Return True where these are monitored, and beside them only some that have ended."""
        beside = set(self._targets) - set(living)
        return (
            self._period == period
            and set(living) <= set(self._targets)
            and not any(alive(process, self._proc) for process in beside)
            and self._kdamond.running
        )

    def _start(self, living: tuple[ProcessId, ...], period: int) -> bool:
        """Monitor these; False where one of them has ended meanwhile."""
        try:
            self._kdamond.start([process.pid for process in living], monitoring(period))
        except DamonError as error:
            if error.errno == errno.EINVAL and not self._all_alive(living):
                return False
            raise
        if not self._all_alive(living):
            self._kdamond.stop()  # it may be another that has the pid
            return False
        self._targets, self._period, self._looked_s = living, period, self._clock()
        return True

    def _all_alive(self, processes: Sequence[ProcessId]) -> bool:
        return all(alive(process, self._proc) for process in processes)

    def _rows(self, regions: Sequence[Regions], intervals: float) -> Seen:
        time_ns = time.monotonic_ns()
        found: list[tuple[ProcessId, Pieces]] = []
        most = monitoring(self._period).most_accesses
        for process, its in zip(self._targets, regions, strict=True):
            mappings = read_mappings(process.pid, self._proc)
            if mappings is not None and alive(process, self._proc):
                found.append((process, mapped(its, mappings, most)))
        made = rows(
            [pieces for _, pieces in found],
            [_present(process.pid) for process, _ in found],
            intervals,
            ROWS,
            self._random.random(),
        )
        of = zip((process for process, _ in found), made, strict=True)
        return Seen(time_ns, tuple((process, *columns) for process, columns in of))


def _present(pid: int) -> Callable[[Addresses], npt.NDArray[np.bool_]]:
    def present(addresses: Addresses) -> npt.NDArray[np.bool_]:
        return query_nodes(pid, addresses) >= 0

    return present
