"""The rows that are to leave where they lie: of drained nodes, of pins, of idle memory.

Takes which nodes each process's pages are to leave; gives the numbers of such rows, the hottest or
the longest idle ones where there are more than one plan takes. So a plan of any table is made in
pieces, tick by tick, with memory for its own rows only. Costs about 1 ns per row of the table
while no page is to leave, else 4 ns.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.heat.chunk_columns import ChunkColumns, TableRates
from hmd.heat.geometry import CHUNK_PAGES
from hmd.heat.idle_age import NEW
from hmd.heat.kernels import Int8Plane, Int64s, kernel
from hmd.heat.view.heat_bins import BINS, heat_bin
from hmd.heat.view.page_columns import STRAYS

_AGE: Final = np.uint8(NEW - 1)


class LeavingCodes(NamedTuple):
    """Whether pages of a process leave, by the byte of their code: 1 or 0, ``(processes, 256)``."""

    leaves: Int8Plane


class Cut(NamedTuple):
    """Which rows are taken: those of bins above ``least``, and ``left`` of that bin.

    ``bins`` counts the rows of each bin while none is taken; ``least`` and ``left`` have shape
    ``(1,)``.
    """

    bins: Int64s
    least: Int64s
    left: Int64s


@kernel
def count_leaving(chunks: int, columns: ChunkColumns, codes: LeavingCodes) -> int:
    """Return the number of rows that are to leave."""
    count, leaves = 0, codes.leaves
    for chunk in range(chunks):
        row, resident, p = columns.detail[chunk], columns.resident[chunk], columns.process[chunk]
        if resident == 0:
            continue
        if row < 0:
            stays = columns.strays[chunk] * STRAYS > resident
            count += 0 if stays else leaves[p, columns.code[chunk] & 255]
        elif columns.huge[chunk]:
            count += leaves[p, columns.node[row, 0] & 255]
        else:
            for i in range(CHUNK_PAGES):
                count += leaves[p, columns.node[row, i] & 255]
    return count


@kernel
def visit_leaving(
    chunks: int,
    columns: ChunkColumns,
    codes: LeavingCodes,
    rates: TableRates,
    by_idle: bool,
    cut: Cut,
    number: Int64s,
) -> int:
    """Fill ``number`` with the rows that are taken, or count them by bin if it is empty.

    Rows are sorted into bins by their rate, or ``by_idle`` by the ticks since their last sample.
    Returns how many were taken.
    """
    end, leaves, wholes = 0, codes.leaves, len(columns.owner) * CHUNK_PAGES
    counts, least, left = len(number) == 0, cut.least[0], cut.left[0]
    for chunk in range(chunks):
        row, resident, p = columns.detail[chunk], columns.resident[chunk], columns.process[chunk]
        if resident == 0:
            continue
        one = row < 0 or columns.huge[chunk]
        if row < 0 and columns.strays[chunk] * STRAYS > resident:
            continue
        for i in range(1 if one else CHUNK_PAGES):
            code = columns.code[chunk] if row < 0 else columns.node[row, i]
            if leaves[p, code & 255] == 0:
                continue
            if by_idle:
                idle = columns.rested[chunk] if row < 0 else columns.idle[row, i]
                if one and row >= 0:
                    for each in range(CHUNK_PAGES):
                        idle = min(idle, columns.idle[row, each])
                at = np.int64(idle & _AGE)
            else:
                rate = rates.chunk_rate[chunk] if one else rates.page_rate[row, i]
                at = np.int64(max(heat_bin(rate), 0))
            if counts:
                cut.bins[at] += 1
                continue
            if at < least or (at == least and left == 0):
                continue
            left -= 1 if at == least else 0
            number[end] = wholes + chunk if one else row * CHUNK_PAGES + i
            end += 1
    return end


def leaving_codes(leaves: npt.NDArray[np.bool_]) -> LeavingCodes:
    """Return the codes of pages that leave their node; ``leaves`` is ``(processes, nodes)``.

    Pages that are fixed in place have other codes.
    """
    found = np.zeros((len(leaves), 256), np.int8)
    found[:, : leaves.shape[1]] = leaves
    return LeavingCodes(found)


def leaving_rows(
    chunks: int,
    columns: ChunkColumns,
    codes: LeavingCodes,
    rates: TableRates | None,
    most: int,
) -> npt.NDArray[np.int64]:
    """Return the numbers of at most ``most`` rows that are to leave.

    The hottest by ``rates``, to an eighth of an octave; the longest idle without rates.
    """
    by_idle = rates is None
    if rates is None:
        none = np.empty((0, CHUNK_PAGES), np.float32)
        rates = TableRates(none, none, np.empty(0, np.float32), np.empty(0, np.float32))
    cut = Cut(np.zeros(BINS, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))
    number = np.empty(0, np.int64)
    visit_leaving(chunks, columns, codes, rates, by_idle, cut, number)
    above = np.append(np.cumsum(cut.bins[::-1])[::-1], 0)
    bound = int(np.argmax(above <= most))
    cut.least[0], cut.left[0] = bound - 1, most - above[bound]
    number = np.empty(min(int(above[0]), most), np.int64)
    if len(number):
        visit_leaving(chunks, columns, codes, rates, by_idle, cut, number)
    return number
