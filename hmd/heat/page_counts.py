"""Counts over the whole table: pages by node, and pages by heat.

Each is one pass: 0.3 ns per page of the table, and 2 ns per row of a view.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hmd.heat.geometry import CHUNK_PAGES, FIXED
from hmd.heat.kernels import Float32s, Int8Plane, Int8s, Int32s, Int64Plane, Uint16s, kernel

#: Bins of the log2 histogram of heat: bin b counts pages of 2**(b - COLDEST) accesses per second
#: and more, below twice that; the first and the last also count what lies beyond.
HEAT_BINS: Final = 64
COLDEST: Final = 24


@kernel
def count_nodes(process: Int32s, code: Int8Plane, movable: Int64Plane, fixed: Int64Plane) -> None:
    """Add each process's pages on each node: to ``movable`` or, those that must stay, to ``fixed``.

    ``process`` and ``code`` are columns of the table. Results have shape ``(processes, nodes)``.
    """
    nodes = movable.shape[1]
    for chunk in range(len(process)):
        p = process[chunk]
        for i in range(CHUNK_PAGES):
            node = code[chunk, i]
            if 0 <= node < nodes:
                movable[p, node] += 1
            elif node <= FIXED and FIXED - node < nodes:
                fixed[p, FIXED - node] += 1


@kernel
def count_heat(node: Int8s, size: Uint16s, rate: Float32s, bins: Int64Plane) -> None:
    """Add pages to ``bins``, shape ``(nodes, HEAT_BINS)``, by node and log2 of their rate."""
    for row in range(len(rate)):
        if node[row] >= len(bins):
            continue
        b = 0
        if rate[row] > 0.0:
            b = int(np.floor(np.log2(rate[row]))) + COLDEST
        bins[node[row], min(max(b, 0), HEAT_BINS - 1)] += size[row]
