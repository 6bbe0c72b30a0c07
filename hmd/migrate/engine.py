# SPDX-License-Identifier: MIT
"""The move_pages engine: moves one group of pages, and finds the status of each.

Takes pages of one process that are not yet on the target node; gives one status per page. The
kernel's answers are (mm/migrate.c, do_pages_move, since 4.17):

* Pages are queued until one cannot be queued; that one gets its errno in ``status``, and the queue
  is migrated as one run.
* A run that migrates completely gets its node in ``status``. A run that does not ends the call:
  its statuses and all later ones stay untouched, and the call returns how many pages are left.
* -ENOMEM ends the call the same way, as its error: the node is full, or it has no free hugetlbfs
  page of 1 GiB for one of the run's pages.
* A page of a folio (huge page, large folio) that an earlier page of the call queued gets EBUSY,
  although it moves with that folio.

So untouched and busy pages are queried again. Those in the run that failed were tried, and are
tried a bounded number of times; those after it were not, and come next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hmd.linux.page_calls import UNTOUCHED, MoveFlags
from hmd.linux.procfs import ProcessId, ProcessStat
from hmd.migrate.move_budget import BatchSize
from hmd.migrate.status import MoveStatus, status_of_call, status_of_pages

Rows = npt.NDArray[np.intp]
PageCheck = Callable[[ProcessId, npt.NDArray[np.uint64], int], npt.NDArray[np.bool_]]
"""Returns the 1 GiB pages for which the node's hugetlb pool has no free page."""


class PageCalls(Protocol):
    """The two calls of ``hmd.linux.page_calls``."""

    def query_nodes(self, pid: int, addresses: npt.NDArray[np.uint64], /) -> npt.NDArray[np.int16]:
        """See ``hmd.linux.page_calls.query_nodes``."""

    def move_pages(
        self,
        pid: int,
        addresses: npt.NDArray[np.uint64],
        nodes: npt.NDArray[np.int32],
        flags: MoveFlags,
        /,
    ) -> tuple[int, npt.NDArray[np.int32]]:
        """See ``hmd.linux.page_calls.move_pages``."""


