"""Counts over the whole table: pages by node, and pages by heat.

Each is one pass: 0.3 ns per page of the table, and 2 ns per row of a view.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hmd.heat.chunk_columns import ChunkColumns, TableRates
from hmd.heat.geometry import ABSENT, CHUNK_PAGES, FIXED
from hmd.heat.kernels import Int8Plane, Int8s, Int16s, Int64Plane, inline, kernel

#: Bins of the log2 histogram of heat: bin b counts pages of 2**(b - COLDEST) accesses per second
#: and more, below twice that; the first and the last also count what lies beyond.
HEAT_BINS: Final = 64
COLDEST: Final = 24


@inline
def _add(code: int, pages: int, process: int, movable: Int64Plane, fixed: Int64Plane) -> None:
    """Add pages of one code to a process's counts."""
    if 0 <= code < movable.shape[1]:
        movable[process, code] += pages
    elif code <= FIXED and FIXED - code < movable.shape[1]:
        fixed[process, FIXED - code] += pages


@kernel
def count_nodes(chunks: int, columns: ChunkColumns, movable: Int64Plane, fixed: Int64Plane) -> None:
    """Add each process's pages on each node: to ``movable`` or, those that must stay, to ``fixed``.

    Results have shape ``(processes, nodes)``. The pages of a chunk that is counted as a whole are
    added to the node where most of them are.
    """
    process, detail, node = columns.process, columns.detail, columns.node
    # Neighbours mostly lie on one node: their pages are added up before they are stored.
    pages, last_code, last_process = 0, ABSENT, 0
    for chunk in range(chunks):
        p, row = process[chunk], detail[chunk]
        if row < 0:
            code = columns.code[chunk]
            if code != last_code or p != last_process:
                _add(last_code, pages, last_process, movable, fixed)
                pages, last_code, last_process = 0, int(code), int(p)
            pages += columns.resident[chunk]
            continue
        # A pass per code that occurs, which compares many pages at a time.
        left = 0
        for i in range(CHUNK_PAGES):
            left += int(node[row, i] != ABSENT)
        for on in range(movable.shape[1]):
            if left <= 0:
                break
            here, stuck = 0, 0
            for i in range(CHUNK_PAGES):
                here += int(node[row, i] == on)
                stuck += int(node[row, i] == FIXED - on)
            movable[p, on] += here
            fixed[p, on] += stuck
            left -= here + stuck
    _add(last_code, pages, last_process, movable, fixed)


@kernel
def summarise(node: Int8Plane, code: Int8s, resident: Int16s, strays: Int16s) -> None:
    """Set the code of most pages of each chunk, its resident pages, and those of other codes.

    ``node`` has shape ``(k, 512)``, results ``(k,)``; a chunk without pages is ``ABSENT``.
    """
    count = np.zeros(256, np.int64)
    for chunk in range(len(node)):
        count[:] = 0
        for i in range(CHUNK_PAGES):
            count[node[chunk, i] & 255] += 1
        there = CHUNK_PAGES - count[ABSENT & 255]
        count[ABSENT & 255] = 0
        most = np.argmax(count)
        resident[chunk] = there
        strays[chunk] = there - count[most]
        code[chunk] = ABSENT if there == 0 else np.int8(np.uint8(most))


@inline
def _heat_bin(rate: np.float32) -> int:
    """Return the bin of a rate, from its exponent."""
    exponent = int(np.float32(rate).view(np.int32) >> np.int32(23)) - 127
    return min(max(exponent + COLDEST, 0), HEAT_BINS - 1)


@kernel
def count_heat(chunks: int, columns: ChunkColumns, rates: TableRates, bins: Int64Plane) -> None:
    """Add pages to ``bins``, shape ``(nodes, HEAT_BINS)``, by node and log2 of their rate."""
    for chunk in range(chunks):
        row = columns.detail[chunk]
        if row < 0 or columns.huge[chunk]:
            code = columns.code[chunk] if row < 0 else columns.node[row, 0]
            node = FIXED - code if code <= FIXED else code
            if 0 <= node < len(bins):
                bins[node, _heat_bin(rates.chunk_rate[chunk])] += columns.resident[chunk]
            continue
        for i in range(CHUNK_PAGES):
            code = columns.node[row, i]
            node = FIXED - code if code <= FIXED else code
            if 0 <= node < len(bins):
                bins[node, _heat_bin(rates.page_rate[row, i])] += 1
