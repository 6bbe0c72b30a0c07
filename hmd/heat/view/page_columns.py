"""Kernels that turn the table's chunks into the flat rows of a page view.

A row is known by its number: of a page, its row of pages times 512, plus its position; of a chunk
that is one row, the row of the chunk after all those. Absent pages have no row. A huge page has
one, and so has a chunk that is counted as a whole. Costs about 1 ns per row to list and 3 ns to
gather.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.heat.chunk_columns import ChunkColumns, TableRates
from hmd.heat.geometry import ABSENT, CHUNK_PAGES, FIXED
from hmd.heat.kernels import (
    Bools,
    Float32s,
    Int8s,
    Int32s,
    Int64Plane,
    Int64s,
    Uint8s,
    Uint16s,
    Uint64s,
    inline,
    kernel,
)
from hmd.units import PAGE_BYTES

#: A chunk that is counted as a whole is movable while at most one page in this many is elsewhere.
STRAYS: Final = 16


class PageColumns(NamedTuple):
    """What a view has of every page, apart from heat; shape ``(n,)``.

    ``chunk`` is the row of its chunk. ``size`` is in 4 KiB pages; ``tier`` is -1 for pages that are
    not movable, ``node`` where a page lies, ``idle`` as hmd.heat.idle_age encodes it.
    """

    chunk: Int64s
    size: Uint16s
    tier: Int8s
    node: Int8s
    wear: Uint8s
    idle: Uint8s

    @classmethod
    def empty(cls, rows: int) -> PageColumns:
        """Return columns to be filled."""
        return cls(
            np.empty(rows, np.int64),
            np.empty(rows, np.uint16),
            np.empty(rows, np.int8),
            np.empty(rows, np.int8),
            np.empty(rows, np.uint8),
            np.empty(rows, np.uint8),
        )


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


@kernel
def count_rows(chunks: int, columns: ChunkColumns) -> int:
    """Return the number of rows that all pages of the table take."""
    rows = 0
    for chunk in range(chunks):
        resident = int(columns.resident[chunk])
        one = int(columns.huge[chunk]) | int(columns.detail[chunk] < 0)
        rows += min(resident, 1) if one else resident
    return rows


@kernel
def count_shown(process: Int32s, pages: PageColumns, count: Int64Plane) -> None:
    """Add the 4 KiB pages of movable rows to ``count``, shape ``(processes, nodes)``."""
    for row in range(len(process)):
        node = pages.node[row]
        if pages.tier[row] >= 0 and node < count.shape[1]:
            count[process[row], node] += pages.size[row]


@kernel
def list_rows(chunks: int, columns: ChunkColumns, number: Int64s) -> int:
    """Fill the numbers of all rows, by chunk and page; return how many there are."""
    end = 0
    wholes = len(columns.owner) * CHUNK_PAGES
    for chunk in range(chunks):
        row = columns.detail[chunk]
        if columns.resident[chunk] == 0:
            continue
        if row < 0 or columns.huge[chunk]:
            number[end] = wholes + chunk
            end += 1
            continue
        for i in range(CHUNK_PAGES):
            if columns.node[row, i] != ABSENT:
                number[end] = row * CHUNK_PAGES + i
                end += 1
    return end


@inline
def _youngest(row: np.int64, columns: ChunkColumns) -> np.uint8:
    """Return the idle time of a huge page: that of the page in it which was sampled last."""
    youngest: np.uint8 = columns.idle[row, 0]
    for i in range(CHUNK_PAGES):
        youngest = min(youngest, columns.idle[row, i])
    return youngest


@kernel
def gather_pages(
    number: Int64s, columns: ChunkColumns, pinned: Bools, tier_of_code: Int8s, pages: PageColumns
) -> None:
    """Fill ``pages``; ``pinned`` is by process, ``tier_of_code`` as of :func:`tier_of_code`."""
    wholes = len(columns.owner) * CHUNK_PAGES
    for at in range(len(number)):
        if number[at] < wholes:
            row, page = number[at] // CHUNK_PAGES, number[at] % CHUNK_PAGES
            chunk = np.int64(columns.owner[row])
            code, size = columns.node[row, page], 1
            pages.wear[at], pages.idle[at] = columns.wear[row, page], columns.idle[row, page]
            stays = False
        else:
            chunk = number[at] - wholes
            row = np.int64(columns.detail[chunk])
            stays = False
            if row < 0:
                code, size = columns.code[chunk], columns.resident[chunk] - columns.strays[chunk]
                pages.wear[at], pages.idle[at] = columns.worn[chunk], columns.rested[chunk]
                stays = columns.strays[chunk] * STRAYS > columns.resident[chunk]
            else:
                code, size = columns.node[row, 0], CHUNK_PAGES
                pages.wear[at], pages.idle[at] = columns.wear[row, 0], _youngest(row, columns)
        stays |= pinned[columns.process[chunk]]
        pages.chunk[at], pages.size[at] = chunk, size
        pages.tier[at] = -1 if stays else tier_of_code[code & 255]
        pages.node[at] = FIXED - code if code <= FIXED else code


@kernel
def gather_addresses(
    number: Int64s, chunk: Int64s, columns: ChunkColumns, address: Uint64s
) -> None:
    """Fill ``address`` with that of the first byte of each row, which is in ``chunk``."""
    wholes = len(columns.owner) * CHUNK_PAGES
    for at in range(len(number)):
        page = number[at] & (CHUNK_PAGES - 1) if number[at] < wholes else 0
        address[at] = columns.address[chunk[at]] + np.uint64(page) * np.uint64(PAGE_BYTES)


@kernel
def gather_rates(number: Int64s, table: TableRates, pages: PageRates) -> None:
    """Fill ``pages`` from the rates of the table."""
    rate, support = table.page_rate.reshape(-1), table.page_support.reshape(-1)
    wholes = len(rate)
    for at in range(len(number)):
        if number[at] < wholes:
            pages.rate[at], pages.support[at] = rate[number[at]], support[number[at]]
        else:
            chunk = number[at] - wholes
            pages.rate[at], pages.support[at] = table.chunk_rate[chunk], table.chunk_support[chunk]