class MovePagesEngine:
    """The move_pages engine for one group at a time.

    ``read_stat`` reads /proc/PID/stat; ``clock`` returns seconds. ``no_huge_page`` is asked where
    a call ends as on a full node: pages that it names fail alone, the others come next. Calls are
    counted in ``calls``. Once ``stopping`` is set, all pages are deferred.
    """

    def __init__(
        self,
        calls: PageCalls,
        read_stat: Callable[[int], ProcessStat | None],
        clock: Callable[[], float],
        size: BatchSize,
        flags: MoveFlags,
        tries: int,
        no_huge_page: PageCheck,
    ) -> None:
        self._page_calls = calls
        self._no_huge_page = no_huge_page
        self._read_stat = read_stat
        self._clock = clock
        self._flags = flags
        self._tries = tries
        self.size = size
        self.calls = 0
        self.stopping = False

    def has_exited(self, process: ProcessId) -> bool:
        """Return True where the process has exited, even if another process has its pid now."""
        stat = self._read_stat(process.pid)
        return stat is None or stat.process != process

    def locate(
        self, process: ProcessId, addresses: npt.NDArray[np.uint64], node: npt.NDArray[np.int16]
    ) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int16]]:
        """Return status (PENDING: not on its ``node``) and node (-1: absent) of each page now."""
        answers = self._page_calls.query_nodes(process.pid, addresses)
        status = status_of_pages(answers, node)
        if (status == MoveStatus.INVALID).any():
            status[status == MoveStatus.INVALID] = self._without_memory(process)
        return status, np.maximum(answers, -1).astype(np.int16)

    def run(
        self,
        process: ProcessId,
        addresses: npt.NDArray[np.uint64],
        page_counts: npt.NDArray[np.uint32],
        node: int,
        deadline_s: float,
    ) -> npt.NDArray[np.int16]:
        """Move pages (of ``page_counts`` base pages) to the node; return one status per page.

        Ends early, with the rest DEFERRED, when the clock reaches the deadline, or once
        ``stopping`` is set.
        """
        status = np.full(len(addresses), MoveStatus.PENDING, np.int16)
        tries = np.zeros(len(addresses), np.int32)
        queue: Rows = np.arange(len(addresses))
        retries: Rows = queue[:0]
        single = bool((page_counts == 1).all())
        while len(queue) or len(retries):
            refusal = self._stop(process, deadline_s)
            if refusal is None:
                if not len(queue):
                    # Pages that failed come last and together: they may be free by now.
                    queue, retries = retries, queue
                count = min(self.size.pages, len(queue))
                if not single:
                    count = self.size.count_fitting(page_counts[_span(queue[:count])])
                batch, queue = queue[:count], queue[count:]
                span = _span(batch)
                pages = count if single else int(page_counts[span].sum())
                answer = self._call(process, addresses[span], pages, node)
                if answer is None:
                    status[span] = MoveStatus.MOVED
                    continue
                refusal, status[span], tried = answer
                left = status[span] == MoveStatus.PENDING
                if refusal is None and not left.any():
                    continue
                queue = np.concatenate((batch[left & ~tried], queue))
                failed = batch[left & tried]
                tries[failed] += 1
                status[failed[tries[failed] >= self._tries]] = MoveStatus.BUSY
                retries = np.concatenate((retries, failed[tries[failed] < self._tries]))
            if refusal is not None:
                status[status == MoveStatus.PENDING] = refusal
                break
        return status

    def _stop(self, process: ProcessId, deadline_s: float) -> MoveStatus | None:
        """Return why the next call must not be made.

        move_pages(2) takes no pidfd, so between this check and the call the process may exit and
        another may get its pid. That needs all pids in between to be used up within microseconds,
        and moves some pages of the other process, whose content stays intact.
        """
        if self.stopping or self._clock() >= deadline_s:
            return MoveStatus.DEFERRED
        return MoveStatus.GONE if self.has_exited(process) else None

    def _without_memory(self, process: ProcessId) -> MoveStatus:
        """Return what EINVAL means: a kernel thread, or an exit, which frees memory first."""
        stat = self._read_stat(process.pid)
        kernel_thread = stat is not None and stat.process == process and stat.kernel_thread
        return MoveStatus.INVALID if kernel_thread else MoveStatus.GONE

    def _call(
        self, process: ProcessId, addresses: npt.NDArray[np.uint64], pages: int, node: int
    ) -> tuple[MoveStatus | None, npt.NDArray[np.int16], npt.NDArray[np.bool_]] | None:
        """Make one call; return its error for all remaining pages, statuses, and which were tried.

        PENDING are the pages that are not on the node yet. None: all of them have moved.
        """
        begun_s = self._clock()
        result, answers = self._page_calls.move_pages(
            process.pid, addresses, np.full(len(addresses), node, np.int32), self._flags
        )
        self.calls += 1
        self.size.observe(pages, self._clock() - begun_s)
        if result == 0 and (answers == node).all():
            return None
        untouched = answers == UNTOUCHED
        status = status_of_pages(answers, node)
        status[untouched] = MoveStatus.PENDING
        unknown = untouched | (status == MoveStatus.BUSY)
        if unknown.any():
            status[unknown], _ = self.locate(
                process, addresses[unknown], np.full(int(unknown.sum()), node, np.int16)
            )
        status[status == MoveStatus.ALREADY_THERE] = MoveStatus.MOVED
        if result >= 0:
            full = (status == MoveStatus.NO_MEMORY).any()
            return (MoveStatus.NO_MEMORY if full else None), status, _were_tried(untouched)
        refusal = status_of_call(result)
        if refusal is MoveStatus.INVALID:
            refusal = self._without_memory(process)
        if refusal is MoveStatus.NO_MEMORY:
            lacking = self._no_huge_page(process, addresses, node)
            lacking &= status == MoveStatus.PENDING
            if lacking.any():
                status[lacking] = MoveStatus.NO_HUGE_PAGE
                return None, status, np.zeros(len(status), np.bool_)
        status[(status == MoveStatus.PENDING) & ~untouched] = MoveStatus.BUSY
        return refusal, status, ~untouched


def _span(rows: Rows) -> Rows | slice:
    """Return ascending rows as a slice where none is left out: numpy copies nothing then."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def _were_tried(untouched: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which pages of a call the kernel tried.

    A run that migrated completely is touched, so an untouched page before a touched one belongs to
    the run that failed, and the call ended at the last touched one. Without such a page the run
    that failed is the last of the call.
    """
    touched = np.flatnonzero(~untouched)
    tried = np.ones(len(untouched), np.bool_)
    if len(touched) and untouched[: touched[-1]].any():
        tried[touched[-1] + 1 :] = False
    return tried
