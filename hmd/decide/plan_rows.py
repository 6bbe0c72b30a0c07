"""Pages of the heat table as the moves of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hmd.decide.plan import Plan
from hmd.heat.geometry import CHUNK_PAGES
from hmd.units import PAGE_BYTES

if TYPE_CHECKING:
    from hmd.heat.heat_table import HeatTable


def moves_of(
    heat: HeatTable,
    page: npt.NDArray[np.integer],
    size: npt.NDArray[np.integer],
    source: npt.NDArray[np.integer],
    target: npt.NDArray[np.integer],
    rate: npt.NDArray[np.float32],
    phase: npt.NDArray[np.int32] | None = None,
) -> Plan:
    """Return the plan that moves pages in this order; columns of shape ``(n,)``.

    ``page`` are rows of the table's pages laid end to end, ``size`` is in 4 KiB, nodes are ids.
    Without a ``phase`` column all moves are one phase: none needs room that another makes.
    """
    columns = heat.chunks.columns
    chunk, offset = page // CHUNK_PAGES, page % CHUNK_PAGES * PAGE_BYTES
    return Plan(
        heat.processes,
        columns.process[chunk],
        columns.address[chunk] + offset.astype(np.uint64),
        size.astype(np.uint32),
        source.astype(np.int16),
        target.astype(np.int16),
        rate,
        np.zeros(len(page), np.int32) if phase is None else phase,
    )
