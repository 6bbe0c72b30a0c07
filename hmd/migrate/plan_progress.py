"""A plan being applied: columns of what is known of each row so far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.decide.plan import Plan
from hmd.machine.process_id import ProcessId
from hmd.migrate.move_status import MoveStatus
from hmd.migrate.outcome import Flow, MoveOutcome
from hmd.units import HUGE_PAGE_PAGES, PAGE_BYTES

SUBPAGES: Final = np.arange(1, HUGE_PAGE_PAGES, dtype=np.uint64) * np.uint64(PAGE_BYTES)
"""Offsets of the other pages of a huge page from its first."""


@dataclass(slots=True)
class PlanProgress:
    """Columns of shape ``(n,)``: ``origin`` is where a page was found, ``node`` where it is now."""

    plan: Plan
    status: npt.NDArray[np.int16]
    origin: npt.NDArray[np.int16]
    node: npt.NDArray[np.int16]
    moved_pages: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, plan: Plan) -> PlanProgress:
        """Return the progress of a plan of which no row is decided."""
        rows = len(plan)
        return cls(
            plan,
            status=np.full(rows, MoveStatus.PENDING, np.int16),
            origin=np.full(rows, -1, np.int16),
            node=np.full(rows, -1, np.int16),
            moved_pages=np.zeros(rows, np.uint32),
        )

    def pending(self) -> npt.NDArray[np.intp]:
        """Return the rows that are not decided yet, in the plan's order."""
        return np.flatnonzero(self.status == MoveStatus.PENDING)

    def by_process(
        self, rows: npt.NDArray[np.intp]
    ) -> Iterator[tuple[ProcessId, npt.NDArray[np.intp]]]:
        """Yield the rows of each process, in the plan's order."""
        owner = self.plan.process[rows]
        for index in np.unique(owner).tolist():
            yield self.plan.processes[index], rows[owner == index]

    def drop_duplicates(self) -> None:
        """Mark rows as DUPLICATE: all but the first of a page, and parts of planned huge pages.

        The kernel answers a second address of one folio with EBUSY and ends the batch there.
        """
        plan = self.plan
        # One integer per page, since numpy sorts records slowly: 45 bits hold every page number of
        # five-level page tables, which leaves 19 bits for half a million processes in a plan.
        owner = plan.process.astype(np.uint64) << np.uint64(45)
        page = owner | plan.address >> np.uint64(12)
        _, first = np.unique(page, return_index=True)
        twice = np.ones(len(plan), np.bool_)
        twice[first] = False
        huge = (plan.pages == HUGE_PAGE_PAGES) & ~twice
        if huge.any():
            block = page // np.uint64(HUGE_PAGE_PAGES)
            twice |= ~huge & np.isin(block, block[huge])
        self.status[twice] = MoveStatus.DUPLICATE

    def outcome(self, *, calls: int, seconds: float, dry_run: bool) -> MoveOutcome:
        """Return the outcome, with its sums."""
        pages = self.plan.pages
        by_status = np.bincount(self.status, weights=pages, minlength=len(MoveStatus))
        return MoveOutcome(
            status=self.status,
            node=self.node,
            moved_pages=self.moved_pages,
            moved=self._flows(),
            pages={s: int(by_status[s]) for s in MoveStatus if by_status[s]},
            calls=calls,
            seconds=seconds,
            dry_run=dry_run,
        )

    def _flows(self) -> dict[Flow, int]:
        moved = self.moved_pages > 0
        origin, target = self.origin[moved], self.plan.to_node[moved]
        flows: dict[Flow, int] = {}
        for source, sink in np.unique(np.stack((origin, target)), axis=1).T.tolist():
            chosen = (origin == source) & (target == sink)
            flows[source, sink] = int(self.moved_pages[moved][chosen].sum())
        return flows
