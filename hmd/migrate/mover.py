"""The mover: applies a plan with move_pages(2), within a budget.

Takes a ``Plan``; gives a ``MoveOutcome`` in which every row has exactly one status. Checks where
pages are before it moves them, so that plans which are out of date cost no calls. Never raises
because of a target: it may exit, exec or unmap at any moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hmd.decide.plan import Plan
from hmd.machine.pages import move_pages as kernel_pages
from hmd.machine.pages.gigantic_pages import GiganticPages
from hmd.machine.pages.move_pages import MoveFlags
from hmd.machine.process_id import ProcessId, ProcessStat, read_stat
from hmd.migrate.batches import BatchSize
from hmd.migrate.budget import TokenBucket
from hmd.migrate.move_pages_engine import MovePagesEngine, PageCalls, PageCheck
from hmd.migrate.move_status import NODE_WIDE, PROCESS_WIDE, PUNISHED, MoveStatus
from hmd.migrate.outcome import MoveOutcome, MoverStats
from hmd.migrate.page_filter import MovableMappings, PageFilter
from hmd.migrate.plan_progress import SUBPAGES, PlanPart, PlanProgress
from hmd.migrate.retry_backoff import BackoffSettings, RetryBackoff
from hmd.migrate.source_check import check_sources
from hmd.migrate.throughput import Throughput
from hmd.units import HUGE_PAGE_PAGES


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

    ``calls`` are the two functions of ``hmd.machine.pages.move_pages``, ``stat`` reads
    /proc/PID/stat, and ``page_filter`` says which pages may move: by default all but shared
    executable code. ``no_huge_page`` says which pages a node has no hugetlbfs page for; by default
    the kernel does.
    """

    def __init__(
        self,
        settings: MoverSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        calls: PageCalls = kernel_pages,
        *,
        stat: Callable[[int], ProcessStat | None] = read_stat,
        page_filter: PageFilter | None = None,
        no_huge_page: PageCheck | None = None,
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
        self._engine = MovePagesEngine(
            calls, stat, clock, size, flags, settings.tries, no_huge_page or GiganticPages()
        )

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
        progress = PlanProgress(plan)
        progress.drop_duplicates()
        check_sources(self._engine, progress, every_row=self.settings.dry_run)
        self._exclude(progress, now_s)
        progress.defer(self._bucket.available_bytes(now_s))
        if self.settings.dry_run:
            for part in progress.parts:
                rows = part.pending
                part.status[rows] = MoveStatus.WOULD_MOVE
                part.moved_pages[rows] = part.pages[rows]
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

    def _exclude(self, progress: PlanProgress, now_s: float) -> None:
        """Decide pages that the page filter keeps or that are in backoff."""
        for process, parts in progress.by_process():
            one = len(parts) == 1
            addresses = parts[0].address if one else np.concatenate([p.address for p in parts])
            movable = self._page_filter(process, addresses)
            blocked = self._backoff.blocked(process, addresses, now_s)
            if movable.all() and not blocked.any():
                continue
            end = 0
            for part in parts:
                start, end = end, end + len(part.address)
                pending = part.pending
                part.status[pending & blocked[start:end]] = MoveStatus.BLACKLISTED
                part.status[pending & ~movable[start:end]] = MoveStatus.SKIPPED

    def _move(self, progress: PlanProgress, deadline_s: float) -> None:
        """Move all pending rows; an error of a whole process or node decides its other rows."""
        refusals: dict[tuple[ProcessId, int | None], MoveStatus] = {}
        full: set[int] = set()
        for part in progress.parts:
            pending = part.pending
            if not pending.any():
                continue
            refusal = refusals.get((part.process, None)) or refusals.get(
                (part.process, part.to_node)
            )
            if refusal is None and part.to_node in full:
                refusal = MoveStatus.NO_MEMORY
            if refusal is not None:
                part.status[pending] = refusal
                continue
            for status in self._move_part(part, pending, deadline_s):
                if status in PROCESS_WIDE:
                    refusals[part.process, None] = status
                elif status is MoveStatus.NO_MEMORY:
                    full.add(part.to_node)
                elif status in NODE_WIDE:
                    refusals[part.process, part.to_node] = status

    def _move_part(
        self, part: PlanPart, pending: npt.NDArray[np.bool_], deadline_s: float
    ) -> set[MoveStatus]:
        """Move the pending rows of a part; return which statuses occurred."""
        rows = slice(None) if pending.all() else pending
        part.status[rows] = self._engine.run(
            part.process, part.address[rows], part.pages[rows], part.to_node, deadline_s
        )
        moved = part.status == MoveStatus.MOVED
        if moved.all():
            part.node[:], part.moved_pages[:] = part.to_node, part.pages
        else:
            part.node[moved] = part.to_node
            part.node[part.status == MoveStatus.NOT_PRESENT] = -1
            np.copyto(part.moved_pages, part.pages, where=moved)
        huge = np.flatnonzero(moved & (part.pages == HUGE_PAGE_PAGES))
        if len(huge):
            self._finish_split(part, huge, deadline_s)
        return {MoveStatus(code) for code in _codes(part.status[rows])}

    def _finish_split(self, part: PlanPart, huge: npt.NDArray[np.intp], deadline_s: float) -> None:
        """Move the other pages of huge pages that the kernel had split: only their first has moved.

        The kernel splits huge pages under memory pressure and on partial unmapping; only the node
        of the other pages shows it.
        """
        process, node = part.process, part.to_node
        where, _ = self._engine.locate(
            process, part.address[huge] + SUBPAGES[-1], np.full(len(huge), node, np.int16)
        )
        split = huge[where != MoveStatus.ALREADY_THERE]
        self.stats.split_huge_pages += len(split)
        for row in split.tolist():
            addresses = part.address[row] + SUBPAGES
            status, _ = self._engine.locate(
                process, addresses, np.full(len(addresses), node, np.int16)
            )
            left = np.flatnonzero(status == MoveStatus.PENDING)
            status[left] = self._engine.run(
                process, addresses[left], np.ones(len(left), np.uint32), node, deadline_s
            )
            part.moved_pages[row] = 1 + int((status == MoveStatus.MOVED).sum())
            failed = status[left][status[left] != MoveStatus.MOVED]
            if len(failed):
                part.status[row] = failed[0]

    def _locate_duplicates(self, progress: PlanProgress) -> None:
        """Query where the pages of duplicate rows are now."""
        for part in progress.parts:
            rows = np.flatnonzero(part.status == MoveStatus.DUPLICATE)
            if len(rows):
                target = np.full(len(rows), part.to_node, np.int16)
                _, part.node[rows] = self._engine.locate(part.process, part.address[rows], target)

    def _start_backoff(self, progress: PlanProgress, now_s: float) -> None:
        """Start the backoff of pages that failed to move; forget processes that have exited."""
        for part in progress.parts:
            statuses = _codes(part.status)
            if not statuses.isdisjoint(PUNISHED):
                # A page that the query already refused costs no move call the next time either.
                failed = np.isin(part.status, PUNISHED) & (part.origin >= 0)
                self._backoff.add(part.process, part.address[failed], now_s)
            if MoveStatus.GONE in statuses:
                self._backoff.forget(part.process)

    def _count(self, outcome: MoveOutcome) -> None:
        stats, calls = self.stats, self._engine.stats
        stats.rows += len(outcome)
        for flow, pages in outcome.moved.items():
            stats.moved_pages[flow] = stats.moved_pages.get(flow, 0) + pages
        for status, pages in outcome.pages.items():
            stats.pages[status] += pages
        stats.calls, stats.call_rows = calls.calls, calls.call_rows
        stats.retried_rows = calls.retried_rows
        stats.queries, stats.queried_rows = calls.queries, calls.queried_rows
        stats.busy_ns, stats.slowest_call_ns = calls.busy_ns, calls.slowest_call_ns
        stats.batch_pages = self._engine.size.pages


def _codes(status: npt.NDArray[np.int16]) -> set[int]:
    """Return which codes occur; rows are mostly of one."""
    least = int(status.min())
    if least == status.max():
        return {least}
    return set(np.flatnonzero(np.bincount(status)).tolist())
