"""Some pages of a view as the moves of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hmd.decide.plan import Plan
from hmd.machine.process_id import ProcessId
from hmd.units import HUGE_PAGE_PAGES, PAGE_BYTES

if TYPE_CHECKING:
    from hmd.heat.view.page_view import PageRows


def moves_of(
    processes: tuple[ProcessId, ...],
    pages: PageRows,
    rows: npt.NDArray[np.integer],
    target: npt.NDArray[np.integer],
    phase: npt.NDArray[np.int32] | None = None,
) -> Plan:
    """Return the plan that moves ``rows`` of ``pages``, in this order, to the nodes ``target``.

    Without a ``phase`` column all moves are one phase: none needs room that another makes. Of a row
    whose pages are apart the plan has each page.
    """
    phase = np.zeros(len(rows), np.int32) if phase is None else phase
    size = pages.size[rows]
    page = np.zeros(len(rows), np.uint64)
    apart = pages.apart[rows]
    if apart.any():
        each = np.where(apart, HUGE_PAGE_PAGES, 1)
        size = np.repeat(np.where(apart, 1, size), each)
        page = (np.arange(len(size)) - np.repeat(np.cumsum(each) - each, each)).astype(np.uint64)
        rows, target = np.repeat(rows, each), np.repeat(target, each)
        phase = np.repeat(phase, each)
    return Plan(
        processes,
        pages.process[rows],
        pages.address[rows] + page * np.uint64(PAGE_BYTES),
        size.astype(np.uint32),
        pages.node[rows].astype(np.int16),
        target.astype(np.int16),
        pages.rate[rows],
        phase,
    )
