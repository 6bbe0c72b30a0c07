"""What a sweep found: on which nodes the pages of chunks are.

Takes nodes per page, gives how many pages differ from what the heat table had.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hmd.heat.chunks import Chunks
from hmd.heat.geometry import ABSENT
from hmd.heat.idle_age import NEW


def place_pages(chunks: Chunks, chunk: npt.NDArray[np.int32], node: npt.NDArray[np.int8]) -> int:
    """Record the nodes of chunks in detail; return how many pages differ from the record."""
    columns = chunks.columns
    rows = columns.detail[chunk]
    changed = int(np.count_nonzero(columns.node[rows] != node))
    # A page that came since, and was not sampled before this sweep found it, is new.
    was, there = columns.node[rows] != ABSENT, node != ABSENT
    new = ~there | (~was & (columns.idle[rows] >= NEW))
    columns.idle[rows] = np.where(new, np.uint8(NEW), columns.idle[rows])
    columns.node[rows] = node
    columns.resident[chunk] = there.sum(axis=1)
    return changed


def place_wholes(chunks: Chunks, chunk: npt.NDArray[np.int32], node: npt.NDArray[np.int8]) -> int:
    """Record where chunks lie that are counted as a whole; those that are mixed ask for detail.

    Returns how many pages differ from the record, as far as it shows that.
    """
    columns = chunks.columns
    code, resident = columns.code[chunk], columns.resident[chunk].astype(np.int64)
    chunks.place(chunk, node)
    now = columns.resident[chunk].astype(np.int64)
    changed = np.where(columns.code[chunk] == code, np.abs(now - resident), now)
    mixed = (columns.strays[chunk] > 0) & ~columns.huge[chunk]
    chunks.ask(chunk[mixed])
    return int(changed.sum())
