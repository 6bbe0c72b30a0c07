"""Some pages of a view as the moves of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hmd.decide.plan import Plan
from hmd.machine.process_id import ProcessId

if TYPE_CHECKING:
    from hmd.heat.page_view import PageRows


def moves_of(
    processes: tuple[ProcessId, ...],
    pages: PageRows,
    rows: npt.NDArray[np.integer],
    target: npt.NDArray[np.integer],
    phase: npt.NDArray[np.int32] | None = None,
) -> Plan:
    """Return the plan that moves ``rows`` of ``pages``, in this order, to the nodes ``target``.

    Without a ``phase`` column all moves are one phase: none needs room that another makes.
    """
    return Plan(
        processes,
        pages.process[rows],
        pages.address[rows],
        pages.size[rows].astype(np.uint32),
        pages.node[rows].astype(np.int16),
        target.astype(np.int16),
        pages.rate[rows],
        np.zeros(len(rows), np.int32) if phase is None else phase,
    )
