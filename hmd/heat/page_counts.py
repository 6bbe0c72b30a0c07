"""Counts over the whole table: pages by node, and pages by heat.

Each is one pass, 0.3 to 2 ns a page.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hmd.heat.geometry import ABSENT, CHUNK_PAGES, FIXED
from hmd.heat.kernels import Float32Plane, Int8Plane, Int32s, Int64Plane, kernel

#: Bins of the log2 histogram of heat: bin b counts pages of 2**(b - COLDEST) accesses a tick
#: and up, below twice that; the first and the last also what lies beyond.
HEAT_BINS: Final = 64
COLDEST: Final = 24


@kernel
def count_nodes(
    chunks: int,
    chunk_process: Int32s,
    node: Int8Plane,
    movable: Int64Plane,
    fixed: Int64Plane,
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


@kernel
def count_heat(
    chunks: int,
    node: Int8Plane,
    rate: Float32Plane,
    bins: Int64Plane,
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
