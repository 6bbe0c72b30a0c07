# SPDX-License-Identifier: MIT
"""Paging out: to swap or zram, and pages of files to their file.

The kernel returns only how much it was asked for, so pages are queried afterwards (0.2 µs each).
Pages that stayed, for lack of swap or because other processes map them too, get a backoff that
doubles. Never raises because of a target: it may exit or unmap at any moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.linux.page_calls import RANGES_MOST, page_out, query_nodes
from hmd.linux.procfs import ProcessId
from hmd.migrate.backoff import BackoffSettings, RetryBackoff
from hmd.policy.plan import Plan

PageOut = Callable[[ProcessId, npt.NDArray[np.uint64], npt.NDArray[np.uint64]], int]
"""``hmd.linux.page_calls.page_out``: reclaims ranges of a process."""
QueryNodes = Callable[[int, npt.NDArray[np.uint64]], npt.NDArray[np.int16]]
"""``hmd.linux.page_calls.query_nodes``."""

# A call locks the target's memory map while it writes: no more pages per call than ranges.
_CALL_PAGES: Final = RANGES_MOST
_BACKOFF: Final = BackoffSettings(30.0, 3600.0, 1 << 18)


@dataclass(frozen=True, slots=True)
class PageoutSettings:
    """No plan takes longer than ``limit_s``; a dry run pages nothing out."""

    limit_s: float = float("inf")
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class PageoutOutcome:
    """The outcome of a plan; rows as the plan has them.

    ``tried`` marks the rows that were asked for; ``node`` is where each is now, below 0 where it is
    out or not known; ``out_bytes`` were paged out.
    """

    tried: npt.NDArray[np.bool_]
    node: npt.NDArray[np.int16]
    out_bytes: int


class Pageout:
    """Pages out what plans name; remembers pages that stayed, for their backoff."""

    def __init__(
        self,
        settings: PageoutSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        page_out: PageOut = page_out,
        query_nodes: QueryNodes = query_nodes,
    ) -> None:
        self.settings = settings or PageoutSettings()
        self._page_out, self._query_nodes = page_out, query_nodes
        self._clock = clock
        self._backoff = RetryBackoff(_BACKOFF)

    def apply(self, plan: Plan, budget_bytes: int, now_s: float) -> PageoutOutcome:
        """Page out what the plan names, in its order, as far as budget and backoff permit."""
        end_s = self._clock() + self.settings.limit_s
        node = plan.from_node.copy()
        tried = np.zeros(len(plan), np.bool_)
        chosen = self._affordable_rows(plan, budget_bytes, now_s)
        if self.settings.dry_run:
            return PageoutOutcome(tried, node, 0)
        for slot in np.unique(plan.process[chosen]).tolist():
            rows = chosen[plan.process[chosen] == slot]
            rows = rows[np.argsort(plan.address[rows])]
            for part in _split_into_calls(plan.pages[rows]):
                if self._clock() >= end_s or not self._send(plan, rows[part], node, now_s):
                    break
                tried[rows[part]] = True
        out = plan.pages[tried & (node < 0)].sum(dtype=np.int64)
        return PageoutOutcome(tried, node, int(out) * PAGE_BYTES)

    def _affordable_rows(self, plan: Plan, budget_bytes: int, now_s: float) -> npt.NDArray[np.intp]:
        """Return the rows that are not in backoff, as far as the budget goes."""
        waits = np.zeros(len(plan), np.bool_)
        for slot in np.unique(plan.process).tolist():
            rows = plan.process == slot
            waits[rows] = self._backoff.find_waiting(
                plan.processes[slot], plan.address[rows], now_s
            )
        rows = np.flatnonzero(~waits)
        total = np.cumsum(plan.pages[rows], dtype=np.int64) * PAGE_BYTES
        return rows[total <= budget_bytes]

    def _send(
        self,
        plan: Plan,
        rows: npt.NDArray[np.intp],
        node: npt.NDArray[np.int16],
        now_s: float,
    ) -> bool:
        """Page out rows of one process, by rising address; return whether to continue with it."""
        process = plan.processes[int(plan.process[rows[0]])]
        size = plan.pages[rows].astype(np.uint64) * np.uint64(PAGE_BYTES)
        start, length = _join_ranges(plan.address[rows], size)
        if self._page_out(process, start, length) < 0:
            self._backoff.add(process, plan.address[rows], now_s)
            return False
        node[rows] = self._query_nodes(process.pid, plan.address[rows])
        kept = rows[node[rows] >= 0]
        self._backoff.add(process, plan.address[kept], now_s)
        return True


def _split_into_calls(pages: npt.NDArray[np.uint32]) -> list[npt.NDArray[np.intp]]:
    """Return the indices of rows for each call; each call has at least one."""
    call = np.maximum(np.cumsum(pages, dtype=np.int64) - 1, 0) // _CALL_PAGES
    return np.split(np.arange(len(pages)), np.flatnonzero(np.diff(call)) + 1)


def _join_ranges(
    address: npt.NDArray[np.uint64], size: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return starts and bytes of ranges; adjacent ones are joined."""
    end = address + size
    first = np.concatenate([[True], address[1:] != end[:-1]])
    start = address[first]
    last = np.concatenate([np.flatnonzero(first)[1:] - 1, [len(address) - 1]])
    return start, end[last] - start
