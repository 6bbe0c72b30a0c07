# SPDX-License-Identifier: MIT
"""A model of the kernel with the documented semantics of move_pages (mm/migrate.c, 4.17 on).

The rules are the kernel's, not the mover's: what is tested with it is the mover's logic. Each rule
is checked against the real kernel in tests/vm/dram_pm/test_move_pages.py.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hmd.linux.page_calls import UNTOUCHED, MoveFlags
from hmd.linux.procfs import ProcessId, ProcessStat
from hmd.migrate import MoveOutcome, Mover, MoverSettings, MoveStatus
from hmd.policy.plan import Plan
from hmd.policy.planning import phase_numbers

PAGE = 4096
HUGE = 512
BASE = 0x7F0000000000
PF_KTHREAD = 0x00200000

Addresses = npt.NDArray[np.uint64]
Row = tuple[int, int, int, int, int]
"""Process index, address, pages, source and target node."""


@dataclass(eq=False)
class Folio:
    node: int
    pages: int = 1
    pinned: bool = False  # counted as "not migrated" by the run that it is in
    isolated: bool = False  # cannot even be queued: EBUSY
    shared: bool = False  # EACCES without MOVE_ALL
    zero: bool = False  # EFAULT
    gigantic: bool = False  # of hugetlbfs: moves to a free page of the node's pool only


@dataclass
class FakeProcess:
    start_ticks: int = 1
    kernel_thread: bool = False
    permitted: bool = True
    allowed: set[int] = field(default_factory=lambda: set(range(8)))
    memory: dict[int, Folio] = field(default_factory=dict)


class FakeKernel:
    """Nodes with free pages, processes with folios, and a clock that calls advance."""

    def __init__(self, free: dict[int, int]) -> None:
        self.free = dict(free)
        self.processes: dict[int, FakeProcess] = {}
        self.now_s = 100.0
        self.page_cost_s = 1e-6
        self.calls: list[tuple[int, list[int], int]] = []
        self.queried_rows = 0
        self.before_call: Callable[[int], object] = lambda _: None
        self.stat_answers: Callable[[int], ProcessStat | None] | None = None

    def process(self, pid: int, **how: object) -> ProcessId:
        self.processes[pid] = FakeProcess(**how)  # type: ignore[arg-type]
        return ProcessId(pid, self.processes[pid].start_ticks)

    def place(self, pid: int, address: int, node: int, pages: int = 1, **how: bool) -> Folio:
        folio = Folio(node, pages, **how)
        for i in range(pages):
            self.processes[pid].memory[address + i * PAGE] = folio
        return folio

    def nodes_of(self, pid: int) -> dict[int, int]:
        return {a: f.node for a, f in self.processes[pid].memory.items()}

    def no_huge_page(
        self, process: ProcessId, addresses: Addresses, node: int
    ) -> npt.NDArray[np.bool_]:
        memory = self.processes[process.pid].memory
        return np.array([a in memory and memory[a].gigantic for a in addresses.tolist()], np.bool_)

    def clock(self) -> float:
        return self.now_s

    def stat(self, pid: int) -> ProcessStat | None:
        if self.stat_answers is not None:
            return self.stat_answers(pid)
        process = self.processes.get(pid)
        if process is None:
            return None
        flags = PF_KTHREAD if process.kernel_thread else 0
        return ProcessStat(pid, process.start_ticks, 1, b"fake", b"S", flags, 0, PAGE)

    def _refusal(self, pid: int) -> int:
        process = self.processes.get(pid)
        if process is None:
            return -errno.ESRCH
        if process.kernel_thread:
            return -errno.EINVAL
        return 0 if process.permitted else -errno.EPERM

    def query_nodes(self, pid: int, addresses: Addresses) -> npt.NDArray[np.int16]:
        self.queried_rows += len(addresses)
        if refusal := self._refusal(pid):
            return np.full(len(addresses), refusal, np.int16)
        memory = self.processes[pid].memory
        answers = [memory.get(int(a)) for a in addresses]
        return np.array(
            [-errno.ENOENT if f is None else -errno.EFAULT if f.zero else f.node for f in answers],
            np.int16,
        )

    def move_pages(
        self, pid: int, addresses: Addresses, nodes: npt.NDArray[np.int32], flags: MoveFlags
    ) -> tuple[int, npt.NDArray[np.int32]]:
        self.before_call(len(self.calls))
        self.calls.append((pid, [int(a) for a in addresses], int(nodes[0])))
        status = np.full(len(addresses), UNTOUCHED, np.int32)
        if refusal := self._refusal(pid):
            return refusal, status
        return self._move(self.processes[pid], addresses, nodes, flags, status), status

    def _move(
        self,
        process: FakeProcess,
        addresses: Addresses,
        nodes: npt.NDArray[np.int32],
        flags: MoveFlags,
        status: npt.NDArray[np.int32],
    ) -> int:
        queue: list[Folio] = []
        n, start = len(addresses), 0
        error = 0
        for i, (address, node) in enumerate(zip(addresses.tolist(), nodes.tolist(), strict=True)):
            if node not in self.free:
                error = -errno.ENODEV
                break
            if node not in process.allowed:
                error = -errno.EACCES
                break
            answer = self._enqueue(process.memory.get(address), node, flags, queue)
            if answer is None:
                continue
            status[i] = answer
            result = self._migrate(queue, node, status, start, i, n)
            if result:
                return result - 1 if result > 0 else result
            start = i + 1
        else:
            i = n
        result = self._migrate(queue, int(nodes[0]), status, start, i, n)
        return error or result

    def _enqueue(
        self, folio: Folio | None, node: int, flags: MoveFlags, queue: list[Folio]
    ) -> int | None:
        if folio is None:
            return -errno.ENOENT
        if folio.zero:
            return -errno.EFAULT
        if folio.node == node:
            return node
        if folio.shared and not flags & MoveFlags.MOVE_ALL:
            return -errno.EACCES
        if folio.isolated or folio in queue:
            return -errno.EBUSY
        queue.append(folio)
        return None

    def _migrate(
        self,
        queue: list[Folio],
        node: int,
        status: npt.NDArray[np.int32],
        start: int,
        end: int,
        total: int,
    ) -> int:
        """Migrate the queued pages, and store their status unless one fails."""
        if not queue:
            return 0
        failed = 0
        for folio in queue:
            if folio.pinned:
                failed += 1
                continue
            if folio.gigantic or self.free[node] < folio.pages:
                queue.clear()
                return -errno.ENOMEM
            self.free[node] -= folio.pages
            self.free[folio.node] += folio.pages
            folio.node = node
            self.now_s += self.page_cost_s * folio.pages
        queue.clear()
        if failed:
            return failed + total - end
        status[start:end] = node
        return 0


def make_plan(processes: Iterable[ProcessId], rows: Iterable[Row]) -> Plan:
    """Return a plan; the rows are in an order in which each has room."""
    columns = np.array(list(rows), np.uint64).reshape(-1, 5).T
    return Plan(
        processes=tuple(processes),
        process=columns[0].astype(np.int32),
        address=columns[1],
        pages=columns[2].astype(np.uint32),
        from_node=columns[3].astype(np.int16),
        to_node=columns[4].astype(np.int16),
        heat=np.zeros(columns.shape[1], np.float32),
        phase=phase_numbers(columns[3].astype(np.int64), columns[4].astype(np.int64)),
    )


def make_mover(kernel: FakeKernel, **settings: object) -> Mover:
    return Mover(
        MoverSettings(**settings),  # type: ignore[arg-type]
        clock=kernel.clock,
        calls=kernel,
        stat=kernel.stat,
        page_filter=lambda _, addresses: np.ones(len(addresses), np.bool_),
        no_huge_page=kernel.no_huge_page,
    )


def statuses(outcome: MoveOutcome) -> list[MoveStatus]:
    """Return the status of each row of an outcome."""
    return [MoveStatus(code) for code in outcome.status.tolist()]


def rows_of(pages: int, source: int, target: int, first: int = BASE) -> list[Row]:
    """Return rows of a plan: base pages of process 0, one after the other."""
    return [(0, first + i * PAGE, 1, source, target) for i in range(pages)]


def fill(kernel: FakeKernel, rows: Iterable[Row], pid: int = 10) -> list[Folio]:
    """Place the pages of rows on their source nodes; return their folios."""
    return [kernel.place(pid, a, source, pages) for _, a, pages, source, _ in rows]
