"""Counts over the whole table: pages by node, and pages by heat.

Each is one pass, 0.3 to 2 ns a page.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.heat.geometry import ABSENT, CHUNK_PAGES, FIXED
from hmd.heat.kernels import kernel

#: Bins of the log2 histogram of heat: bin b counts pages of 2**(b - COLDEST) accesses a tick
#: and up, below twice that; the first and the last also what lies beyond.
HEAT_BINS: Final = 64
COLDEST: Final = 24


@kernel("int64", "int32[::1]", "int8[:, ::1]", "int64[:, ::1]", "int64[:, ::1]")
def count_nodes(
    chunks: int,
    chunk_process: npt.NDArray[np.int32],
    node: npt.NDArray[np.int8],
    movable: npt.NDArray[np.int64],
    fixed: npt.NDArray[np.int64],
) -> None:
    """Add the pages of each process on each node: those that may move, those that must stay."""
    nodes = movable.shape[1]
    for chunk in range(chunks):
        p = chunk_process[chunk]
        for i in range(CHUNK_PAGES):
            where = node[chunk, i]
            if 0 <= where < nodes:
                movable[p, where] += 1
            elif where <= FIXED and FIXED - where < nodes:
                fixed[p, FIXED - where] += 1


@kernel("int64", "int8[:, ::1]", "float32[:, ::1]", "int64[:, ::1]")
def count_heat(
    chunks: int,
    node: npt.NDArray[np.int8],
    rate: npt.NDArray[np.float32],
    bins: npt.NDArray[np.int64],
) -> None:
    """Add resident pages to ``bins``, shape (nodes, HEAT_BINS), by node and log2 of rate."""
    for chunk in range(chunks):
        for i in range(CHUNK_PAGES):
            where = np.int64(node[chunk, i])
            if where == ABSENT:
                continue
            if where <= FIXED:
                where = FIXED - where
            if where >= len(bins):
                continue
            row = 0
            if rate[chunk, i] > 0.0:
                row = int(np.floor(np.log2(rate[chunk, i]))) + COLDEST
            bins[where, min(max(row, 0), HEAT_BINS - 1)] += 1
