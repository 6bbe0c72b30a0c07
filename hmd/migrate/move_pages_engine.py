"""Moving one group of pages, and finding out what became of each.

Takes pages of one process that are not yet on the target node; gives one Status a page. This is
where the kernel's answers are made sense of (mm/migrate.c, do_pages_move, since 4.17):

* Pages queue up until one cannot be queued; that one gets its errno in ``status``, and what had
  queued up is migrated as one run.
* A run that migrates whole gets its node in ``status``. A run that does not ends the call: its
  statuses and all that follow stay untouched, and the call returns how many pages are left.
* -ENOMEM ends the call the same way, as its error.
* A page of a folio (huge page, large folio) that an earlier page of the call queued gets EBUSY,
  although it moves along.

So untouched and busy pages are looked up again. Those in the run that failed have had a try and
get a bounded number; those behind it had none and are simply next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hmd.machine.move_pages import UNTOUCHED, MoveFlags
from hmd.machine.process_id import ProcessId, ProcessStat
from hmd.migrate.batches import BatchSize
from hmd.migrate.move_status import MoveStatus, of_call, of_pages

Rows = npt.NDArray[np.intp]


class PageCalls(Protocol):
    """The two calls of ``hmd.machine.move_pages``."""

    def query_nodes(self, pid: int, addresses: npt.NDArray[np.uint64], /) -> npt.NDArray[np.int16]:
        """See ``hmd.machine.move_pages.query_nodes``."""
        ...

    def move_pages(
        self,
        pid: int,
        addresses: npt.NDArray[np.uint64],
        nodes: npt.NDArray[np.int32],
        flags: MoveFlags,
        /,
    ) -> tuple[int, npt.NDArray[np.int32]]:
        """See ``hmd.machine.move_pages.move_pages``."""
        ...


@dataclass(slots=True)
class TransferStats:
    """Counters of calls: queries and moves, their rows, and the time spent in moves."""

    queries: int = 0
    queried_rows: int = 0
    calls: int = 0
    call_rows: int = 0
    retried_rows: int = 0
    busy_ns: int = 0
    slowest_call_ns: int = 0


class Transfer:
    """The move_pages engine for one group at a time.

    ``read_stat`` tells who has a pid now; ``clock`` gives seconds.
    """

    def __init__(
        self,
        calls: PageCalls,
        read_stat: Callable[[int], ProcessStat | None],
        clock: Callable[[], float],
        size: BatchSize,
        flags: MoveFlags,
        tries: int,
    ) -> None:
        self._calls = calls
        self._read_stat = read_stat
        self._clock = clock
        self._flags = flags
        self._tries = tries
        self.size = size
        self.stats = TransferStats()
        self.stopping = False

    def is_gone(self, process: ProcessId) -> bool:
        """Return True where the process has exited, though its pid may be another's by now."""
        stat = self._read_stat(process.pid)
        return stat is None or stat.process != process

    def look(
        self, process: ProcessId, addresses: npt.NDArray[np.uint64], node: npt.NDArray[np.int16]
    ) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int16]]:
        """Return status and node of each page now: PENDING is elsewhere than on its ``node``.

        The node is -1 where there is none. A query does not disturb the process.
        """
        answers = self._query(process, addresses)
        status = of_pages(answers, node)
        if (status == MoveStatus.INVALID).any():
            status[status == MoveStatus.INVALID] = self._without_memory(process)
        return status, np.maximum(answers, -1).astype(np.int16)

    def run(
        self,
        process: ProcessId,
        addresses: npt.NDArray[np.uint64],
        weights: npt.NDArray[np.uint32],
        node: int,
        deadline_s: float,
    ) -> npt.NDArray[np.int16]:
        """Move pages (of ``weights`` 4 KiB units) to the node; returns a Status a page.

        Ends early, with the rest DEFERRED, when the clock reaches the deadline, or once
        ``stopping`` is set.
        """
        status = np.full(len(addresses), MoveStatus.PENDING, np.int16)
        tries = np.zeros(len(addresses), np.int32)
        fresh: Rows = np.arange(len(addresses))
        suspects: Rows = fresh[:0]
        while len(fresh) or len(suspects):
            verdict = self._stop(process, deadline_s)
            if verdict is None:
                if not len(fresh):
                    # Suspects come last and together: time may have freed them by now.
                    fresh, suspects = suspects, fresh
                    self.stats.retried_rows += len(fresh)
                count = self.size.take(weights[fresh])
                batch, fresh = fresh[:count], fresh[count:]
                verdict, status[batch], tried = self._call(
                    process, addresses[batch], int(weights[batch].sum()), node
                )
                left = status[batch] == MoveStatus.PENDING
                fresh = np.concatenate((batch[left & ~tried], fresh))
                failed = batch[left & tried]
                tries[failed] += 1
                status[failed[tries[failed] >= self._tries]] = MoveStatus.BUSY
                suspects = np.concatenate((suspects, failed[tries[failed] < self._tries]))
            if verdict is not None:
                status[status == MoveStatus.PENDING] = verdict
                break
        return status

    def _stop(self, process: ProcessId, deadline_s: float) -> MoveStatus | None:
        """Return why the next call must not be made.

        The kernel offers no pidfd for move_pages(2), so that between this look and the call the
        process may exit and its pid go to another. That takes all pids in between to be used up
        within microseconds, and costs the stranger the place of some pages, never their content.
        """
        if self.stopping or self._clock() >= deadline_s:
            return MoveStatus.DEFERRED
        return MoveStatus.GONE if self.is_gone(process) else None

    def _without_memory(self, process: ProcessId) -> MoveStatus:
        """Return what EINVAL means: a kernel thread, or an exit, which frees memory before pid."""
        stat = self._read_stat(process.pid)
        kernel_thread = stat is not None and stat.process == process and stat.kernel_thread
        return MoveStatus.INVALID if kernel_thread else MoveStatus.GONE

    def _call(
        self, process: ProcessId, addresses: npt.NDArray[np.uint64], pages: int, node: int
    ) -> tuple[MoveStatus | None, npt.NDArray[np.int16], npt.NDArray[np.bool_]]:
        """Make one call; returns its verdict on all that is left, statuses, and who had a try.

        PENDING are the pages that are still elsewhere.
        """
        begun_s = self._clock()
        result, answers = self._calls.move_pages(
            process.pid, addresses, np.full(len(addresses), node, np.int32), self._flags
        )
        self._measure(len(addresses), pages, self._clock() - begun_s)
        untouched = answers == UNTOUCHED
        status = of_pages(answers, node)
        status[untouched] = MoveStatus.PENDING
        doubtful = untouched | (status == MoveStatus.BUSY)
        if doubtful.any():
            status[doubtful], _ = self.look(
                process, addresses[doubtful], np.full(int(doubtful.sum()), node, np.int16)
            )
        status[status == MoveStatus.ALREADY_THERE] = MoveStatus.MOVED
        if result >= 0:
            full = (status == MoveStatus.NO_MEMORY).any()
            return (MoveStatus.NO_MEMORY if full else None), status, _had_a_try(untouched)
        verdict = of_call(result)
        if verdict is MoveStatus.INVALID:
            verdict = self._without_memory(process)
        status[(status == MoveStatus.PENDING) & ~untouched] = MoveStatus.BUSY
        return verdict, status, ~untouched

    def _query(
        self, process: ProcessId, addresses: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.int16]:
        self.stats.queries += 1
        self.stats.queried_rows += len(addresses)
        return self._calls.query_nodes(process.pid, addresses)

    def _measure(self, rows: int, pages: int, seconds: float) -> None:
        spent_ns = round(seconds * 1e9)
        self.stats.calls += 1
        self.stats.call_rows += rows
        self.stats.busy_ns += spent_ns
        self.stats.slowest_call_ns = max(self.stats.slowest_call_ns, spent_ns)
        self.size.observe(pages, seconds)


def _had_a_try(untouched: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which pages of a call the kernel came to.

    A run that migrated whole is touched, so an untouched page before a touched one belongs to the
    run that failed, and the last touched one is where the call ended. With no such page the run
    that failed is the last of the call.
    """
    touched = np.flatnonzero(~untouched)
    came_to = np.ones(len(untouched), np.bool_)
    if len(touched) and untouched[: touched[-1]].any():
        came_to[touched[-1] + 1 :] = False
    return came_to
