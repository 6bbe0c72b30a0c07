# SPDX-License-Identifier: MIT
"""Paging out: to swap or zram, and pages of files to their file; and back ahead of use.

The kernel returns only how much it was asked for, so pages are queried afterwards (0.2 µs each).
Pages that stayed, for lack of swap or because other processes map them too, get a backoff that
doubles. Never raises because of a target: it may exit or unmap at any moment.

Nothing goes out while swap fails, or of a process whose group waits for memory. A call may wait for
a device that does not answer: calls are made by a thread, which ticks do not wait for.

Pages that went out are looked at in turn. Those of a process that came back side by side show where
it reads next: as many again are read ahead of use, while most of what was read so is used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.linux.page_calls import RANGES_MOST, page_in, page_out, query_nodes
from hmd.linux.procfs import ProcessId
from hmd.linux.swap import STALL_S
from hmd.migrate.move_budget import BackoffSettings, RetryBackoff
from hmd.policy.plan import Plan

PageOut = Callable[[ProcessId, npt.NDArray[np.uint64], npt.NDArray[np.uint64]], int]
"""``page_out`` or ``page_in`` of hmd.linux.page_calls: advice on ranges of a process."""
QueryNodes = Callable[[int, npt.NDArray[np.uint64]], npt.NDArray[np.int16]]
"""``hmd.linux.page_calls.query_nodes``."""

# A call locks the target's memory map while it writes: no more pages per call than ranges.
_CALL_PAGES: Final = RANGES_MOST
_BACKOFF: Final = BackoffSettings(30.0, 3600.0, 1 << 18)

HOLD_S: Final = 10.0
"""Time for which nothing of a process is paged out after its group has waited for memory: what
the kernel takes the mean over."""
STOPPED: Final = "a call of process_madvise(2) does not return: swap does not answer"

_LOOKED_AT: Final = 2048
"""Rows that are out and are looked at per tick, of all processes: 0.4 ms."""
_LOOKED_LEAST: Final = 8
"""Rows looked at of a process: of more than 256 processes, some wait for the next tick."""
_MAX_ROWS: Final = 1 << 20
"""Rows that are remembered, of all processes: 20 MiB of memory."""
_RUN: Final = 3
"""Neighbours among the rows looked at whose return in one tick shows a sequence."""
_AHEAD: Final = 2
"""Rows to read ahead, in multiples of those that came back."""
_JUDGED: Final = 256
"""Rows read ahead from which on half must be used; after ``_JUDGED_TICKS`` one counts as unused."""
_JUDGED_TICKS: Final = 10
_FADE: Final = 0.99
"""Factor per tick on what was judged, so that reading ahead is tried again."""
_NOWHERE: Final = 1 << 64

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class PageoutSettings:
    """No plan takes longer than ``limit_s``; a dry run pages nothing out.

    A call that takes longer than ``wait_s`` is left to its thread; without a limit there is none.
    """

    limit_s: float = float("inf")
    dry_run: bool = False
    wait_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class FarLimits:
    """What may be paged out of each process; columns of shape ``(processes,)``.

    ``idle_s`` is the time without a sample after which pages go, infinite for never; ``pressure``
    the share of time above which its group waits for memory too often; ``ahead_bytes`` the most to
    read ahead of use in a tick.
    """

    idle_s: npt.NDArray[np.float64]
    pressure: npt.NDArray[np.float64]
    ahead_bytes: npt.NDArray[np.int64]

    @classmethod
    def alike(cls, processes: int, idle_s: float) -> FarLimits:
        """Return one idle time for all processes, without other limits and reading ahead."""
        every = np.ones(processes)
        return cls(idle_s * every, np.inf * every, np.zeros(processes, np.int64))


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
    """Pages out what plans name; remembers pages that stayed, and those that are out.

    ``failure`` says why swap does not work, empty where it does (hmd.linux.swap.SwapWatch);
    ``pressure`` how often the group of a pid waits for memory, None where that is not known.
    """

    stopped = ""
    """Why nothing is paged out now."""
    ahead_bytes = 0
    """Bytes that were read ahead of use."""
    cpu_s = 0.0
    """CPU time of threads that made calls."""

    def __init__(
        self,
        settings: PageoutSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        page_out: PageOut = page_out,
        query_nodes: QueryNodes = query_nodes,
        page_in: PageOut = page_in,
        failure: Callable[[float], str] = lambda now_s: "",
        pressure: Callable[[int], float | None] = lambda pid: None,
    ) -> None:
        self.settings = settings or PageoutSettings()
        self._page_out, self._query_nodes, self._page_in = page_out, query_nodes, page_in
        self._failure, self._pressure = failure, pressure
        self._clock = clock
        self._backoff = RetryBackoff(_BACKOFF)
        self._held_until_s: dict[ProcessId, float] = {}
        self._out: dict[ProcessId, _OutPages] = {}
        self._room, self._looked_last = _MAX_ROWS, 0
        self._calling: threading.Thread | None = None
        self._late_since_s = float("inf")

    @property
    def out_bytes(self) -> int:
        """Bytes that were paged out and have not been seen back."""
        return sum(int(out.pages.sum()) for out in list(self._out.values())) * PAGE_BYTES

    def held(self, processes: Sequence[ProcessId], now_s: float) -> npt.NDArray[np.bool_]:
        """Return whose pages stay as the group waits for memory, shape ``(processes,)``.

        Forgets all processes that are not among ``processes``.
        """
        present = set(processes)
        for table in (self._held_until_s, self._out):
            for gone in table.keys() - present:
                del table[gone]
        until = [self._held_until_s.get(process, 0.0) for process in processes]
        return np.array(until) > now_s

    def works(self, now_s: float) -> bool:
        """Return whether pages may go out and come back now.

        ``stopped`` says why not, but where a slow device has a call to end, for up to ``STALL_S``.
        """
        if self._calling is not None and self._calling.is_alive():
            self._late_since_s = min(self._late_since_s, now_s)
            if now_s - self._late_since_s >= STALL_S:
                self.stopped = STOPPED
            return False
        self._calling, self._late_since_s = None, float("inf")
        self.stopped = self._failure(now_s)
        return not self.stopped

    def apply(
        self, plan: Plan, budget_bytes: int, now_s: float, limits: FarLimits | None = None
    ) -> PageoutOutcome:
        """Page out what the plan names, in its order, as far as the budget goes.

        ``now_s`` is the time of the backoff. Of what a call that does not return was about,
        nothing is known: those rows count as not tried.
        """
        end_s = self._clock() + self.settings.limit_s
        node = plan.from_node.copy()
        tried = np.zeros(len(plan), np.bool_)
        chosen = self._affordable_rows(plan, budget_bytes, now_s)
        if self.settings.dry_run:
            return PageoutOutcome(tried, node, 0)

        chosen = chosen[np.lexsort((plan.address[chosen], plan.process[chosen]))]
        of_process = np.split(chosen, np.flatnonzero(np.diff(plan.process[chosen])) + 1)

        def send() -> None:
            self._room = _MAX_ROWS - sum(len(out.address) for out in self._out.values())
            for rows in of_process:
                slot = int(plan.process[rows[0]])
                if limits is not None and self._hold(plan.processes[slot], slot, limits, now_s):
                    continue
                for part in _split_into_calls(plan.pages[rows]):
                    if self._clock() >= end_s or not self._send(plan, rows[part], node, now_s):
                        break
                    tried[rows[part]] = True
                self._remember(plan, rows[tried[rows] & (node[rows] < 0)])

        if len(chosen):
            self._call(send)
        out = plan.pages[tried & (node < 0)].sum(dtype=np.int64)
        return PageoutOutcome(tried.copy(), node.copy(), int(out) * PAGE_BYTES)

    def _call(self, work: Callable[[], None]) -> None:
        if self.settings.wait_s == float("inf"):
            work()
            return
        errors: list[Exception] = []

        def run() -> None:
            begun_s = time.thread_time()
            try:
                work()
            except Exception as error:
                errors.append(error)
            self.cpu_s += time.thread_time() - begun_s

        self._calling = threading.Thread(target=run, name="hmd-pageout", daemon=True)
        self._calling.start()
        self._calling.join(self.settings.wait_s)
        if errors:
            raise errors[0]

    def _hold(self, process: ProcessId, slot: int, limits: FarLimits, now_s: float) -> bool:
        """Return whether the group of a process waits for memory too often."""
        if limits.pressure[slot] >= 1 or (self._pressure(process.pid) or 0) < limits.pressure[slot]:
            return False
        self._held_until_s[process] = now_s + HOLD_S
        return True

    def bring_back(self, limits: FarLimits, processes: Sequence[ProcessId]) -> None:
        """Read ahead what is expected to be used next; once a tick."""

        def read() -> None:
            count = max(_LOOKED_AT // len(self._out), _LOOKED_LEAST)
            slots = [slot for slot, process in enumerate(processes) if process in self._out]
            first = self._looked_last % max(len(slots), 1)
            slots = (slots[first:] + slots[:first])[: _LOOKED_AT // _LOOKED_LEAST]
            self._looked_last = first + len(slots)
            for slot in slots:
                process, out = processes[slot], self._out[processes[slot]]
                if not len(out.address):
                    continue
                looked = out.next_rows(count)
                rows = out.expect(looked, self._query_nodes(process.pid, out.address[looked]) >= 0)
                size = out.pages[rows].astype(np.uint64) * np.uint64(PAGE_BYTES)
                rows = rows[np.cumsum(size) <= limits.ahead_bytes[slot]][:RANGES_MOST]
                if len(rows):
                    start, length = _join_ranges(out.address[rows], size[: len(rows)])
                    self.ahead_bytes += max(self._page_in(process, start, length), 0)
                    out.asked_tick[rows] = out.tick

        if self._out and not self.settings.dry_run:
            self._call(read)

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
        self._backoff.add(process, plan.address[rows[node[rows] >= 0]], now_s)
        return True

    def _remember(self, plan: Plan, rows: npt.NDArray[np.intp]) -> None:
        """Remember rows of one process that are out, as far as there is room."""
        rows = rows[: max(self._room, 0)]
        if len(rows):
            out = self._out.setdefault(plan.processes[int(plan.process[rows[0]])], _OutPages())
            self._room -= out.add(plan.address[rows], plan.pages[rows])


class _OutPages:
    """The rows of one process that are out, by rising address.

    ``asked_tick`` is the tick in which a row was read ahead, 0 for none.
    """

    def __init__(self) -> None:
        self.address = np.empty(0, np.uint64)
        self.pages = np.empty(0, np.uint32)
        self.asked_tick = np.empty(0, np.int64)
        self.tick = 0
        self._used = self._judged = 0.0

    def add(self, address: npt.NDArray[np.uint64], pages: npt.NDArray[np.uint32]) -> int:
        """Add rows that went out; return how many are new."""
        known = len(self.address)
        self.address, first = np.unique(np.concatenate([address, self.address]), return_index=True)
        self.pages = np.concatenate([pages, self.pages])[first]
        never = np.zeros(len(address), np.int64)
        self.asked_tick = np.concatenate([never, self.asked_tick])[first]
        return len(self.address) - known

    def next_rows(self, count: int) -> Rows:
        """Return rows to look at in this tick, evenly distributed; others in the next one."""
        self.tick += 1
        step = max(-(-len(self.address) // count), 1)
        return np.arange(self.tick % step, len(self.address), step)

    def expect(self, looked: Rows, back: npt.NDArray[np.bool_]) -> Rows:
        """Forget what came ``back`` of the rows ``looked`` at; return those that are used next.

        Nothing while most of what was read ahead is not used.
        """
        asked = self.asked_tick[looked]
        judged = (asked > 0) & (back | (self.tick - asked > _JUDGED_TICKS))
        self._judged = self._judged * _FADE + float(judged.sum())
        self._used = self._used * _FADE + float((judged & back).sum())
        self.asked_tick[looked[judged]] = 0
        position = np.flatnonzero(back)
        runs = [looked[r] for r in np.split(position, np.flatnonzero(np.diff(position) != 1) + 1)]
        gone, wanted = np.zeros((2, len(self.address)), np.bool_)
        gone[looked[back]] = True
        for run in runs:
            if len(run) >= _RUN:
                gone[run[0] : run[-1] + 1] = True
                wanted[self._next_of(int(run[0]), int(run[-1]))] = True
        wanted &= (self.asked_tick == 0) & (self._judged < _JUDGED or 2 * self._used > self._judged)
        stay = ~gone
        self.address, self.pages = self.address[stay], self.pages[stay]
        self.asked_tick = self.asked_tick[stay]
        return np.flatnonzero(wanted[stay])

    def _next_of(self, first: int, last: int) -> slice:
        """Return the rows after a run, or before it where those after it are back, or far."""
        end = self.address + self.pages.astype(np.uint64) * np.uint64(PAGE_BYTES)
        before = int(self.address[first] - end[first - 1]) if first else _NOWHERE
        after = int(self.address[last + 1] - end[last]) if last + 1 < len(end) else _NOWHERE
        count = _AHEAD * (last - first + 1)
        if after <= before:
            return slice(last + 1, last + 1 + count)
        return slice(max(first - count, 0), first)


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
