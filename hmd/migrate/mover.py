"""The mover: applies a plan with move_pages(2), within a budget.

Takes a ``Plan``; gives a ``MoveOutcome`` in which every row has exactly one status. Queries where
pages are before it moves them (0.2 µs per page), so that pages which are on their target already,
or absent, cost no call. Never raises because of a target: it may exit, exec or unmap at any moment.
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
from hmd.migrate.batches import BatchSize, MoveGroup, move_groups
from hmd.migrate.budget import TokenBucket
from hmd.migrate.move_pages_engine import MovePagesEngine, PageCalls
from hmd.migrate.move_status import NODE_WIDE, PROCESS_WIDE, PUNISHED, MoveStatus
from hmd.migrate.outcome import MoveOutcome, MoverStats
from hmd.migrate.page_filter import MovableMappings, PageFilter
from hmd.migrate.plan_progress import SUBPAGES, PlanProgress
from hmd.migrate.retry_backoff import BackoffSettings, RetryBackoff
from hmd.migrate.throughput import Throughput
from hmd.units import HUGE_PAGE_PAGES, PAGE_BYTES


@dataclass(frozen=True, slots=True)
class MoverSettings:
    """The rate of moves, and what they may do to their targets.

    ``rate_bytes_per_s`` None is no limit; the bytes of ``burst_s`` seconds may move at once.
    ``call_target_s`` bounds how long one call may block its target, ``apply_limit_s`` how long one
    plan may take: the rest of it is deferred. ``tries`` is how often a busy page is tried within a
    plan. ``move_shared`` includes pages that several processes map (MPOL_MF_MOVE_ALL, which needs
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
    backoff: BackoffSettings = field(default_factory=BackoffSettings)


class Mover:
    """Applies plans; keeps the budget, and the backoff of pages that failed.

    ``calls`` are the two functions of ``hmd.machine.move_pages``, ``stat`` reads /proc/PID/stat,
    and ``page_filter`` says which pages may move: by default all but shared executable code.
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
        self._throughput = Throughput(settings.apply_limit_s)
        self._backoff = RetryBackoff(settings.backoff)
        size = BatchSize(
            settings.least_batch_pages, settings.most_batch_pages, settings.call_target_s
        )
        flags = MoveFlags.MOVE_ALL if settings.move_shared else MoveFlags.MOVE
        self._engine = MovePagesEngine(calls, stat, clock, size, flags, settings.tries)

    def stop(self) -> None:
        """Defer the rest of this plan and all later plans; signal handlers may call it."""
        self._engine.stopping = True

    def budget_bytes(self, now_s: float | None = None) -> int:
        """Return the budget that is left now, in bytes."""
        return self._bucket.available_bytes(self._clock() if now_s is None else now_s)

    def plan_bytes(self, now_s: float) -> int:
        """Return how many bytes a policy may plan to move now.

        The budget bounds it, and what can move within ``apply_limit_s`` at the recent throughput.
        """
        return min(self.budget_bytes(now_s), self._throughput.bytes)

    def charge(self, moved_bytes: int) -> None:
        """Take bytes that moved otherwise (pageout, drains) from the budget."""
        self._bucket.spend(moved_bytes)

    def apply(self, plan: Plan, now_s: float | None = None) -> MoveOutcome:
        """Apply the plan phase by phase, as far as the budget goes.

        ``now_s`` is the time of the budget and of the backoff, by default the mover's own clock.
        """
        begun_s = self._clock()
        now_s = begun_s if now_s is None else now_s
        calls_before = self._engine.stats.calls
        progress = PlanProgress.of(plan)
        progress.drop_duplicates()
        self._locate(progress)
        self._exclude(progress, now_s)
        self._defer(progress, now_s)
        if self.settings.dry_run:
            rows = progress.pending()
            progress.status[rows] = MoveStatus.WOULD_MOVE
            progress.moved_pages[rows] = plan.pages[rows]
        else:
            self._move(progress, begun_s + self.settings.apply_limit_s)
            self._start_backoff(progress, now_s)
        self._locate_duplicates(progress)
        outcome = progress.outcome(
            calls=self._engine.stats.calls - calls_before,
            seconds=self._clock() - begun_s,
            dry_run=self.settings.dry_run,
        )
        if not outcome.dry_run:
            self._bucket.spend(outcome.moved_bytes)
            self._throughput.observe(outcome.moved_bytes, outcome.seconds)
            self._count(outcome)
        return outcome

    def _locate(self, progress: PlanProgress) -> None:
        """Query where the pages are; those on their target or absent are decided."""
        plan = progress.plan
        for process, rows in progress.by_process(progress.pending()):
            if self._engine.has_exited(process):
                progress.status[rows] = MoveStatus.GONE
                continue
            target = plan.to_node[rows]
            status, node = self._engine.locate(process, plan.address[rows], target)
            progress.status[rows], progress.node[rows], progress.origin[rows] = status, node, node
            # A huge page that was split may be on two nodes; its last page shows it.
            huge = (plan.pages[rows] == HUGE_PAGE_PAGES) & (status == MoveStatus.ALREADY_THERE)
            if huge.any():
                last = plan.address[rows[huge]] + SUBPAGES[-1]
                status, node = self._engine.locate(process, last, target[huge])
                elsewhere = rows[huge][status == MoveStatus.PENDING]
                progress.status[elsewhere] = MoveStatus.PENDING
                progress.origin[elsewhere] = node[status == MoveStatus.PENDING]

    def _exclude(self, progress: PlanProgress, now_s: float) -> None:
        """Decide pages that the page filter keeps or that are in backoff."""
        for process, rows in progress.by_process(progress.pending()):
            addresses = progress.plan.address[rows]
            progress.status[rows[self._backoff.blocked(process, addresses, now_s)]] = (
                MoveStatus.BLACKLISTED
            )
            progress.status[rows[~self._page_filter(process, addresses)]] = MoveStatus.SKIPPED

    def _defer(self, progress: PlanProgress, now_s: float) -> None:
        """Defer what exceeds the budget, from the first row that does on."""
        rows = progress.pending()
        total = np.cumsum(progress.plan.pages[rows], dtype=np.int64) * PAGE_BYTES
        progress.status[rows[total > self._bucket.available_bytes(now_s)]] = MoveStatus.DEFERRED

    def _move(self, progress: PlanProgress, deadline_s: float) -> None:
        """Move all pending rows; an error of a whole process or node decides its other rows."""
        refusals: dict[tuple[int, int | None], MoveStatus] = {}
        full: set[int] = set()
        for group in move_groups(progress.plan, progress.pending()):
            refusal = refusals.get((group.process, None)) or refusals.get(
                (group.process, group.node)
            )
            if refusal is None and group.node in full:
                refusal = MoveStatus.NO_MEMORY
            if refusal is not None:
                progress.status[group.rows] = refusal
                continue
            for status in self._move_group(progress, group, deadline_s):
                if status in PROCESS_WIDE:
                    refusals[group.process, None] = status
                elif status is MoveStatus.NO_MEMORY:
                    full.add(group.node)
                elif status in NODE_WIDE:
                    refusals[group.process, group.node] = status

    def _move_group(
        self, progress: PlanProgress, group: MoveGroup, deadline_s: float
    ) -> set[MoveStatus]:
        """Move one group; return which statuses occurred."""
        plan, rows = progress.plan, group.rows
        process = plan.processes[group.process]
        status = self._engine.run(
            process, plan.address[rows], plan.pages[rows], group.node, deadline_s
        )
        moved = status == MoveStatus.MOVED
        progress.status[rows] = status
        progress.node[rows[moved]] = group.node
        progress.moved_pages[rows[moved]] = plan.pages[rows[moved]]
        huge = rows[moved & (plan.pages[rows] == HUGE_PAGE_PAGES)]
        if len(huge):
            self._finish_split(progress, process, huge, group.node, deadline_s)
        return {MoveStatus(code) for code in np.unique(progress.status[rows]).tolist()}

    def _finish_split(
        self,
        progress: PlanProgress,
        process: ProcessId,
        huge: npt.NDArray[np.intp],
        node: int,
        deadline_s: float,
    ) -> None:
        """Move the other pages of huge pages that the kernel had split: only their first has moved.

        The kernel splits huge pages under memory pressure and on partial unmapping; only the node
        of the other pages shows it.
        """
        address = progress.plan.address
        where, _ = self._engine.locate(
            process, address[huge] + SUBPAGES[-1], np.full(len(huge), node, np.int16)
        )
        split = huge[where != MoveStatus.ALREADY_THERE]
        self.stats.split_huge_pages += len(split)
        for row in split.tolist():
            addresses = address[row] + SUBPAGES
            status, _ = self._engine.locate(
                process, addresses, np.full(len(addresses), node, np.int16)
            )
            left = np.flatnonzero(status == MoveStatus.PENDING)
            status[left] = self._engine.run(
                process, addresses[left], np.ones(len(left), np.uint32), node, deadline_s
            )
            progress.moved_pages[row] = 1 + int((status == MoveStatus.MOVED).sum())
            failed = status[left][status[left] != MoveStatus.MOVED]
            if len(failed):
                progress.status[row] = failed[0]

    def _locate_duplicates(self, progress: PlanProgress) -> None:
        """Query where the pages of duplicate rows are now."""
        for process, rows in progress.by_process(
            np.flatnonzero(progress.status == MoveStatus.DUPLICATE)
        ):
            _, progress.node[rows] = self._engine.locate(
                process, progress.plan.address[rows], progress.plan.to_node[rows]
            )

    def _start_backoff(self, progress: PlanProgress, now_s: float) -> None:
        """Start the backoff of pages that failed to move; forget processes that have exited."""
        plan = progress.plan
        # A page that the query already refused costs no move call the next time either.
        failed = np.flatnonzero(np.isin(progress.status, PUNISHED) & (progress.origin >= 0))
        for process, rows in progress.by_process(failed):
            self._backoff.add(process, plan.address[rows], now_s)
        for process, _ in progress.by_process(np.flatnonzero(progress.status == MoveStatus.GONE)):
            self._backoff.forget(process)

    def _count(self, outcome: MoveOutcome) -> None:
        stats, calls = self.stats, self._engine.stats
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
        stats.blacklisted_pages = len(self._backoff)
        stats.batch_pages = self._engine.size.pages
