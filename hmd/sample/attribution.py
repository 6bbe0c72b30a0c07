# SPDX-License-Identifier: MIT
"""Attribution of samples: the tracked process of each row.

A sample of perf contains the process's id (tgid) in addition to the thread's: ``TrackedPids``
costs a few ns per row, and per call one read of /proc/PID/stat for each process that has rows.

The emulated machine's PMU knows page-table roots (cr3) and no processes, as a hypervisor does.
``PageTableAttribution`` looks up virtual pages of samples in the /proc/PID/pagemap of the tracked
processes: the root is that of the process whose page frame is the sample's physical page. The
result is looked up again after ``RECHECK_S``, because exit and exec free a root, which another
process may then get; that of no tracked process at growing intervals. Page frames need
CAP_SYS_ADMIN (Documentation/admin-guide/mm/pagemap.rst).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_SHIFT
from hmd.linux.page_calls import FRAME, PRESENT, read_pagemap
from hmd.linux.process_table import ProcessTable
from hmd.linux.procfs import PROC, ProcessId, alive, replaced
from hmd.sample.perf_ring import RecordColumns, distinct

RECHECK_S = 1.0
"""Time after which a root is looked up again."""
EARLY_TRIES = 3
"""Reads in a row that look a new root up: an exec moves pages before its program begins."""
FIRST_RETRY_S = 0.25
MAX_RETRY_S = 8.0
READS_AFTER_LOSS = 2
"""Reads attributed to a process that no longer has the pages: it is ending, or has ended since the
rings were drained."""
MAX_LOOKUPS = 16
"""Pages that are looked up in a process to decide whether it has a root."""
MAX_UNKNOWN = 4096
"""Roots remembered as those of no tracked process; short-lived programs leave many."""

Pages = list[tuple[int, int]]
"""Virtual page numbers and the page frames that samples had there."""


class TrackedPids:
    """The ``Attribution`` of perf samples."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self.track(())

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Attribute samples to these processes only."""
        self._processes = tuple(processes)
        self._slots = {process.pid: slot for slot, process in enumerate(self._processes)}

    def find_processes(self, columns: RecordColumns) -> npt.NDArray[np.int32]:
        """Return each row's process; -1 if it is not tracked, or its pid is another's now."""
        pids, which = distinct(columns.pid[: columns.count])
        found = np.full(len(pids) + 1, -1, np.int32)  # the last for rows of too many pids
        for i, pid in enumerate(pids):
            slot = self._slots.get(pid, -1)
            if slot >= 0 and not replaced(self._processes[slot], self._proc):
                found[i] = slot
        return found[which]


@dataclass(slots=True)
class _OwnedRoot:
    """The root of a tracked process."""

    process: ProcessId
    checked_s: float
    reads_left: int = READS_AFTER_LOSS


@dataclass(slots=True)
class _UnknownRoot:
    """A root of no tracked process, as far as is known; looked up again at ``retry_s``."""

    tries: int
    retry_s: float
    wait_s: float


class PageTableAttribution:
    """The ``Attribution`` of samples by page-table root; ``clock`` gives seconds."""

    def __init__(self, proc: Path = PROC, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._table = ProcessTable()
        self._roots: dict[int, _OwnedRoot | _UnknownRoot] = {}

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Attribute samples to these processes only; forget the roots of others."""
        new = set(processes) - set(self._table.processes)
        self._table = ProcessTable(processes)
        self._roots = {
            root: state
            for root, state in self._roots.items()
            # An unknown root may be a new process's.
            if (state.process in self._table if isinstance(state, _OwnedRoot) else not new)
        }

    def find_processes(self, columns: RecordColumns) -> npt.NDArray[np.int32]:
        """Return each row's process; -1 if its root is not (yet) that of a tracked process."""
        roots, which = distinct(columns.pid[: columns.count])
        found = np.full(len(roots) + 1, -1, np.int32)  # the last for rows of too many roots
        now = self._clock()
        if len(self._roots) > MAX_UNKNOWN + len(self._table):
            self._roots = {r: s for r, s in self._roots.items() if isinstance(s, _OwnedRoot)}
        for i, root in enumerate(roots):
            process = self._find_owner(root, partial(_newest_pages, columns, which, i), now)
            if process is not None:
                found[i] = self._table.slot_of(process)
        return found[which]

    def _find_owner(self, root: int, pages: Callable[[], Pages], now: float) -> ProcessId | None:
        state = self._roots.get(root)
        if isinstance(state, _OwnedRoot):
            living = alive(state.process, self._proc)
            if living and now - state.checked_s < RECHECK_S:
                return state.process
            owner = self._recheck(root, state.process if living else None, pages())
            if owner is None:
                state.reads_left -= 1
                if not state.reads_left:
                    del self._roots[root]
                return state.process
            self._roots[root] = _OwnedRoot(owner, now)
            return owner
        if isinstance(state, _UnknownRoot) and now < state.retry_s:
            return None
        owner = self._search(root, pages())
        if owner is not None:
            self._roots[root] = _OwnedRoot(owner, now)
            return owner
        tries, wait_s = 1, 0.0
        if isinstance(state, _UnknownRoot):
            tries = state.tries + 1
            wait_s = min(max(state.wait_s * 2, FIRST_RETRY_S), MAX_RETRY_S)
        if tries < EARLY_TRIES:
            wait_s = 0.0
        self._roots[root] = _UnknownRoot(tries, now + wait_s, wait_s)
        return None

    def _recheck(self, root: int, before: ProcessId | None, pages: Pages) -> ProcessId | None:
        """Return the process that has these pages where the samples had them.

        The process ``before`` keeps its root as long as it has the pages anywhere and no other
        has them there: hmd, or the kernel, may have moved all of them since.
        """
        if before is not None and self._count_matches(before.pid, pages):
            return before
        owner = self._search(root, pages)
        if owner is None and before is not None and any(self._read_frames(before.pid, pages)):
            return before
        return owner

    def _search(self, root: int, pages: Pages) -> ProcessId | None:
        """Return the process that has most of these pages, None if two have equally many.

        A parent and its child share pages after fork, and programs share libraries. Of two such
        processes, the one whose root is not known yet is returned; otherwise later samples decide.
        Pages that hmd itself has are its own: a program that it starts is a copy of it until exec.
        """
        scores = {
            process: self._count_matches(process.pid, pages) for process in self._table.processes
        }
        best_score = max(scores.values(), default=0)
        own_pid = os.getpid()
        if not best_score or (
            all(process.pid != own_pid for process in scores)
            and self._count_matches(own_pid, pages) >= best_score
        ):
            return None
        best = [process for process, score in scores.items() if score == best_score]
        if len(best) > 1:
            owned = {
                state.process
                for other, state in self._roots.items()
                if isinstance(state, _OwnedRoot) and other != root
            }
            best = [process for process in best if process not in owned]
        return best[0] if len(best) == 1 else None

    def _count_matches(self, pid: int, pages: Pages) -> int:
        """Return how many of the pages this process has in the page frames of the samples."""
        frames = self._read_frames(pid, pages)
        return sum(now == then for now, (_, then) in zip(frames, pages, strict=True))

    def _read_frames(self, pid: int, pages: Pages) -> list[int]:
        """Return the page frames of a process's pages now, 0 for those that it does not have."""
        number = np.array([page for page, _ in pages], np.uint64)
        order = np.argsort(number)
        entry = read_pagemap(pid, number[order], self._proc)
        if entry is None:
            return [0] * len(pages)
        frames = np.zeros(len(pages), np.uint64)
        frames[order] = np.where(entry & PRESENT, entry & FRAME, np.uint64(0))
        return frames.tolist()


def _newest_pages(columns: RecordColumns, which: npt.NDArray[np.int32], root: int) -> Pages:
    """Return the newest distinct pages of a root's rows, ``MAX_LOOKUPS`` at most."""
    last = np.flatnonzero(which == root)[::-1][: 8 * MAX_LOOKUPS]
    pages = (columns.address[last] >> np.uint64(PAGE_SHIFT)).tolist()
    frames = (columns.physical[last] >> np.uint64(PAGE_SHIFT)).tolist()
    newest: dict[int, int] = {}
    for page, frame in zip(pages, frames, strict=True):
        if frame and page < 1 << 52:
            newest.setdefault(page, frame)
    return list(newest.items())[:MAX_LOOKUPS]
