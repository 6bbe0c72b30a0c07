"""The mover: applies a plan with move_pages(2), within a budget.

Takes a ``Plan``, gives an ``MoveOutcome`` in which every row has exactly one Status. Looks before
it moves (0.2 µs a page), so that pages which are there already, or nowhere, cost no call. Never
raises for a target: it may exit, exec or unmap at any moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hmd.decide.plan import Plan
from hmd.machine import move_pages as kernel_pages
from hmd.machine.move_pages import MoveFlags
from hmd.machine.process_id import ProcessId, ProcessStat, read_stat
from hmd.migrate.batches import BatchSize, Group, groups
from hmd.migrate.budget import TokenBucket
from hmd.migrate.move_pages_engine import PageCalls, Transfer
from hmd.migrate.move_status import NODE_WIDE, PROCESS_WIDE, PUNISHED, MoveStatus
from hmd.migrate.outcome import MoveOutcome, MoverStats
from hmd.migrate.page_filter import MovableMappings, PageFilter
from hmd.migrate.plan_progress import SUBPAGES, Work
from hmd.migrate.retry_backoff import Blacklist, BlacklistSettings
from hmd.migrate.throughput import Reach
from hmd.units import HUGE_PAGE_PAGES, PAGE_BYTES


@dataclass(frozen=True, slots=True)
class MoverSettings:
    """How fast and how bluntly to move.

    ``rate_bytes_per_s`` None is no limit; ``burst_s`` is how many seconds' worth may be moved at
    once. ``call_target_s`` bounds how long one call may block its target, ``apply_limit_s`` how
    long one plan may take; what is left then is deferred. ``tries`` is how often a busy page is
    tried within a plan. ``move_shared`` takes pages that several processes map (MPOL_MF_MOVE_ALL,
    CAP_SYS_NICE).
    """

    rate_bytes_per_s: int | None = 1 << 30
    burst_s: float = 1.0
    least_batch_pages: int = 256
    most_batch_pages: int = 5120
    call_target_s: float = 0.020
    apply_limit_s: float = float("inf")
    tries: int = 3
    move_shared: bool = False
    dry_run: bool = False
    blacklist: BlacklistSettings = field(default_factory=BlacklistSettings)


class Mover:
    """Applies plans; remembers pages that fail and what its budget has left.

    ``calls`` are the two functions of ``hmd.machine.move_pages``, ``stat`` reads /proc/PID/stat,
    and ``page_filter`` says what may be moved: by default all but shared executable code.
    """

    def __init__(
        self,
        settings: MoverSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        calls: PageCalls = kernel_pages,
        *,
        stat: Callable[[int], ProcessStat | None] = read_stat,
        page_filter: PageFilter | None = None,
    ) -> None:
        self.settings = settings = settings or MoverSettings()
        self.stats = MoverStats()
        self._clock = clock
        self._page_filter = page_filter or MovableMappings()
        self._bucket = TokenBucket(settings.rate_bytes_per_s, settings.burst_s)
        self._reach = Reach(settings.apply_limit_s)
        self._blacklist = Blacklist(settings.blacklist)
        size = BatchSize(
            settings.least_batch_pages, settings.most_batch_pages, settings.call_target_s
        )
        flags = MoveFlags.MOVE_ALL if settings.move_shared else MoveFlags.MOVE
        self._transfer = Transfer(calls, stat, clock, size, flags, settings.tries)

    def stop(self) -> None:
        """Defer what is left, of this plan and of all to come; a signal handler may call it."""
        self._transfer.stopping = True

    def budget_bytes(self, now_s: float | None = None) -> int:
        """Return how many bytes a plan may move now."""
        return self._bucket.available_bytes(self._clock() if now_s is None else now_s)

    def plan_bytes(self, now_s: float) -> int:
        """Return how many bytes are worth planning for now.

        What the budget allows, and what can be moved within ``apply_limit_s`` at the speed of late.
        """
        return min(self.budget_bytes(now_s), self._reach.bytes)

    def charge(self, moved_bytes: int) -> None:
        """Take from the budget what others have moved."""
        self._bucket.spend(moved_bytes)

    def apply(self, plan: Plan, now_s: float | None = None) -> MoveOutcome:
        """Move what the plan says, in its order, as far as the budget goes.

        ``now_s`` is the time of the budget and of the blacklist, the mover's own clock if None.
        """
        begun_s = self._clock()
        now_s = begun_s if now_s is None else now_s
        calls_before = self._transfer.stats.calls
        work = Work.of(plan)
        work.drop_duplicates()
        self._look(work)
        self._set_aside(work, now_s)
        self._defer(work, now_s)
        if self.settings.dry_run:
            rows = work.pending()
            work.status[rows] = MoveStatus.WOULD_MOVE
            work.moved_pages[rows] = plan.pages[rows]
        else:
            self._move(work, begun_s + self.settings.apply_limit_s)
            self._learn(work, now_s)
        self._locate_duplicates(work)
        outcome = work.outcome(
            calls=self._transfer.stats.calls - calls_before,
            seconds=self._clock() - begun_s,
            dry_run=self.settings.dry_run,
        )
        if not outcome.dry_run:
            self._bucket.spend(outcome.moved_bytes)
            self._reach.learn(outcome.moved_bytes, outcome.seconds)
            self._count(outcome)
        return outcome

    def _look(self, work: Work) -> None:
        """Find where the pages are; those on their target or nowhere are done with that."""
        plan = work.plan
        for process, rows in work.by_process(work.pending()):
            if self._transfer.is_gone(process):
                work.status[rows] = MoveStatus.GONE
                continue
            target = plan.to_node[rows]
            status, node = self._transfer.look(process, plan.address[rows], target)
            work.status[rows], work.node[rows], work.origin[rows] = status, node, node
            # A huge page that was split may lie on two nodes; its last page then tells.
            huge = (plan.pages[rows] == HUGE_PAGE_PAGES) & (status == MoveStatus.ALREADY_THERE)
            if huge.any():
                last = plan.address[rows[huge]] + SUBPAGES[-1]
                status, node = self._transfer.look(process, last, target[huge])
                elsewhere = rows[huge][status == MoveStatus.PENDING]
                work.status[elsewhere] = MoveStatus.PENDING
                work.origin[elsewhere] = node[status == MoveStatus.PENDING]

    def _set_aside(self, work: Work, now_s: float) -> None:
        """Leave out what the page filter keeps and what failed not long ago."""
        for process, rows in work.by_process(work.pending()):
            addresses = work.plan.address[rows]
            work.status[rows[self._blacklist.blocked(process, addresses, now_s)]] = (
                MoveStatus.BLACKLISTED
            )
            work.status[rows[~self._page_filter(process, addresses)]] = MoveStatus.SKIPPED

    def _defer(self, work: Work, now_s: float) -> None:
        """Leave what exceeds the budget, from the first row in the plan's order that does."""
        rows = work.pending()
        total = np.cumsum(work.plan.pages[rows], dtype=np.int64) * PAGE_BYTES
        work.status[rows[total > self._bucket.available_bytes(now_s)]] = MoveStatus.DEFERRED

    def _move(self, work: Work, deadline_s: float) -> None:
        """Transfer all pending rows; an answer about a process or a node is asked for once."""
        refused: dict[tuple[int, int | None], MoveStatus] = {}
        full: set[int] = set()
        for group in groups(work.plan, work.pending()):
            verdict = refused.get((group.process, None)) or refused.get((group.process, group.node))
            if verdict is None and group.node in full:
                verdict = MoveStatus.NO_MEMORY
            if verdict is not None:
                work.status[group.rows] = verdict
                continue
            for status in self._transfer_group(work, group, deadline_s):
                if status in PROCESS_WIDE:
                    refused[group.process, None] = status
                elif status is MoveStatus.NO_MEMORY:
                    full.add(group.node)
                elif status in NODE_WIDE:
                    refused[group.process, group.node] = status

    def _transfer_group(self, work: Work, group: Group, deadline_s: float) -> set[MoveStatus]:
        """Move one group; returns which statuses occurred."""
        plan, rows = work.plan, group.rows
        process = plan.processes[group.process]
        status = self._transfer.run(
            process, plan.address[rows], plan.pages[rows], group.node, deadline_s
        )
        moved = status == MoveStatus.MOVED
        work.status[rows] = status
        work.node[rows[moved]] = group.node
        work.moved_pages[rows[moved]] = plan.pages[rows[moved]]
        huge = rows[moved & (plan.pages[rows] == HUGE_PAGE_PAGES)]
        if len(huge):
            self._finish_split(work, process, huge, group.node, deadline_s)
        return {MoveStatus(code) for code in np.unique(work.status[rows]).tolist()}

    def _finish_split(
        self,
        work: Work,
        process: ProcessId,
        huge: npt.NDArray[np.intp],
        node: int,
        deadline_s: float,
    ) -> None:
        """Move the other pages of huge pages that were none any more: only their first has moved.

        The kernel splits huge pages under memory pressure and on partial unmapping; nothing but
        the place of the other pages shows it.
        """
        address = work.plan.address
        where, _ = self._transfer.look(
            process, address[huge] + SUBPAGES[-1], np.full(len(huge), node, np.int16)
        )
        split = huge[where != MoveStatus.ALREADY_THERE]
        self.stats.split_huge_pages += len(split)
        for row in split.tolist():
            addresses = address[row] + SUBPAGES
            status, _ = self._transfer.look(
                process, addresses, np.full(len(addresses), node, np.int16)
            )
            left = np.flatnonzero(status == MoveStatus.PENDING)
            status[left] = self._transfer.run(
                process, addresses[left], np.ones(len(left), np.uint32), node, deadline_s
            )
            work.moved_pages[row] = 1 + int((status == MoveStatus.MOVED).sum())
            failed = status[left][status[left] != MoveStatus.MOVED]
            if len(failed):
                work.status[row] = failed[0]

    def _locate_duplicates(self, work: Work) -> None:
        """Find where pages are now that another row has moved, or a huge page took along."""
        for process, rows in work.by_process(np.flatnonzero(work.status == MoveStatus.DUPLICATE)):
            _, work.node[rows] = self._transfer.look(
                process, work.plan.address[rows], work.plan.to_node[rows]
            )

    def _learn(self, work: Work, now_s: float) -> None:
        """Blacklist pages that a call failed on; forget processes that have gone."""
        plan = work.plan
        # A page that the query already refused costs no call the next time either.
        failed = np.flatnonzero(np.isin(work.status, PUNISHED) & (work.origin >= 0))
        for process, rows in work.by_process(failed):
            self._blacklist.add(process, plan.address[rows], now_s)
        for process, _ in work.by_process(np.flatnonzero(work.status == MoveStatus.GONE)):
            self._blacklist.forget(process)

    def _count(self, outcome: MoveOutcome) -> None:
        stats, calls = self.stats, self._transfer.stats
        stats.applies += 1
        stats.rows += len(outcome)
        for flow, pages in outcome.moved.items():
            stats.moved_pages[flow] = stats.moved_pages.get(flow, 0) + pages
        for status, pages in outcome.pages.items():
            stats.pages[status] += pages
        stats.calls, stats.call_rows = calls.calls, calls.call_rows
        stats.retried_rows = calls.retried_rows
        stats.queries, stats.queried_rows = calls.queries, calls.queried_rows
        stats.busy_ns, stats.slowest_call_ns = calls.busy_ns, calls.slowest_call_ns
        stats.blacklisted_pages = len(self._blacklist)
        stats.batch_pages = self._transfer.size.pages
