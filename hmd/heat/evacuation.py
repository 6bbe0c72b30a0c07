# SPDX-License-Identifier: MIT
"""The rows that must leave their node: of drained nodes, of pins, of idle memory.

Takes which nodes each process's pages must leave; gives the storage indexes of such rows, the
hottest or the longest idle ones where there are more than one plan takes. So a plan of any table is
made in pieces, tick by tick, with memory for its own rows only. Costs about 1 ns per row of the
table while no page must leave, else 4 ns.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import Int8Plane, Int64s, kernel
from hmd.heat.candidates import BINS, heat_bin
from hmd.heat.chunks import NEW, ChunkColumns, TableRates
from hmd.heat.geometry import CHUNK_PAGES
from hmd.heat.view_rows import huge_page_idle, is_mixed

_AGE: Final = np.uint8(NEW - 1)


class EvacuationCodes(NamedTuple):
    """Whether pages of a process leave, by the byte of their code: 1 or 0, ``(processes, 256)``."""

    leaves: Int8Plane


class Cut(NamedTuple):
    """Which rows are taken: those of bins above ``lowest_bin``, and ``left`` of that bin.

    ``bins`` counts the rows of each bin while none is taken; the others have shape ``(1,)``.
    """

    bins: Int64s
    lowest_bin: Int64s
    left: Int64s


@kernel
def count_evacuated(chunks: int, columns: ChunkColumns, codes: EvacuationCodes) -> int:
    """Return the number of rows that must leave."""
    count, leaves = 0, codes.leaves
    for chunk in range(chunks):
        slot, p = columns.page_slot[chunk], columns.process[chunk]
        if columns.resident[chunk] == 0:
            continue
        if slot < 0:
            if not is_mixed(columns.minority_pages[chunk], columns.resident[chunk]):
                count += leaves[p, int(columns.chunk_node[chunk]) & 255]
        elif columns.huge[chunk]:
            count += leaves[p, int(columns.node[slot, 0]) & 255]
        else:
            for i in range(CHUNK_PAGES):
                count += leaves[p, int(columns.node[slot, i]) & 255]
    return count


@kernel
def visit_evacuated(
    chunks: int,
    columns: ChunkColumns,
    codes: EvacuationCodes,
    rates: TableRates,
    by_idle: bool,
    cut: Cut,
    storage_index: Int64s,
) -> int:
    """Fill ``storage_index`` with the rows that are taken, or count them by bin if it is empty.

    Rows are sorted into bins by their rate, or ``by_idle`` by the ticks since their last sample.
    Returns how many were taken.
    """
    end, leaves, first_chunk = 0, codes.leaves, len(columns.owner) * CHUNK_PAGES
    counts, lowest_bin, left = len(storage_index) == 0, cut.lowest_bin[0], cut.left[0]
    for chunk in range(chunks):
        slot, p = columns.page_slot[chunk], columns.process[chunk]
        resident, minority = columns.resident[chunk], columns.minority_pages[chunk]
        if resident == 0 or (slot < 0 and is_mixed(minority, resident)):
            continue
        one = slot < 0 or columns.huge[chunk]
        for i in range(1 if one else CHUNK_PAGES):
            code = columns.chunk_node[chunk] if slot < 0 else columns.node[slot, i]
            if leaves[p, int(code) & 255] == 0:
                continue
            if by_idle:
                idle = columns.chunk_idle[chunk] if slot < 0 else columns.idle[slot, i]
                if one and slot >= 0:
                    idle = huge_page_idle(slot, columns)
                at = np.int64(idle & _AGE)
            else:
                rate = rates.chunk_rate[chunk] if one else rates.page_rate[slot, i]
                at = np.int64(max(heat_bin(rate), 0))
            if counts:
                cut.bins[at] += 1
                continue
            if at < lowest_bin or (at == lowest_bin and left == 0):
                continue
            left -= 1 if at == lowest_bin else 0
            storage_index[end] = first_chunk + chunk if one else slot * CHUNK_PAGES + i
            end += 1
    return end


def evacuation_codes(leaves: npt.NDArray[np.bool_]) -> EvacuationCodes:
    """Return the codes of pages that leave their node; ``leaves`` is ``(processes, nodes)``.

    Unmovable pages have other codes.
    """
    found = np.zeros((len(leaves), 256), np.int8)
    found[:, : leaves.shape[1]] = leaves
    return EvacuationCodes(found)


def rows_to_evacuate(
    chunks: int,
    columns: ChunkColumns,
    codes: EvacuationCodes,
    rates: TableRates | None,
    max_rows: int,
) -> npt.NDArray[np.int64]:
    """Return the storage indexes of at most ``max_rows`` rows that must leave.

    The hottest by ``rates``, to an eighth of an octave; the longest idle without rates.
    """
    by_idle = rates is None
    if rates is None:
        pages, coarse = np.empty((0, CHUNK_PAGES), np.float32), np.empty(0, np.float32)
        rates = TableRates(pages, pages, coarse, coarse)
    cut = Cut(np.zeros(BINS, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))
    storage_index = np.empty(0, np.int64)
    visit_evacuated(chunks, columns, codes, rates, by_idle, cut, storage_index)
    above = np.append(np.cumsum(cut.bins[::-1])[::-1], 0)
    bound = int(np.argmax(above <= max_rows))
    cut.lowest_bin[0], cut.left[0] = bound - 1, max_rows - above[bound]
    storage_index = np.empty(min(int(above[0]), max_rows), np.int64)
    if len(storage_index):
        visit_evacuated(chunks, columns, codes, rates, by_idle, cut, storage_index)
    return storage_index
