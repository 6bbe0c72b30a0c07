"""The index of chunks: from a process and an address to the chunk, and the page, of the table.

Chunks are found by a hash of process slot and chunk number, with open addressing: the index has a
key and the row of its chunk in turn (:class:`hmd.heat.chunk_columns.ChunkIndex`).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hmd.heat.chunk_columns import ChunkColumns, ChunkIndex
from hmd.heat.geometry import ABSENT, CHUNK_PAGES, FIXED
from hmd.heat.kernels import (
    Int16s,
    Int32s,
    Int32View,
    Int64s,
    Uint64s,
    Uint64View,
    inline,
    kernel,
)

#: log2 of the bytes in a chunk and in a page.
CHUNK_SHIFT: Final = 21
PAGE_SHIFT: Final = 12
#: User addresses have at most 56 bits (five-level paging), so a chunk number has 35.
ADDRESS_BITS: Final = 56
NUMBER_BITS: Final = ADDRESS_BITS - CHUNK_SHIFT
EMPTY: Final = -1
"""The key of a position without a chunk."""
# Fibonacci hashing (Knuth, TAOCP 3, 6.4): 2**64 over the golden ratio.
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


@inline
def first_position(places: Int64s, key: np.int64) -> np.int64:
    """Return where among the places the search for ``key`` begins."""
    # The highest bits: neighbours lie apart.
    high = (np.uint64(key) * _GOLDEN) >> np.uint64(32)
    return 2 * np.int64((high * np.uint64(len(places) // 2)) >> np.uint64(32))


@inline
def find_position(places: Int64s, key: np.int64) -> np.int64:
    """Return where among the places ``key`` is, or belongs; its row follows."""
    at = first_position(places, key)
    while places[at] != key and places[at] != EMPTY:
        at = (at + 2) & (len(places) - 1)
    return at


@kernel
def insert_chunks(
    begin: int, end: int, process: Int32s, address: Uint64s, index: ChunkIndex
) -> None:
    """Add the chunks of some rows to an index, which must have more positions than chunks."""
    places = index.places
    for chunk in range(begin, end):
        number = np.int64(address[chunk] >> np.uint64(CHUNK_SHIFT))
        key = (np.int64(process[chunk]) << NUMBER_BITS) | number
        at = find_position(places, key)
        places[at], places[at + 1] = key, chunk


@kernel
def find_chunks(process: int, addresses: Uint64View, index: ChunkIndex, found: Int32s) -> None:
    """Set ``found`` to the row of each address's chunk, -1 where there is none."""
    places = index.places
    for i in range(len(addresses)):
        number = np.int64(addresses[i] >> np.uint64(CHUNK_SHIFT))
        at = find_position(places, (np.int64(process) << NUMBER_BITS) | number)
        found[i] = -1 if places[at] == EMPTY else places[at + 1]


@kernel
def find_nodes(
    process: Int32View,
    address: Uint64View,
    index: ChunkIndex,
    columns: ChunkColumns,
    found: Int16s,
) -> None:
    """Set ``found`` to the node of each address's page, -1 where it is not known.

    Pages of a chunk that is counted as a whole are taken to lie where most of them do.
    """
    places = index.places
    chunk, last = np.int64(-1), np.int64(-1)
    for i in range(len(address)):
        number = np.int64(address[i] >> np.uint64(CHUNK_SHIFT))
        key = (np.int64(process[i]) << NUMBER_BITS) | number
        if key != last:
            at = find_position(places, key)
            chunk = np.int64(-1) if places[at] == EMPTY else places[at + 1]
            last = key
        found[i] = -1
        if chunk >= 0:
            page = np.int64(address[i] >> np.uint64(PAGE_SHIFT)) & (CHUNK_PAGES - 1)
            row = np.int64(columns.detail[chunk])
            code = np.int64(columns.node[row, page] if row >= 0 else columns.code[chunk])
            found[i] = FIXED - code if code <= FIXED else code


@kernel
def number_addresses(
    process: Int32View,
    address: Uint64View,
    index: ChunkIndex,
    columns: ChunkColumns,
    found: Int64s,
) -> None:
    """Set ``found`` to the number of the row at each address of a process, -1 where none is known.

    Rows are numbered as :mod:`hmd.heat.view.page_columns` says.
    """
    places, wholes = index.places, len(columns.owner) * CHUNK_PAGES
    for i in range(len(address)):
        found[i] = -1
        if process[i] < 0 or address[i] >> np.uint64(ADDRESS_BITS):
            continue
        number = np.int64(address[i] >> np.uint64(CHUNK_SHIFT))
        at = find_position(places, (np.int64(process[i]) << NUMBER_BITS) | number)
        if places[at] == EMPTY:
            continue
        chunk = places[at + 1]
        row, huge = np.int64(columns.detail[chunk]), columns.huge[chunk]
        page = np.int64(address[i] >> np.uint64(PAGE_SHIFT)) & (CHUNK_PAGES - 1)
        code = columns.code[chunk]
        if row >= 0:
            code = columns.node[row, 0 if huge else page]
        if code != ABSENT:
            found[i] = wholes + chunk if row < 0 or huge else row * CHUNK_PAGES + page
