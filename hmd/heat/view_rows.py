# SPDX-License-Identifier: MIT
"""The rows of a page view: which the table has, and their columns.

Each row has a storage index. A base page: ``page_slot * 512 + page``. A chunk that is one row,
since it is a huge page or coarse: ``page_slots * 512 + chunk``. Absent pages have no row. Costs
about 1 ns per row to list and 3 ns to gather.

:func:`weigh_rows` sums what the samples of a tick weigh at some rows of a view. These rows are in a
hash table of their own, which the cache holds: samples of other rows are passed over without a
search in the heat table. Costs about 5 ns per sample and 30 ns per row.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import (
    Bools,
    Float32s,
    Float64s,
    Int8s,
    Int32s,
    Int32View,
    Int64Plane,
    Int64s,
    Uint8s,
    Uint16s,
    Uint64s,
    Uint64View,
    inline,
    kernel,
)
from hmd.base.units import PAGE_BYTES, PAGE_SHIFT
from hmd.heat.chunks import (
    ADDRESS_BITS,
    EMPTY,
    ChunkColumns,
    TableRates,
    find_position,
    node_of,
)
from hmd.heat.geometry import ABSENT, CHUNK_BYTES, CHUNK_PAGES

_MAX_MINORITY: Final = 16
_CHUNK_MASK: Final = np.uint64(CHUNK_BYTES - 1)
# A key has a bit for rows that are chunks, and the page number.
_PAGE_BITS: Final = ADDRESS_BITS - PAGE_SHIFT


class PageColumns(NamedTuple):
    """What a view has of every page, apart from heat; shape ``(n,)``.

    ``chunk`` is the row of its chunk. ``size`` is in base pages; ``tier`` is -1 for pages that are
    not movable, ``node`` where a page lies, ``idle`` as hmd.heat.chunks encodes it.
    """

    chunk: Int64s
    size: Uint16s
    tier: Int8s
    node: Int8s
    wear: Uint8s
    idle: Uint8s


class PageRates(NamedTuple):
    """How hot pages are; shape ``(n,)``. Units are those of :class:`hmd.heat.chunks.TableRates`."""

    rate: Float32s
    effective_samples: Float32s


class AskedRows(NamedTuple):
    """Rows whose samples are summed; shape ``(k,)``.

    ``process``: slot, negative to skip the row. ``address``: first byte. ``whole``: whether the row
    has all samples of its chunk of 2 MiB.
    """

    process: Int32s
    address: Uint64s
    whole: Bools


def tier_of_code(tier_of_node: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """Return the tier of each code of a ``node`` column, by its byte; -1 if it is unmovable."""
    tier = np.full(256, -1, np.int8)
    tier[: len(tier_of_node)] = tier_of_node
    return tier


@inline
def is_mixed(minority_pages: int, resident: int) -> bool:
    """Return whether too many pages of a coarse chunk are elsewhere for it to move as one row."""
    return bool(minority_pages * _MAX_MINORITY > resident)


@inline
def huge_page_idle(slot: np.int64, columns: ChunkColumns) -> np.uint8:
    """Return the idle time of a huge page: that of the page in it which was sampled last."""
    youngest: np.uint8 = columns.idle[slot, 0]
    for i in range(CHUNK_PAGES):
        youngest = min(youngest, columns.idle[slot, i])
    return youngest


@kernel
def count_rows(chunks: int, columns: ChunkColumns) -> int:
    """Return the number of rows that all pages of the table take."""
    rows = 0
    for chunk in range(chunks):
        resident = int(columns.resident[chunk])
        one = int(columns.huge[chunk]) | int(columns.page_slot[chunk] < 0)
        rows += min(resident, 1) if one else resident
    return rows


@kernel
def count_shown(process: Int32s, pages: PageColumns, count: Int64Plane) -> None:
    """Add the base pages of movable rows to ``count``, shape ``(processes, nodes)``."""
    for row in range(len(process)):
        node = pages.node[row]
        if pages.tier[row] >= 0 and node < count.shape[1]:
            count[process[row], node] += pages.size[row]


@kernel
def list_rows(chunks: int, columns: ChunkColumns, storage_index: Int64s) -> int:
    """Fill the storage indexes of all rows, by chunk and page; return how many there are."""
    end = 0
    first_chunk = len(columns.owner) * CHUNK_PAGES
    for chunk in range(chunks):
        slot = columns.page_slot[chunk]
        if columns.resident[chunk] == 0:
            continue
        if slot < 0 or columns.huge[chunk]:
            storage_index[end] = first_chunk + chunk
            end += 1
            continue
        for i in range(CHUNK_PAGES):
            if columns.node[slot, i] != ABSENT:
                storage_index[end] = slot * CHUNK_PAGES + i
                end += 1
    return end


@kernel
def gather_pages(
    storage_index: Int64s,
    columns: ChunkColumns,
    pinned: Bools,
    tier_of_code: Int8s,
    pages: PageColumns,
) -> None:
    """Fill ``pages``; ``pinned`` is by process, ``tier_of_code`` as of :func:`tier_of_code`."""
    first_chunk = len(columns.owner) * CHUNK_PAGES
    for at in range(len(storage_index)):
        stays = False
        if storage_index[at] < first_chunk:
            slot, page = storage_index[at] // CHUNK_PAGES, storage_index[at] % CHUNK_PAGES
            chunk = np.int64(columns.owner[slot])
            code, size = columns.node[slot, page], 1
            pages.wear[at], pages.idle[at] = columns.wear[slot, page], columns.idle[slot, page]
        else:
            chunk = storage_index[at] - first_chunk
            slot = np.int64(columns.page_slot[chunk])
            if slot < 0:
                code = columns.chunk_node[chunk]
                size = columns.resident[chunk] - columns.minority_pages[chunk]
                pages.wear[at], pages.idle[at] = (
                    columns.chunk_wear[chunk],
                    columns.chunk_idle[chunk],
                )
                stays = is_mixed(columns.minority_pages[chunk], columns.resident[chunk])
            else:
                code, size = columns.node[slot, 0], CHUNK_PAGES
                pages.wear[at], pages.idle[at] = (
                    columns.wear[slot, 0],
                    huge_page_idle(slot, columns),
                )
        stays |= pinned[columns.process[chunk]]
        pages.chunk[at], pages.size[at] = chunk, size
        pages.tier[at] = -1 if stays else tier_of_code[int(code) & 255]
        pages.node[at] = node_of(code)


@kernel
def gather_addresses(
    storage_index: Int64s, chunk: Int64s, columns: ChunkColumns, address: Uint64s
) -> None:
    """Fill ``address`` with that of the first byte of each row, which is in ``chunk``."""
    first_chunk = len(columns.owner) * CHUNK_PAGES
    for at in range(len(storage_index)):
        page = storage_index[at] & (CHUNK_PAGES - 1) if storage_index[at] < first_chunk else 0
        address[at] = columns.address[chunk[at]] + np.uint64(page) * np.uint64(PAGE_BYTES)


@kernel
def gather_rates(storage_index: Int64s, table: TableRates, pages: PageRates) -> None:
    """Fill ``pages`` from the rates of the table."""
    rate, samples = table.page_rate.reshape(-1), table.page_samples.reshape(-1)
    first_chunk = len(rate)
    for at in range(len(storage_index)):
        if storage_index[at] < first_chunk:
            pages.rate[at] = rate[storage_index[at]]
            pages.effective_samples[at] = samples[storage_index[at]]
        else:
            pages.rate[at] = table.chunk_rate[storage_index[at] - first_chunk]
            pages.effective_samples[at] = table.chunk_samples[storage_index[at] - first_chunk]


@inline
def _row_key(slot: np.int64, address: np.uint64, whole: bool) -> np.int64:
    """Return the key of a page, or of a chunk."""
    first = address & ~_CHUNK_MASK if whole else address
    page = np.int64(first >> np.uint64(PAGE_SHIFT))
    return (((slot << _PAGE_BITS) | page) << 1) | np.int64(whole)


@kernel
def weigh_rows(
    process: Int32View,
    address: Uint64View,
    weight: Float32s,
    rows: AskedRows,
    totals: Float64s,
    row_weight: Float64s,
) -> None:
    """Fill ``row_weight``, shape ``(k,)``, and add to ``totals``, shape ``(processes,)``.

    ``process``, ``address`` and ``weight`` are of samples. A row may be asked for several times.
    """
    size = 64
    while size < 2 * len(row_weight):
        size *= 2
    # Keys at even positions, as hmd.heat.chunks looks them up; the sum of each is at half of that.
    keys, sums = np.full(2 * size, EMPTY, np.int64), np.zeros(size, np.float64)
    for row in range(len(row_weight)):
        if rows.process[row] >= 0:
            key = _row_key(np.int64(rows.process[row]), rows.address[row], rows.whole[row])
            keys[find_position(keys, key)] = key
    for i in range(len(weight)):
        slot = np.int64(process[i])
        if slot < 0 or slot >= len(totals):
            continue
        totals[slot] += weight[i]
        if address[i] >> np.uint64(ADDRESS_BITS):
            continue
        for whole in (False, True):
            at = find_position(keys, _row_key(slot, address[i], whole))
            if keys[at] != EMPTY:
                sums[at // 2] += weight[i]
    for row in range(len(row_weight)):
        row_weight[row] = 0.0
        if rows.process[row] >= 0:
            key = _row_key(np.int64(rows.process[row]), rows.address[row], rows.whole[row])
            row_weight[row] = sums[find_position(keys, key) // 2]
