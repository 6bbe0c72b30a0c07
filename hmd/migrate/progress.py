# SPDX-License-Identifier: MIT
"""A plan being applied: columns of what is known of each row so far, in the order of moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES, PAGE_SHIFT
from hmd.linux.procfs import ProcessId
from hmd.migrate.move_budget import is_uniform, move_sequence
from hmd.migrate.status import Flow, MoveOutcome, MoveStatus
from hmd.policy.plan import Plan

Code = TypeVar("Code", bound=int)
Column = TypeVar("Column", bound=np.generic)


@dataclass(frozen=True, slots=True)
class PlanPart:
    """Rows of one phase, process and target node, by rising address.

    Columns of shape ``(n,)`` are views: what is written to them is written to the progress.
    ``origin`` is where a page was found, ``node`` where it is now.
    """

    process: ProcessId
    to_node: int
    address: npt.NDArray[np.uint64]
    pages: npt.NDArray[np.uint32]
    from_node: npt.NDArray[np.int16]
    status: npt.NDArray[np.int16]
    origin: npt.NDArray[np.int16]
    node: npt.NDArray[np.int16]
    moved_pages: npt.NDArray[np.uint32]

    def last_pages(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.uint64]:
        """Return the address of the last base page of some rows."""
        return self.address[rows] + (self.pages[rows] - 1).astype(np.uint64) * np.uint64(PAGE_BYTES)

    @property
    def pending(self) -> npt.NDArray[np.bool_]:
        """The rows that are not decided yet."""
        undecided: npt.NDArray[np.bool_] = self.status == MoveStatus.PENDING
        return undecided


class PlanProgress:
    """The parts of a plan, in the order in which to move them; no row is decided at first."""

    def __init__(self, plan: Plan) -> None:
        rows = len(plan)
        self._order, starts = move_sequence(plan)
        self._process = self._as_moved(plan.process)
        self._address = plan.address.take(self._order)
        self._pages = self._as_moved(plan.pages)
        from_node = self._as_moved(plan.from_node)
        self._status = np.full(rows, MoveStatus.PENDING, np.int16)
        self._node = np.full(rows, -1, np.int16)
        self._moved_pages = np.zeros(rows, np.uint32)
        origin = np.full(rows, -1, np.int16)
        ends = [*starts[1:].tolist(), rows]
        self.parts = tuple(
            PlanPart(
                plan.processes[self._process[start]],
                int(plan.to_node[self._order[start]]),
                self._address[start:end],
                self._pages[start:end],
                from_node[start:end],
                self._status[start:end],
                origin[start:end],
                self._node[start:end],
                self._moved_pages[start:end],
            )
            for start, end in zip(starts.tolist(), ends, strict=False)
        )

    def parts_by_process(self) -> Iterator[tuple[ProcessId, list[PlanPart]]]:
        """Yield the parts of each process that have rows to decide."""
        parts: dict[ProcessId, list[PlanPart]] = {}
        for part in self.parts:
            if part.pending.any():
                parts.setdefault(part.process, []).append(part)
        yield from parts.items()

    def drop_duplicates(self) -> None:
        """Mark rows as DUPLICATE: all but the first of a page, and parts of planned huge pages.

        The kernel answers a second address of one folio with EBUSY and ends the batch there.
        """
        # One integer per page, since numpy sorts records slowly: 45 bits hold every page number of
        # five-level page tables, which leaves 19 bits for half a million processes in a plan.
        page = self._address >> np.uint64(PAGE_SHIFT)
        if len(self.parts) > 1:
            page |= self._process.astype(np.uint64) << np.uint64(45)
        twice = np.zeros(len(page), np.bool_)
        rising = np.sort(page) if len(self.parts) > 1 else page
        if (rising[1:] == rising[:-1]).any():
            first = np.unique(page[self._planned()], return_index=True)[1]
            twice[:] = True
            twice[self._planned()[first]] = False
        large = (self._pages > 1) & ~twice
        if large.any() and not large.all():
            order = np.argsort(page[large])
            first, size = page[large][order], self._pages[large][order]
            at = np.maximum(np.searchsorted(first, page, "right") - 1, 0)
            twice |= ~large & (page - first[at] < size[at])
        self._status[twice] = MoveStatus.DUPLICATE

    def defer(self, budget_bytes: int, rows: npt.NDArray[np.bool_] | None = None) -> None:
        """Defer what exceeds the budget, from the first row of the plan that does on.

        Of all rows, or of some: a mask in the order of the plan.
        """
        if int(self._pages.sum()) * PAGE_BYTES <= budget_bytes:
            return
        pending = self._status == MoveStatus.PENDING
        if rows is not None:
            pending &= rows.take(self._order)
        wanted = self._pages * pending
        if int(wanted.sum()) * PAGE_BYTES <= budget_bytes:
            return
        planned = self._planned()
        over = np.cumsum(wanted.take(planned), dtype=np.int64) * PAGE_BYTES > budget_bytes
        self._status[planned[over & pending[planned]]] = MoveStatus.DEFERRED

    def outcome(self, *, calls: int, seconds: float, dry_run: bool) -> MoveOutcome:
        """Return the outcome, with its sums; rows are in the order of the plan."""
        return MoveOutcome(
            status=self._as_planned(self._status),
            node=self._as_planned(self._node),
            moved_pages=self._as_planned(self._moved_pages),
            moved=self._flows(),
            pages=_sums(self._status, self._pages, MoveStatus),
            calls=calls,
            seconds=seconds,
            dry_run=dry_run,
        )

    def _planned(self) -> npt.NDArray[np.intp]:
        """Return the row of each row of the plan."""
        rows = np.empty(len(self._order), np.intp)
        rows[self._order] = np.arange(len(rows))
        return rows

    def _as_planned(self, column: npt.NDArray[Column]) -> npt.NDArray[Column]:
        """Return a column in the order of the plan."""
        planned = column.copy()
        if not is_uniform(column):
            planned[self._order] = column
        return planned

    def _as_moved(self, column: npt.NDArray[Column]) -> npt.NDArray[Column]:
        """Return a column of the plan in the order of moves."""
        return column.copy() if is_uniform(column) else column.take(self._order)

    def _flows(self) -> dict[Flow, int]:
        flows: dict[Flow, int] = {}
        for part in self.parts:
            for origin, pages in _sums(part.origin, part.moved_pages, int).items():
                flow = (origin, part.to_node)
                flows[flow] = flows.get(flow, 0) + pages
        return dict(sorted(flows.items()))


def _sums(
    codes: npt.NDArray[np.int16], pages: npt.NDArray[np.uint32], name: Callable[[int], Code]
) -> dict[Code, int]:
    """Return the pages of each code that has some; codes are -1 and above."""
    if not len(codes):
        return {}
    low, high = int(codes.min()), int(codes.max())
    # Mostly all rows have one code, which is summed faster.
    sums = [pages.sum()] if low == high else np.bincount(codes - low, pages).tolist()
    return {name(code): int(each) for code, each in enumerate(sums, low) if each}
