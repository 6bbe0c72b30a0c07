"""Empties nodes of what no plan moves: pages of programs that hmd does not follow, and the rest.

A thread beside the ticks goes through all processes, pass after pass, and moves what lies on the
drained nodes to where :func:`hmd.decide.admin_moves.nearest` says: code and shared pages too
(which needs CAP_SYS_NICE), with what the ticks' own moves leave of the budget. What stays is told
with its reason.

By move_pages(2) in short calls rather than by migrate_pages(2): that moves all that a process has
in one call, which blocks the process for as long, knows no budget, and does not say why pages stay.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from hmd.decide.admin_moves import nearest, open_room, spread
from hmd.decide.node_arrays import nodes_of
from hmd.decide.plan import MachineView, Plan
from hmd.machine.mappings import Mappings, read_mappings
from hmd.machine.numa_nodes import read_node_memory
from hmd.machine.process_id import PROC, ProcessId, read_stat
from hmd.machine.topology import Topology
from hmd.machine.zone_reserves import Reserves
from hmd.migrate.move_status import MoveStatus
from hmd.migrate.mover import Mover, MoverSettings
from hmd.migrate.process_plans import Survey
from hmd.units import PAGE_BYTES

SYSFS: Final = Path("/sys")
REST_S: Final = 1.0
"""Least time between two passes; where a pass takes long, nine times as long as that."""

PIECE_PAGES: Final = 1 << 14
"""What is moved before the errand is looked at again: 64 MiB."""

NO_ROOM: Final = "no_room"
PINNED: Final = "pinned"
_DONE: Final = (
    MoveStatus.MOVED,
    MoveStatus.ALREADY_THERE,
    MoveStatus.NOT_PRESENT,
    MoveStatus.DUPLICATE,
)


@dataclass(frozen=True, slots=True)
class Errand:
    """What is to be emptied now.

    An errand with another ``serial`` is another one. Processes that are ``spared`` are left to the
    ticks, ``pinned`` ones stay; ``unmovable`` gives a process's mappings with those to keep marked.
    """

    serial: int
    drained: frozenset[int]
    topology: Topology
    spared: frozenset[ProcessId] = frozenset()
    pinned: frozenset[ProcessId] = frozenset()
    unmovable: Callable[[ProcessId, Mappings], Mappings] = lambda _, mappings: mappings
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class DrainResult:
    """What passes have come to for the errands of one ``serial``.

    ``left`` are pages of 4 KiB by node and reason as the last whole pass found them. ``settled``
    says that this pass left nothing out and moved nothing: what is left will stay.
    """

    serial: int = -1
    passes: int = 0
    moved_pages: int = 0
    left: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    settled: bool = False


@dataclass(slots=True)
class _Pass:
    """One pass under way; ``left`` by node and reason."""

    errand: Errand
    mover: Mover
    left: dict[int, Counter[str]]
    moved_pages: int = 0
    complete: bool = True


class Evacuation:
    """The thread; ``progress`` may be read at any time. It runs while there is an errand."""

    def __init__(self, log: logging.Logger, proc: Path = PROC, sysfs: Path = SYSFS) -> None:
        """Do nothing until there is an errand."""
        self._log, self._proc, self._sysfs = log, proc, sysfs
        self._reserves = Reserves(proc)
        self._changed = threading.Condition()
        self._errand: Errand | None = None
        self._granted_bytes = self._spent_bytes = 0
        self._closing = False
        self._thread: threading.Thread | None = None
        self.progress = DrainResult()

    def send(self, errand: Errand | None, granted_bytes: int) -> int:
        """Set what is to be done and what it may move until the next call; returns bytes moved.

        Those since the last call, for whoever keeps the budget.
        """
        with self._changed:
            spent, self._spent_bytes = self._spent_bytes, 0
            self._errand, self._granted_bytes = errand, granted_bytes
            self._changed.notify_all()
            if errand is None:
                self.progress = DrainResult()
            elif self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hmd-drain", daemon=True)
                self._thread.start()
        return spent

    def close(self) -> None:
        """Stop after the call under way."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._errand is not None)
                errand = self._errand
            if self._closing or errand is None:
                return
            begun_s = time.monotonic()
            try:
                self._pass(errand)
            except Exception as error:
                self._log.error("drain: a pass failed, the next follows", exc_info=error)
            rest_s = max(REST_S, 9 * (time.monotonic() - begun_s))
            with self._changed:
                self._changed.wait_for(partial(self._news, errand), rest_s)

    def _news(self, errand: Errand) -> bool:
        """Tell whether to rest no longer: there is something else to do."""
        now = self._errand
        return (
            self._closing
            or now is None
            or (now.drained, now.pinned, bool(now.spared))
            != (
                errand.drained,
                errand.pinned,
                bool(errand.spared),
            )
        )

    def _pass(self, errand: Errand) -> None:
        """Go through all processes once."""
        settings = MoverSettings(None, move_shared=True, dry_run=errand.dry_run)
        mover = Mover(settings, page_filter=lambda _, addresses: np.ones(len(addresses), np.bool_))
        left: dict[int, Counter[str]] = {node: Counter() for node in errand.drained}
        doing = _Pass(errand, mover, left)
        with os.scandir(self._proc) as entries:
            pids = sorted(int(entry.name) for entry in entries if entry.name.isdigit())
        for pid in pids:
            if self._stale(errand):
                return
            stat = read_stat(pid, self._proc)
            if stat is None or not stat.has_memory:
                continue
            if stat.process in errand.spared:
                doing.complete = False
                continue
            self._empty_process(doing, stat.process)
        with self._changed:
            if self._errand is None:
                return
            before = self.progress if self.progress.serial == errand.serial else DrainResult()
            self.progress = DrainResult(
                serial=errand.serial,
                passes=before.passes + 1,
                moved_pages=before.moved_pages + doing.moved_pages,
                left={node: dict(+reasons) for node, reasons in left.items()},
                settled=doing.complete and (errand.dry_run or not doing.moved_pages),
            )

    def _stale(self, errand: Errand) -> bool:
        """Tell whether a pass serves nobody any more."""
        with self._changed:
            now = self._errand
        return self._closing or now is None or now.serial != errand.serial

    def _empty_process(self, doing: _Pass, process: ProcessId) -> None:
        mappings = read_mappings(process.pid, self._proc)
        if mappings is None or not len(mappings):
            return
        errand = doing.errand
        pinned = process in errand.pinned
        marked = errand.unmovable(process, mappings)
        for node in sorted(errand.drained):
            survey = Survey(
                process,
                mappings,
                to_node=-1,
                from_node=node,
                movable=mappings.migratable,
                proc=self._proc,
            )
            for found in survey.slices():
                plan, stays = found.plan, doing.left[node]
                if found.refusal is not None and found.refusal is not MoveStatus.GONE:
                    stays[found.refusal.name.lower()] += 1
                if pinned:
                    stays[PINNED] += int(plan.pages.sum())
                    continue
                kept = ~marked.migratable[_rows(mappings, plan)]
                stays["kept"] += int(plan.pages[kept].sum())
                if not self._empty_slice(doing, plan.take(np.flatnonzero(~kept)), node):
                    return

    def _empty_slice(self, doing: _Pass, plan: Plan, node: int) -> bool:
        """Move pages of one process off a node; says whether the pass is to go on."""
        while len(plan):
            granted_bytes = self._allowance(doing.errand)
            if granted_bytes is None:
                doing.complete = False
                return False
            count = np.searchsorted(
                np.cumsum(plan.pages, dtype=np.int64),
                min(granted_bytes // PAGE_BYTES, PIECE_PAGES),
                "right",
            )
            piece, plan = _split(plan, max(1, int(count)))
            self._move(doing, piece, node)
        return True

    def _allowance(self, errand: Errand) -> int | None:
        """Return how many bytes may be moved now, once there are some; None: let it be."""
        with self._changed:
            while not (self._closing or self._errand is None):
                if self._errand.serial != errand.serial:
                    return None
                if self._granted_bytes >= PAGE_BYTES:
                    return self._granted_bytes
                self._changed.wait()
        return None

    def _move(self, doing: _Pass, plan: Plan, node: int) -> None:
        """Move pages to where there is room, and count what stays."""
        errand, stays = doing.errand, doing.left[node]
        memory = read_node_memory(errand.topology, self._sysfs, self._reserves.at(time.monotonic()))
        machine = MachineView(errand.topology, memory, 0.0, 1.0, 0)
        target = spread(
            plan.pages.astype(np.int64),
            plan.from_node.astype(np.int64),
            open_room(nodes_of(machine, 0.0, 0), errand.drained),
            nearest(errand.topology, errand.drained),
        )
        stays[NO_ROOM] += int(plan.pages[target < 0].sum())
        rows = np.flatnonzero(target >= 0)
        outcome = doing.mover.apply(plan.take(rows).to(target[rows].astype(np.int16)))
        for status, pages in outcome.pages.items():
            if status not in _DONE and status is not MoveStatus.GONE:
                stays[status.name.lower()] += pages
        if outcome.dry_run:
            return
        doing.moved_pages += outcome.moved_bytes // PAGE_BYTES
        with self._changed:
            self._granted_bytes -= outcome.moved_bytes
            self._spent_bytes += outcome.moved_bytes


def _rows(mappings: Mappings, plan: Plan) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Return the mapping of each page."""
    return np.searchsorted(mappings.start, plan.address, side="right") - 1


def _split(plan: Plan, count: int) -> tuple[Plan, Plan]:
    return plan.take(np.arange(min(count, len(plan)))), plan.take(np.arange(count, len(plan)))
