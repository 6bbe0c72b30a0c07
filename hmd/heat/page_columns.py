"""Kernels that turn the table's chunks into the flat rows of a page view.

Rows follow the order of chunks, and of pages within a chunk. Absent pages have no row, and a huge
page has one. :func:`collect_pages` costs about 0.5 ns per page where the pages of a chunk are all
on one node, else 3 ns; :func:`locate` about 20 ns per row.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.heat.chunk_columns import ChunkColumns
from hmd.heat.geometry import ABSENT, CHUNK_PAGES, FIXED
from hmd.heat.kernels import (
    Bools,
    Float32s,
    Int8Plane,
    Int8s,
    Int64s,
    Int64View,
    Uint8s,
    Uint16s,
    kernel,
)

_CODES: Final = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.int16)

#: Node of each code of a ``node`` column, by the code's byte; -1 of absent pages.
NODE_OF_CODE: Final = np.where(_CODES <= FIXED, FIXED - _CODES, _CODES).astype(np.int8)


class PageColumns(NamedTuple):
    """What selection needs of every page, apart from heat; shape ``(n,)``.

    ``size`` is in 4 KiB pages; ``tier`` is -1 for pages that are not movable.
    """

    size: Uint16s
    tier: Int8s
    wear: Uint8s


class PageRates(NamedTuple):
    """How hot pages are; shape ``(n,)``.

    ``rate`` is in accesses per second and 4 KiB page, times the priority of the process,
    ``support`` the number of samples behind it.
    """

    rate: Float32s
    support: Float32s


def tier_of_code(tier_of_node: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """Return the tier of each code of a ``node`` column, by its byte; -1 if it is unmovable."""
    tier = np.full(256, -1, np.int8)
    tier[: len(tier_of_node)] = tier_of_node
    return tier


def first_rows(chunks: int, columns: ChunkColumns) -> npt.NDArray[np.int64]:
    """Return the first row of each chunk, and the number of rows; shape ``(chunks + 1,)``."""
    resident = columns.resident[:chunks]
    first = np.zeros(chunks + 1, np.int64)
    np.cumsum(np.where(columns.huge[:chunks], resident > 0, resident), out=first[1:])
    return first


@kernel
def collect_pages(
    columns: ChunkColumns, first: Int64s, pinned: Bools, tier_of_code: Int8s, pages: PageColumns
) -> None:
    """Fill ``pages``; ``pinned`` is by process, ``tier_of_code`` as of :func:`tier_of_code`."""
    code, wear, process, huge = columns.node, columns.wear, columns.process, columns.huge
    size, tier, worn = pages
    for chunk in range(len(first) - 1):
        row, end = first[chunk], first[chunk + 1]
        fixed = pinned[process[chunk]]
        if huge[chunk] or end == row:
            if end > row:
                size[row] = CHUNK_PAGES
                tier[row] = -1 if fixed else tier_of_code[code[chunk, 0] & 255]
                worn[row] = wear[chunk, 0]
            continue
        first_code, alike = code[chunk, 0], True
        for i in range(CHUNK_PAGES):
            alike &= code[chunk, i] == first_code
        if alike and end - row == CHUNK_PAGES:
            only = -1 if fixed else tier_of_code[first_code & 255]
            for i in range(CHUNK_PAGES):
                size[row + i] = 1
                tier[row + i] = only
                worn[row + i] = wear[chunk, i]
            continue
        for i in range(CHUNK_PAGES):
            if code[chunk, i] == ABSENT or row == end:
                continue
            size[row] = 1
            tier[row] = -1 if fixed else tier_of_code[code[chunk, i] & 255]
            worn[row] = wear[chunk, i]
            row += 1


@kernel
def locate(rows: Int64View, huge: Bools, node: Int8Plane, first: Int64s, number: Int64s) -> None:
    """Set ``number`` to each row's page: the row of its chunk times 512, plus its position."""
    for i in range(len(rows)):
        low, high = 0, len(first) - 1
        while high - low > 1:
            middle = (low + high) // 2
            if first[middle] <= rows[i]:
                low = middle
            else:
                high = middle
        position = rows[i] - first[low]
        if not huge[low] and first[low + 1] - first[low] < CHUNK_PAGES:
            left = position
            position = -1
            while left >= 0 and position < CHUNK_PAGES - 1:
                position += 1
                left -= node[low, position] != ABSENT
        number[i] = low * CHUNK_PAGES + position
