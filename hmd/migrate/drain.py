# SPDX-License-Identifier: MIT
"""The drain worker: empties nodes of pages that no plan moves, of all processes.

A thread goes through all processes, pass after pass, and moves their pages off the drained nodes to
those of :func:`hmd.policy.admin.drain_targets`: code and shared pages too (which needs
CAP_SYS_NICE), with what the moves of the ticks leave of the budget. It reports the pages that stay,
by reason. migrate_pages(2), which moves all pages of a process in one call, blocks the process
meanwhile, has no budget, and does not report why pages stay.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from hmd.base.units import PAGE_BYTES
from hmd.linux.mappings import Mappings, read_mappings
from hmd.linux.memory_policy import MemoryBindings
from hmd.linux.node_memory import Reserves
from hmd.linux.procfs import PROC, SYSFS, ProcessId, alive, list_pids, read_live_stat
from hmd.linux.topology import Topology, read_node_memory
from hmd.migrate.mover import Mover, MoverSettings
from hmd.migrate.process_plans import ProcessPlans
from hmd.migrate.status import MoveStatus
from hmd.policy.admin import assign_nodes, drain_targets, open_room
from hmd.policy.nodes import nodes_of
from hmd.policy.plan import MachineView, Plan

MIN_REST_S: Final = 1.0
"""Time between two passes; after a long pass, nine times its CPU time."""
MAX_SEARCH_S: Final = 0.005
"""CPU time of a search after which it rests, if it found nothing to move."""
PIECE_PAGES: Final = 1 << 14
"""Pages that move before the request is read again: 64 MiB."""
NO_ROOM: Final = "no_room"
PINNED: Final = "pinned"
UNREAD: Final = "unread"
"""Of a process whose mappings may not be read, at least one page may be anywhere."""
_DONE: Final = (
    MoveStatus.MOVED,
    MoveStatus.ALREADY_THERE,
    MoveStatus.NOT_PRESENT,
    MoveStatus.DUPLICATE,
)


@dataclass(frozen=True, slots=True)
class DrainRequest:
    """The nodes to empty now; each new set of nodes has a ``serial`` of its own.

    Ticks still move the pages of processes that are ``spared``; those of ``pinned`` ones stay.
    ``unmovable`` returns a process's mappings with those to keep marked. ``cpu_share`` of one CPU
    may be used for the search of pages that are on no drained node.
    """

    serial: int
    drained: frozenset[int]
    topology: Topology
    spared: frozenset[ProcessId] = frozenset()
    pinned: frozenset[ProcessId] = frozenset()
    unmovable: Callable[[ProcessId, Mappings], Mappings] = lambda _, mappings: mappings
    dry_run: bool = False
    cpu_share: float = 1.0


@dataclass(frozen=True, slots=True)
class DrainResult:
    """The result of the passes for one ``serial``.

    ``left`` are base pages by node and reason as the last complete pass found them. ``settled``
    says that this pass covered all processes and moved nothing: what is left will stay.
    """

    serial: int = -1
    passes: int = 0
    moved_pages: int = 0
    left: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    settled: bool = False


@dataclass(slots=True)
class _Pass:
    """A running pass; ``left`` by node and reason.

    ``searched_s`` is CPU time of the search that was not rested for, ``counted_s`` the thread's
    CPU time up to which it is counted.
    """

    request: DrainRequest
    mover: Mover
    left: dict[int, Counter[str]]
    counted_s: float
    moved_pages: int = 0
    complete: bool = True
    searched_s: float = 0.0


class DrainWorker:
    """The thread, which runs while there is a request; ``progress`` may be read at any time."""

    def __init__(self, log: logging.Logger, proc: Path = PROC, sysfs: Path = SYSFS) -> None:
        self._log, self._proc, self._sysfs = log, proc, sysfs
        self._reserves, self._bindings = Reserves(proc), MemoryBindings(proc)
        self._changed = threading.Condition()
        self._request: DrainRequest | None = None
        self._granted_bytes = self._spent_bytes = 0
        self._closing = False
        self._thread: threading.Thread | None = None
        self.progress = DrainResult()

    def send(self, request: DrainRequest | None, granted_bytes: int) -> int:
        """Set request and bytes until the next call; return the bytes moved since the last one."""
        with self._changed:
            spent, self._spent_bytes = self._spent_bytes, 0
            self._request, self._granted_bytes = request, granted_bytes
            self._changed.notify_all()
            if request is None:
                self.progress = DrainResult()
            elif self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hmd-drain", daemon=True)
                self._thread.start()
        return spent

    def close(self) -> None:
        """Stop after the current call."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._request is not None)
                request = self._request
            if self._closing or request is None:
                return
            begun_s = time.thread_time()
            try:
                self._run_pass(request)
            except Exception as error:
                self._log.error("drain: a pass failed, the next follows", exc_info=error)
            rest_s = max(MIN_REST_S, 9 * (time.thread_time() - begun_s))
            with self._changed:
                self._changed.wait_for(partial(self._must_wake, request), rest_s)

    def _must_wake(self, request: DrainRequest) -> bool:
        """Return whether the rest between two passes ends: the request has changed."""
        now = self._request
        before = (request.drained, request.pinned, bool(request.spared))
        return self._closing or now is None or (now.drained, now.pinned, bool(now.spared)) != before

    def _run_pass(self, request: DrainRequest) -> None:
        """Empty the nodes of the pages of all processes, once."""
        settings = MoverSettings(None, move_shared=True, dry_run=request.dry_run)
        mover = Mover(
            settings,
            page_filter=lambda _, addresses: np.ones(len(addresses), np.bool_),
            bindings=self._bindings,
        )
        left: dict[int, Counter[str]] = {node: Counter() for node in request.drained}
        current = _Pass(request, mover, left, time.thread_time())
        for pid in list_pids(self._proc):
            if self._is_obsolete(request):
                return
            self._rest_from_search(current)
            stat = read_live_stat(pid, self._proc)
            if stat is None or not stat.has_memory:
                continue
            if stat.process in request.spared:
                current.complete = False
                continue
            self._empty_process(current, stat.process)
        with self._changed:
            if self._request is None:
                return
            before = self.progress if self.progress.serial == request.serial else DrainResult()
            self.progress = DrainResult(
                serial=request.serial,
                passes=before.passes + 1,
                moved_pages=before.moved_pages + current.moved_pages,
                left={node: dict(+reasons) for node, reasons in left.items()},
                settled=current.complete and (request.dry_run or not current.moved_pages),
            )

    def _is_obsolete(self, request: DrainRequest) -> bool:
        """Return whether a pass must end: its request is no longer in force."""
        now = self._request  # one read: no lock is needed
        return self._closing or now is None or now.serial != request.serial

    def _rest_from_search(self, current: _Pass, *, found: bool = False) -> None:
        """Wait for the search's share of the CPU, unless it has ``found`` pages to move."""
        now_s, request = time.thread_time(), current.request
        if not found:
            current.searched_s += now_s - current.counted_s
        current.counted_s = now_s
        if current.searched_s < MAX_SEARCH_S:
            return
        rest_s = current.searched_s * (1 / request.cpu_share - 1)
        current.searched_s = 0.0
        with self._changed:
            self._changed.wait_for(lambda: self._is_obsolete(request), rest_s)

    def _empty_process(self, current: _Pass, process: ProcessId) -> None:
        mappings = read_mappings(process.pid, self._proc)
        if mappings is None or not len(mappings):
            if alive(process, self._proc):
                for stays in current.left.values():
                    stays[UNREAD] += 1
            return
        request = current.request
        pinned = process in request.pinned
        marked = request.unmovable(process, mappings)
        for node in sorted(request.drained):
            plans = ProcessPlans(
                process,
                mappings,
                to_node=-1,
                from_node=node,
                movable=mappings.migratable,
                proc=self._proc,
            )
            for found in plans.slices():
                self._rest_from_search(current, found=bool(len(found.plan)))
                if self._is_obsolete(request):
                    current.complete = False
                    return
                plan, stays = found.plan, current.left[node]
                if found.refusal is not None and found.refusal is not MoveStatus.GONE:
                    stays[found.refusal.label] += 1
                if pinned:
                    stays[PINNED] += int(plan.pages.sum())
                    continue
                row = np.searchsorted(mappings.start, plan.address, side="right") - 1
                kept = ~marked.migratable[row]
                stays["kept"] += int(plan.pages[kept].sum())
                if not self._empty_slice(current, plan.take(np.flatnonzero(~kept)), node):
                    return

    def _empty_slice(self, current: _Pass, plan: Plan, node: int) -> bool:
        """Move pages of one process off a node; return whether the pass continues."""
        while len(plan):
            granted_bytes = self._await_budget(current.request)
            if granted_bytes is None:
                current.complete = False
                return False
            count = np.searchsorted(
                np.cumsum(plan.pages, dtype=np.int64),
                min(granted_bytes // PAGE_BYTES, PIECE_PAGES),
                "right",
            )
            end = min(max(1, int(count)), len(plan))
            self._move(current, plan.take(np.arange(end)), node)
            plan = plan.take(np.arange(end, len(plan)))
        return True

    def _await_budget(self, request: DrainRequest) -> int | None:
        """Wait for budget; return how many bytes may move now, None where the pass must end."""
        with self._changed:
            while not self._is_obsolete(request):
                if self._granted_bytes >= PAGE_BYTES:
                    return self._granted_bytes
                self._changed.wait()
        return None

    def _move(self, current: _Pass, plan: Plan, node: int) -> None:
        """Move pages to nodes with room, and count those that stay."""
        request, stays = current.request, current.left[node]
        memory = read_node_memory(
            request.topology, self._sysfs, self._reserves.at(time.monotonic())
        )
        machine = MachineView(request.topology, memory, 0.0, 1.0, 0)
        target = assign_nodes(
            plan.pages.astype(np.int64),
            plan.from_node.astype(np.int64),
            open_room(nodes_of(machine, 0.0, 0), request.drained),
            drain_targets(request.topology, request.drained),
        )
        stays[NO_ROOM] += int(plan.pages[target < 0].sum())
        rows = np.flatnonzero(target >= 0)
        outcome = current.mover.apply(plan.take(rows).to(target[rows].astype(np.int16)))
        for status, pages in outcome.pages.items():
            if status not in _DONE and status is not MoveStatus.GONE:
                stays[status.label] += pages
        if outcome.dry_run:
            return
        current.moved_pages += outcome.moved_bytes // PAGE_BYTES
        with self._changed:
            self._granted_bytes -= outcome.moved_bytes
            self._spent_bytes += outcome.moved_bytes
