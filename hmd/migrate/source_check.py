"""The check of where a plan's pages are, before they are moved.

A query of a page costs the kernel a thirteenth of its move, more than all else that the mover does
for it, and mostly confirms what the plan says. So one in ``SAMPLED`` of a process's pages of 4 KiB
is queried, and where all of these are on the node that the plan expects, so are the others. If one
is not, all are queried; so are huge pages, few rows, and dry runs.

The result is exact but for pages that went to their target since the plan was made, in a plan whose
sample met none of them: they count as moved. The move itself reports absent and unmovable pages.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.migrate.move_pages_engine import MovePagesEngine
from hmd.migrate.move_status import MoveStatus
from hmd.migrate.plan_progress import SUBPAGES, PlanPart, PlanProgress
from hmd.units import HUGE_PAGE_PAGES

SAMPLED: Final = 16
"""One in so many rows is queried."""

LEAST_ROWS: Final = 1024
"""Of fewer rows of a process all are queried: they cost less than a call does."""


def check_sources(engine: MovePagesEngine, progress: PlanProgress, *, every_row: bool) -> None:
    """Find where the pages are; those on their target or absent are decided.

    ``every_row`` queries all of them. A query does not disturb its process.
    """
    for process, parts in progress.by_process():
        exited = engine.has_exited(process)
        for part in parts:
            pending = part.pending
            if exited:
                part.status[pending] = MoveStatus.GONE
            elif every_row or len(pending) < LEAST_ROWS:
                _query(engine, part, pending)
            else:
                asked = pending & _asked(part)
                others = pending & ~asked
                if _query(engine, part, asked):
                    np.copyto(part.origin, part.from_node, where=others)
                    np.copyto(part.node, part.from_node, where=others)
                else:
                    _query(engine, part, others)


def _asked(part: PlanPart) -> npt.NDArray[np.bool_]:
    """Return the rows to query first: a sample, huge pages, and rows without a usable source."""
    asked: npt.NDArray[np.bool_] = part.from_node < 0
    asked |= (part.from_node == part.to_node) | (part.pages > 1)
    asked[::SAMPLED] = True
    return asked


def _query(engine: MovePagesEngine, part: PlanPart, chosen: npt.NDArray[np.bool_]) -> bool:
    """Query rows; return whether all their 4 KiB pages are where the plan says."""
    rows = np.flatnonzero(chosen)
    target = np.full(len(rows), part.to_node, np.int16)
    status, node = engine.locate(part.process, part.address[rows], target)
    part.status[rows], part.node[rows], part.origin[rows] = status, node, node
    # A huge page that was split may be on two nodes; its last page shows it.
    huge = (part.pages[rows] == HUGE_PAGE_PAGES) & (status == MoveStatus.ALREADY_THERE)
    if huge.any():
        last = part.address[rows[huge]] + SUBPAGES[-1]
        status, there = engine.locate(part.process, last, target[huge])
        elsewhere = rows[huge][status == MoveStatus.PENDING]
        part.status[elsewhere] = MoveStatus.PENDING
        part.origin[elsewhere] = there[status == MoveStatus.PENDING]
    return bool((node == part.from_node[rows])[part.pages[rows] == 1].all())
