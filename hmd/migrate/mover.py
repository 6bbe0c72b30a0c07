# SPDX-License-Identifier: MIT
"""The mover: applies a plan with move_pages(2), within a budget.

Every row of a plan gets exactly one status. Never raises because of a target: it may exit, exec or
unmap at any moment.

It checks where pages are before it moves them (``check_sources``), so that plans which are out of
date cost no calls. A query of a page costs the kernel a thirteenth of its move, and mostly confirms
what the plan says. So one in ``QUERIED_ONE_IN`` of a process's base pages is queried, and where all
of these are on the node that the plan expects, so are the others. If one is not, all are queried;
so are huge pages, few rows, and dry runs. The result is exact but for pages that went to their
target since the plan was made, in a plan whose sample met none of them: they count as moved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.linux import page_calls as kernel_pages
from hmd.linux.huge_pages import GiganticPages
from hmd.linux.memory_policy import UNBOUND, MemoryBindings
from hmd.linux.page_calls import MoveFlags
from hmd.linux.procfs import ProcessId, ProcessStat, read_stat
from hmd.migrate.engine import MovePagesEngine, PageCalls, PageCheck
from hmd.migrate.move_budget import (
    BackoffSettings,
    BatchSize,
    MovableMappings,
    PageFilter,
    RetryBackoff,
    Throughput,
    TokenBucket,
)
from hmd.migrate.progress import PlanPart, PlanProgress
from hmd.migrate.status import (
    BACKED_OFF_FAILURES,
    NODE_WIDE,
    PROCESS_WIDE,
    MoveOutcome,
    MoveStatus,
)
from hmd.policy.plan import Plan

QUERIED_ONE_IN: Final = 16
"""Rows per queried row."""
MIN_SAMPLED_ROWS: Final = 1024
"""Of fewer rows of a process all are queried: they cost less than a call does."""


def check_sources(engine: MovePagesEngine, progress: PlanProgress, *, every_row: bool) -> None:
    """Find where pages are, querying all or some; decide those on their target or absent."""
    for process, parts in progress.parts_by_process():
        exited = engine.has_exited(process)
        for part in parts:
            pending = part.pending
            if exited:
                part.status[pending] = MoveStatus.GONE
            elif every_row or len(pending) < MIN_SAMPLED_ROWS:
                _query(engine, part, pending)
            else:
                sample = pending & _sample_rows(part)
                others = pending & ~sample
                if _query(engine, part, sample):
                    np.copyto(part.origin, part.from_node, where=others)
                    np.copyto(part.node, part.from_node, where=others)
                else:
                    _query(engine, part, others)


def _sample_rows(part: PlanPart) -> npt.NDArray[np.bool_]:
    """Return the rows to query first: a sample, huge pages, and rows without a usable source."""
    rows: npt.NDArray[np.bool_] = part.from_node < 0
    rows |= (part.from_node == part.to_node) | (part.pages > 1)
    rows[::QUERIED_ONE_IN] = True
    return rows


def _query(engine: MovePagesEngine, part: PlanPart, chosen: npt.NDArray[np.bool_]) -> bool:
    """Query rows; return whether all their base pages are where the plan says."""
    rows = np.flatnonzero(chosen)
    target = np.full(len(rows), part.to_node, np.int16)
    status, node = engine.locate(part.process, part.address[rows], target)
    part.status[rows], part.node[rows], part.origin[rows] = status, node, node
    # A huge page that was split may be on two nodes; its last page shows it.
    huge = (part.pages[rows] > 1) & (status == MoveStatus.ALREADY_THERE)
    if huge.any():
        last = part.last_pages(rows[huge])
        status, last_node = engine.locate(part.process, last, target[huge])
        elsewhere = rows[huge][status == MoveStatus.PENDING]
        part.status[elsewhere] = MoveStatus.PENDING
        part.origin[elsewhere] = last_node[status == MoveStatus.PENDING]
    return bool((node == part.from_node[rows])[part.pages[rows] == 1].all())


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
    min_batch_pages: int = 256
    max_batch_pages: int = 5120
    call_target_s: float = 0.020
    apply_limit_s: float = float("inf")
    tries: int = 3
    move_shared: bool = False
    dry_run: bool = False
    backoff: BackoffSettings = field(default_factory=BackoffSettings)


class Mover:
    """Applies plans; keeps the budget, and the backoff of pages that failed.

    ``calls`` are the two functions of ``hmd.linux.page_calls``, ``stat`` reads
    /proc/PID/stat, and ``page_filter`` says which pages may move: by default all but shared
    executable code. ``no_huge_page`` says which pages a node has no hugetlbfs page for; by default
    the kernel does. ``bindings`` are memory policies to observe, by default none.
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
        bindings: MemoryBindings | None = None,
    ) -> None:
        self.settings = settings = settings or MoverSettings()
        self._clock = clock
        self._page_filter = page_filter or MovableMappings()
        self._bindings = bindings
        self._bucket = TokenBucket(settings.rate_bytes_per_s, settings.burst_s)
        self._buckets: dict[tuple[str | tuple[int, ...], int], TokenBucket] = {}
        self._limited: dict[ProcessId, TokenBucket] = {}
        self._tiers: dict[tuple[int, ...], TokenBucket] = {}
        self._throughput = Throughput(settings.apply_limit_s)
        self._backoff = RetryBackoff(settings.backoff)
        size = BatchSize(settings.min_batch_pages, settings.max_batch_pages, settings.call_target_s)
        flags = MoveFlags.MOVE_ALL if settings.move_shared else MoveFlags.MOVE
        self._engine = MovePagesEngine(
            calls,
            stat,
            clock,
            size,
            flags,
            settings.tries,
            no_huge_page or GiganticPages(),
        )

    def set_rates(
        self,
        rates: Mapping[str, int],
        processes: Sequence[ProcessId],
        targets: Sequence[str],
        tiers: Mapping[tuple[int, ...], int] | None = None,
    ) -> None:
        """Limit the bytes per second of the processes of some targets, together, by their name.

        ``tiers`` limits what moves into and out of the nodes of some tiers.
        """
        known, burst_s, tiers = self._buckets, self.settings.burst_s, tiers or {}
        limits: list[tuple[str | tuple[int, ...], int]] = [*rates.items(), *tiers.items()]
        self._buckets = {of: known.get(of) or TokenBucket(of[1], burst_s) for of in limits}
        self._tiers = {nodes: self._buckets[nodes, rate] for nodes, rate in tiers.items()}
        of_process = zip(processes, targets, strict=True)
        self._limited = {p: self._buckets[t, rates[t]] for p, t in of_process if t in rates}

    def stop(self) -> None:
        """Defer the rest of this plan and all later plans; signal handlers may call it."""
        self._engine.stopping = True

    def budget_bytes(self, now_s: float | None = None) -> int:
        """Return the budget that is left now, in bytes."""
        return self._bucket.available_bytes(self._clock() if now_s is None else now_s)

    def plan_bytes(self, now_s: float) -> int:
        """Return how many bytes may be planned: the budget, and what can move in the time."""
        return min(self.budget_bytes(now_s), self._throughput.bytes)

    def charge(self, moved_bytes: int) -> None:
        """Take bytes that moved otherwise (pageout, drains) from the budget."""
        self._bucket.spend(moved_bytes)

    def apply(
        self, plan: Plan, now_s: float | None = None, *, dry_run: bool = False
    ) -> MoveOutcome:
        """Apply the plan phase by phase, as far as the budget goes; nothing moves in a ``dry_run``.

        ``now_s`` is the time of the budget and of the backoff, by default the mover's own clock.
        """
        dry_run |= self.settings.dry_run
        begun_s = self._clock()
        now_s = begun_s if now_s is None else now_s
        calls_before = self._engine.calls
        progress = PlanProgress(plan)
        progress.drop_duplicates()
        check_sources(self._engine, progress, every_row=dry_run)
        self._exclude(progress, now_s)
        limits = self._limits_of(plan)
        for bucket, rows in limits:
            progress.defer(bucket.available_bytes(now_s), rows)
        progress.defer(self._bucket.available_bytes(now_s))
        if dry_run:
            for part in progress.parts:
                rows = part.pending
                part.status[rows] = MoveStatus.WOULD_MOVE
                part.moved_pages[rows] = part.pages[rows]
        else:
            self._move(progress, begun_s + self.settings.apply_limit_s)
            self._start_backoff(progress, now_s)
        self._locate_duplicates(progress)
        outcome = progress.outcome(
            calls=self._engine.calls - calls_before,
            seconds=self._clock() - begun_s,
            dry_run=dry_run,
        )
        if not outcome.dry_run:
            self._bucket.spend(outcome.moved_bytes)
            for bucket, rows in limits:
                bucket.spend(int(outcome.moved_pages[rows].sum()) * PAGE_BYTES)
            self._throughput.observe(outcome.moved_bytes, outcome.seconds)
        return outcome

    def _limits_of(self, plan: Plan) -> list[tuple[TokenBucket, npt.NDArray[np.bool_]]]:
        """Return the rates of the plan's processes and tiers, each with its rows."""
        slots: dict[TokenBucket, list[int]] = {}
        for slot, process in enumerate(plan.processes if self._limited else ()):
            if bucket := self._limited.get(process):
                slots.setdefault(bucket, []).append(slot)
        tiers = [
            (bucket, np.isin(plan.from_node, nodes) | np.isin(plan.to_node, nodes))
            for nodes, bucket in self._tiers.items()
        ]
        return [(bucket, np.isin(plan.process, own)) for bucket, own in slots.items()] + tiers

    def _exclude(self, progress: PlanProgress, now_s: float) -> None:
        """Decide pages that filter or binding keep where they are, or that are in backoff."""
        for process, parts in progress.parts_by_process():
            bindings = self._bindings.of(process) if self._bindings else UNBOUND
            if bindings.any_bound:
                for part in parts:
                    target = np.full(len(part.address), part.to_node, np.int16)
                    bound = part.pending & ~bindings.permits(part.address, target)
                    part.status[bound] = MoveStatus.BOUND
            one = len(parts) == 1
            addresses = parts[0].address if one else np.concatenate([p.address for p in parts])
            movable = self._page_filter(process, addresses)
            waiting = self._backoff.find_waiting(process, addresses, now_s)
            if movable.all() and not waiting.any():
                continue
            end = 0
            for part in parts:
                start, end = end, end + len(part.address)
                pending = part.pending
                part.status[pending & waiting[start:end]] = MoveStatus.IN_BACKOFF
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
        huge = np.flatnonzero(moved & (part.pages > 1))
        if len(huge):
            self._finish_split(part, huge, deadline_s)
        return {MoveStatus(code) for code in _codes(part.status[rows])}

    def _finish_split(self, part: PlanPart, huge: npt.NDArray[np.intp], deadline_s: float) -> None:
        """Move the other pages of huge pages that the kernel had split: the first has moved."""
        process, node = part.process, part.to_node
        where, _ = self._engine.locate(
            process, part.last_pages(huge), np.full(len(huge), node, np.int16)
        )
        split = huge[where != MoveStatus.ALREADY_THERE]
        for row in split.tolist():
            pages = np.arange(1, part.pages[row], dtype=np.uint64)
            addresses = part.address[row] + pages * np.uint64(PAGE_BYTES)
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
            if not statuses.isdisjoint(BACKED_OFF_FAILURES):
                # A page that the query already refused costs no move call the next time either.
                failed = np.isin(part.status, BACKED_OFF_FAILURES) & (part.origin >= 0)
                self._backoff.add(part.process, part.address[failed], now_s)
            if MoveStatus.GONE in statuses:
                self._backoff.forget(part.process)


def _codes(status: npt.NDArray[np.int16]) -> set[int]:
    """Return which codes occur; rows are mostly of one."""
    first = int(status[0])
    if (status == first).all():
        return {first}
    return set(np.flatnonzero(np.bincount(status)).tolist())
