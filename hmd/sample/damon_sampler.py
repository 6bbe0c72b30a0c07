"""The DAMON sampler: what most virtual machines have, since they have no PMU.

The kernel checks accessed bits of one page in each of some hundred regions of processes' memory
(Park and others, "Profiling Dynamic Data Access Patterns with Controlled Overhead and Quality",
Middleware 2019; mm/damon/). ``damon_regions`` converts regions to rows and documents their meaning.
Kinds are all LOAD: an accessed bit does not distinguish loads from stores. Times are those at which
regions were read.

The period is the time between two cycles in milliseconds (``damon_cycle``). The cost, in the
kernel's thread as much as in hmd, is proportional to 1/period: some 50 ms of CPU time per cycle
with 400 regions. A cycle runs only when ``read`` asks for it, and after the previous one was
read.

A thread waits for DAMON, because a cycle takes some hundred sampling intervals.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from hmd.machine.damon.damon_ownership import NOTE, DamonClaim
from hmd.machine.damon.damon_sysfs import Kdamonds
from hmd.machine.damon.kdamond import DamonRegions, Kdamond
from hmd.machine.process_id import PROC, ProcessId
from hmd.sample.access_batch import AccessBatch
from hmd.sample.capabilities import CAPABILITIES
from hmd.sample.damon_cycle import FIRST_US, REGIONS, DamonCycle, Seen, monitoring
from hmd.sample.period_control import clamp
from hmd.sample.record_cost import RecordTime
from hmd.sample.sampler import SamplerStats
from hmd.units import PAGE_BYTES

DETAIL = "memory regions by DAMON"
LADDER = (500, 700, 1000, 1400, 2000, 2800, 4000, 5600, 8000, 11200, 16000, 22400, 32000)
START_PERIOD = 1000
TARGETS = 128
"""Most monitored processes; if there are more, the first ones."""

_ANYTHING = DamonRegions(
    np.array([PAGE_BYTES], np.uint64), np.array([2 * PAGE_BYTES], np.uint64), np.zeros(1, np.uint32)
)


def open_damon(
    period: int | None = None,
    proc: Path = PROC,
    sysfs: Path = Path("/sys"),
    note: Path = NOTE,
    clock: Callable[[], float] = time.monotonic,
    kdamonds: Kdamonds | None = None,
    regions: int = REGIONS,
) -> DamonSampler:
    """Return a sampler of DAMON's regions; ``period`` (1000) is in milliseconds.

    Raises MissingError if the kernel cannot monitor virtual addresses, or DAMON is in use.
    """
    period = clamp(period or START_PERIOD, LADDER)
    kdamonds = kdamonds or Kdamonds(sysfs)
    claim = DamonClaim(kdamonds, note, proc)
    kdamond = Kdamond(kdamonds, proc)
    try:
        # Only a trial shows whether the kernel has all that this needs.
        kdamond.start([os.getpid()], [_ANYTHING], monitoring(FIRST_US))
        kdamond.stop()
    except BaseException:
        kdamond.stop()
        claim.release()
        raise
    return DamonSampler(claim, DamonCycle(kdamond, proc, clock, regions), period, clock)


class DamonSampler:
    """A ``Sampler`` over the regions of one kdamond."""

    def __init__(
        self,
        claim: DamonClaim,
        watch: DamonCycle,
        period: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Own the claim and the cycle from now on; ``clock`` returns seconds."""
        self.name = "damon"
        self.detail = DETAIL
        self.capabilities = CAPABILITIES["damon"]
        self.ladder: tuple[int, ...] = LADDER
        self.stats = SamplerStats()
        self._claim = claim
        self._changed = threading.Condition()
        self._watch = watch
        self._clock = clock
        self._period = period
        self._processes: tuple[ProcessId, ...] = ()
        self._asked = False
        self._closed = False
        self._seen: Seen | Exception | None = None
        self._thread: threading.Thread | None = None

    @property
    def usable(self) -> bool:
        """Whether DAMON is still set up for this sampler, and not by another program."""
        return not self._closed and self._claim.held

    @property
    def period(self) -> int:
        """Milliseconds from one cycle to the next."""
        return self._period

    @property
    def pair_period(self) -> None:
        """None: there is no second counter."""
        return

    @property
    def outside_cpu_s(self) -> float:
        """CPU time of the kernel's threads up to the last cycle."""
        return self._watch.cpu_s

    @property
    def record_time(self) -> RecordTime:
        """All 0: no records are taken on the programs' CPUs."""
        return RecordTime()

    def set_period(self, period: int) -> int:
        """Set the time between cycles, clamped to the ladder's bounds; returns it."""
        self._period = clamp(period, LADDER)
        return self._period

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Monitor the first ``TARGETS`` of these processes."""
        with self._changed:
            if self._closed:
                return
            self._processes = tuple(processes)
            self._ask()
        if self._thread is None and processes:
            self._thread = threading.Thread(target=self._work, name="hmd-damon", daemon=True)
            self._thread.start()

    def read(self) -> AccessBatch:
        """Return the rows of the last cycle, once, and request the next.

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
        ours = [(index[p], address, accesses) for p, address, accesses in seen.rows if p in index]
        count = sum(len(address) for _, address, _ in ours)
        self.stats.samples += count
        self.stats.dropped += sum(len(address) for _, address, _ in seen.rows) - count
        self.stats.wakeups += count > 0
        if not ours:
            return AccessBatch.empty()
        return AccessBatch.of(
            np.concatenate([address for _, address, _ in ours]),
            np.repeat([i for i, _, _ in ours], [len(address) for _, address, _ in ours]),
            time_ns=seen.time_ns,
            period=np.concatenate([accesses for _, _, accesses in ours]),
        )

    def _work(self) -> None:
        """Run a cycle when a read or a new set of processes requests it and the last was read."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or (self._asked and self._seen is None))
                if self._closed:
                    return
                self._asked = False
                processes, period_s = self._processes, self._period / 1000
            begun_s = self._clock()
            seen: Seen | Exception | None
            try:
                seen = self._watch.run_cycle(processes[:TARGETS])
            except Exception as error:
                seen = error  # raised by the next read
            with self._changed:
                self._seen = seen
            self._rest(max(0.0, begun_s + period_s - self._clock()), processes)

    def _rest(self, seconds: float, tracked: tuple[ProcessId, ...] | None = None) -> None:
        """Wait this long, or until close, or until the processes differ from ``tracked``."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or (tracked is not None and self._processes != tracked),
                seconds,
            )

    def close(self) -> None:
        """Stop the kdamond and release DAMON; waits for two aggregations at most."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        try:
            if self._thread is not None:
                self._watch.stop()  # a waiting cycle returns
                self._thread.join()
                self._watch.stop()  # a kdamond that it may have started meanwhile
        finally:
            self._claim.release()
