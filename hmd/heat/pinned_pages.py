"""Pages that policies are to leave alone for once: those of processes that somebody has pinned.

A policy leaves pages be that must stay (``FIXED``); for the time of its plan the pages of held
processes are such pages. Costs two copies of 512 bytes a chunk of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from hmd.heat.geometry import FIXED
from hmd.heat.heat_table import HeatTable


@contextmanager
def holding(heat: HeatTable, held: npt.NDArray[np.bool_]) -> Iterator[None]:
    """Have the pages of processes, ``held`` of shape ``(processes,)``, be ``FIXED`` for a while.

    Nothing may be tracked or placed meanwhile.
    """
    columns, used = heat.chunks.columns, heat.chunks.used
    rows = np.flatnonzero(held[columns.process[:used]]) if held.any() else np.empty(0, np.intp)
    before = columns.node[rows]
    columns.node[rows] = np.where(before >= 0, FIXED - before, before)
    try:
        yield
    finally:
        columns.node[rows] = before
