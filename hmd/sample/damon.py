"""Accesses by DAMON: what there is in most virtual machines, where no PMU is.

The kernel looks at accessed bits of one page in each of some hundred regions of a process's
memory, splits regions and merges those that are alike (Park and others, "DAMON", Middleware 2019;
mm/damon/). Rows are made of regions by ``regions``, which says what they mean. Kinds are all LOAD:
an accessed bit does not tell loads from stores. Times are those at which regions were read.

The period is the sampling interval in milliseconds, from DAMON's own 5 ms up. All else follows
from it, so that what it costs goes with 1/period: counts are taken over 20 intervals, as DAMON
does, but over no more than two seconds, at 5 looks at least; regions are read once in 50
intervals at most, and only when the last were taken by ``read``. With 400 regions, 20 ms cost
about 2 % of a CPU in the kernel and 1 % here; both count for the daemon's quota. A page that is
accessed more often than once an interval looks like any hotter one, so that shorter intervals
also tell more of hot pages.

A thread waits for DAMON, because a read of its regions takes up to two aggregations. Regions are
found anew when a process joins, in some ten aggregations.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from hmd.machine.damon import Kdamonds
from hmd.machine.damon_claim import NOTE, DamonClaim
from hmd.machine.kdamond import Kdamond
from hmd.machine.process import PROC, ProcessId
from hmd.sample.batch import AccessBatch, Kind
from hmd.sample.damon_watch import Seen, Watch, monitoring
from hmd.sample.sampler import SamplerStats

DETAIL = "memory regions by DAMON"
LADDER = (5, 7, 10, 14, 20, 28, 40, 57, 80, 113, 160, 226, 320, 453, 640)
START_PERIOD = 20
TARGETS = 128
"""Most processes that are monitored; of more, the first."""

_READ_INTERVALS = 50


def open_damon(
    period: int | None = None,
    proc: Path = PROC,
    sysfs: Path = Path("/sys"),
    note: Path = NOTE,
    clock: Callable[[], float] = time.monotonic,
    kdamonds: Kdamonds | None = None,
) -> DamonSampler:
    """Return a sampler of DAMON's regions; ``period`` (20) is in milliseconds.

    Raises MissingError where the kernel cannot monitor virtual addresses, or DAMON is another's.
    """
    period = min(max(period or START_PERIOD, LADDER[0]), LADDER[-1])
    kdamonds = kdamonds or Kdamonds(sysfs)
    claim = DamonClaim(kdamonds, note, proc)
    kdamond = Kdamond(kdamonds, proc)
    try:
        # Nothing but trying it tells whether the kernel has what it takes.
        kdamond.start([os.getpid()], monitoring(period))
        kdamond.stop()
    except BaseException:
        kdamond.stop()
        claim.release()
        raise
    return DamonSampler(claim, kdamond, period, proc, clock)


class DamonSampler:
    """A ``Sampler`` over the regions of one kdamond."""

    def __init__(
        self,
        claim: DamonClaim,
        kdamond: Kdamond,
        period: int,
        proc: Path = PROC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Own the claim and the kdamond from now on; ``clock`` gives seconds."""
        self.name = "damon"
        self.detail = DETAIL
        self.ladder: tuple[int, ...] = LADDER
        self.stats = SamplerStats()
        self._claim = claim
        self._watch = Watch(kdamond, proc, clock)
        self._period = period
        self._processes: tuple[ProcessId, ...] = ()
        self._changed = threading.Condition()
        self._asked = False
        self._closed = False
        self._seen: Seen | Exception | None = None
        self._thread: threading.Thread | None = None

    @property
    def period(self) -> int:
        """The sampling interval in milliseconds."""
        return self._period

    @property
    def pair_period(self) -> None:
        """None: nothing is counted twice."""
        return

    @property
    def outside_cpu_s(self) -> float:
        """CPU time of the kernel's thread, when regions were read last."""
        return self._watch.cpu_s

    def set_period(self, period: int) -> int:
        """Set the sampling interval, brought into the ladder's bounds; returns it."""
        self._period = min(max(period, LADDER[0]), LADDER[-1])
        return self._period

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Monitor these processes, of which the first ``TARGETS``; DAMON is off without any."""
        with self._changed:
            if self._closed:
                return
            self._processes = tuple(processes)
            self._ask()
        if self._thread is None and processes:
            self._thread = threading.Thread(target=self._work, name="hmd-damon", daemon=True)
            self._thread.start()

    def read(self) -> AccessBatch:
        """Return the rows of the regions that were read last, once, and ask for the next.

        Raises MissingError where DAMON has been taken away.
        """
        with self._changed:
            seen, self._seen = self._seen, None
            if self._closed:
                return AccessBatch.empty()
            self._ask()
        if isinstance(seen, Exception):
            raise seen
        if seen is None:
            return AccessBatch.empty()
        return self._batch(seen)

    def _ask(self) -> None:
        self._asked = True
        self._changed.notify_all()

    def _batch(self, seen: Seen) -> AccessBatch:
        index = {process: i for i, process in enumerate(self._processes)}
        ours = [(index[p], address, told) for p, address, told in seen.rows if p in index]
        count = sum(len(address) for _, address, _ in ours)
        self.stats.samples += count
        self.stats.dropped += sum(len(address) for _, address, _ in seen.rows) - count
        self.stats.wakeups += count > 0
        if not ours:
            return AccessBatch.empty()
        return AccessBatch(
            process=np.repeat(
                np.array([i for i, _, _ in ours], np.int32), [len(a) for _, a, _ in ours]
            ),
            address=np.concatenate([address for _, address, _ in ours]),
            kind=np.full(count, Kind.LOAD, np.uint8),
            cpu=np.zeros(count, np.uint16),
            thread=np.zeros(count, np.uint32),
            time_ns=np.full(count, seen.time_ns, np.uint64),
            weight_ns=np.zeros(count, np.uint32),
            period=np.concatenate([told for _, _, told in ours]),
        )

    def _work(self) -> None:
        """Look whenever a read or another set of processes asks for it."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked or self._closed)
                if self._closed:
                    return
                self._asked = False
                processes, period = self._processes, self._period
            seen: Seen | Exception | None
            try:
                seen = self._watch.look(processes[:TARGETS], period)
            except Exception as error:
                seen = error  # which the next read raises
            with self._changed:
                self._seen = seen
                self._pause(processes, period * _READ_INTERVALS / 1000)

    def _pause(self, tracked: tuple[ProcessId, ...], seconds: float) -> None:
        """Wait so long, or until others are tracked; the condition is held."""
        self._changed.wait_for(lambda: self._closed or self._processes != tracked, seconds)

    def close(self) -> None:
        """Stop the kdamond and give DAMON back; waits for two aggregations at most."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        try:
            if self._thread is not None:
                self._watch.stop()  # a look that waits returns
                self._thread.join()
                self._watch.stop()  # what it may have started meanwhile
        finally:
            self._claim.release()
