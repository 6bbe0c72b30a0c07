"""How many rows of a large table may leave each tier, or come to it, by the heat they compete with.

Takes rates and their bins (:mod:`hmd.heat.view.row_bins`), gives a histogram for each side of each
tier, and the sums over all rows that may move: :mod:`hmd.heat.view.row_selection` finds from them
which rows a view shows. Costs about 3 ns per row of the table.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from hmd.heat.chunk_columns import ChunkColumns, TableRates
from hmd.heat.geometry import ABSENT, CHUNK_PAGES
from hmd.heat.kernels import (
    Bools,
    Float64Plane,
    Int8s,
    Int16s,
    Int32Cube,
    Int32Plane,
    Int64Plane,
    Int64s,
    inline,
    kernel,
)
from hmd.heat.view.heat_bins import BINS
from hmd.heat.view.page_columns import STRAYS
from hmd.heat.view.row_bins import RowBins

# Neighbours mostly are of one bin: in turn they are counted in this many histograms, since an
# addition has to wait for the one before it to the same bin.
_LANES: Final = 4
# Chunks that are compared at a time.
_RUN: Final = 64
# A bit that makes a bin higher than all others: a minimum with it needs no branch.
_ABOVE_BINS: Final = np.int16(12)


class Beyond(NamedTuple):
    """Sums over the movable pages that a view leaves out; shape ``(processes, nodes)``.

    ``accesses`` per second, with priorities, and 4 KiB ``pages``.
    """

    accesses: Float64Plane
    pages: Int64Plane

    @classmethod
    def none(cls, processes: int, nodes: int) -> Beyond:
        """Return the sums over no pages."""
        return cls(
            np.zeros((processes, nodes)),
            np.zeros((processes, nodes), np.int64),
        )


class TierCodes(NamedTuple):
    """Which pages may move: those of processes not ``pinned``, of a code that has a tier.

    ``tier_of_code`` is as of :func:`hmd.heat.view.page_columns.tier_of_code`.
    """

    pinned: Bools
    tier_of_code: Int8s


class Sides(NamedTuple):
    """Rows by tier and bin, shape ``(tiers, bins)``: those that may leave, and that may come.

    ``highest`` is the bin of the hottest row of each chunk that may come, -1 without one,
    ``lowest`` that of the coldest row that may leave.
    """

    leaving: Int64Plane
    coming: Int64Plane
    highest: Int16s
    lowest: Int16s

    @classmethod
    def of(cls, tiers: int, chunks: int) -> Sides:
        """Return sides without rows."""
        return cls(
            np.zeros((tiers, BINS), np.int64),
            np.zeros((tiers, BINS), np.int64),
            np.empty(chunks, np.int16),
            np.empty(chunks, np.int16),
        )


@inline
def _store(place: tuple[int, int], pages: int, accesses: float, beyond: Beyond) -> None:
    """Add the sums over rows of one process and node."""
    beyond.accesses[place] += accesses
    beyond.pages[place] += pages


@inline
def _are_alike(
    begin: int, end: int, process: np.int32, code: np.int8, columns: ChunkColumns
) -> bool:
    """Return whether all these chunks are of a process, without detail, and resident on one node.

    ``code`` is that of the node. Without branches, so that it vectorises.
    """
    detail, resident = columns.detail[begin:end], columns.resident[begin:end]
    strays, codes = columns.strays[begin:end], columns.code[begin:end]
    processes, other = columns.process[begin:end], np.int32(0)
    for i in range(len(detail)):
        stray = np.int32(strays[i]) | np.int32(codes[i] ^ code) | (processes[i] ^ process)
        other |= stray | ~(detail[i] >> np.int32(31)) | np.int32(resident[i] <= 0)
    return bool(other == 0)


@inline
def _run_end(begin: int, chunks: int, columns: ChunkColumns) -> int:
    """Return the end of the chunks from ``begin`` on that are counted alike.

    Those are of one process, without detail, and resident on one node. ``begin`` if it is not such
    a chunk.
    """
    process, code = columns.process[begin], columns.code[begin]
    end = begin
    while end + _RUN <= chunks and _are_alike(end, end + _RUN, process, code, columns):
        end += _RUN
    while (
        end < chunks
        and columns.code[end] == code
        and columns.detail[end] < 0
        and columns.strays[end] == 0
        and columns.resident[end] > 0
        and columns.process[end] == process
    ):
        end += 1
    return end


@inline
def _count_run(
    run: tuple[int, int, int],
    columns: ChunkColumns,
    rates: TableRates,
    bins: RowBins,
    sides: Sides,
    lanes: Int32Cube,
    beyond: Beyond,
) -> None:
    """Count a run of chunks that are counted alike: its first, the one after its last, its tier."""
    begin, end, tier = run
    tiers = len(sides.leaving)
    resident, rate = columns.resident[begin:end], rates.chunk_rate[begin:end]
    highest, lowest = sides.highest[begin:end], sides.lowest[begin:end]
    leaving, coming = bins.chunk_leaving[begin:end], bins.chunk_coming[begin:end]
    pages, accesses = 0, 0.0
    for i in range(len(rate)):
        accesses += np.float64(rate[i]) * resident[i]
        pages += int(resident[i])
    _store((int(columns.process[begin]), int(columns.code[begin])), pages, accesses, beyond)
    if tier < tiers - 1:
        for i in range(len(rate)):
            lowest[i] = leaving[i]
            lanes[tier, i % _LANES, np.int64(leaving[i]) + 1] += 1
    if tier > 0:
        for i in range(len(rate)):
            highest[i] = coming[i]
            lanes[tiers + tier, i % _LANES, np.int64(coming[i]) + 1] += 1


@inline
def _count_whole(
    chunk: int,
    columns: ChunkColumns,
    rates: TableRates,
    bins: RowBins,
    tiers: TierCodes,
    sides: Sides,
    beyond: Beyond,
) -> None:
    """Count a chunk that is one row."""
    row, resident, p = columns.detail[chunk], columns.resident[chunk], columns.process[chunk]
    if resident == 0 or tiers.pinned[p] or (row >= 0 and not columns.huge[chunk]):
        return
    code = int(columns.code[chunk] if row < 0 else columns.node[row, 0])
    strays = int(columns.strays[chunk]) if row < 0 else 0
    tier = int(tiers.tier_of_code[code & 255])
    if tier < 0 or strays * STRAYS > resident:
        return
    size = int(resident) - strays if row < 0 else CHUNK_PAGES
    _store((int(p), code), size, np.float64(rates.chunk_rate[chunk]) * size, beyond)
    if tier < len(sides.leaving) - 1:
        sides.lowest[chunk] = bins.chunk_leaving[chunk]
        sides.leaving[tier, bins.chunk_leaving[chunk]] += 1
    if tier > 0:
        sides.highest[chunk] = bins.chunk_coming[chunk]
        if bins.chunk_coming[chunk] >= 0:
            sides.coming[tier, bins.chunk_coming[chunk]] += 1


@inline
def _count_wholes(
    chunks: int,
    columns: ChunkColumns,
    rates: TableRates,
    bins: RowBins,
    tiers: TierCodes,
    sides: Sides,
    lanes: Int32Cube,
    beyond: Beyond,
) -> None:
    """Count chunks that are one row: of terabytes nearly all are, in long runs."""
    sides.highest[:], sides.lowest[:] = -1, BINS
    begin = 0
    while begin < chunks:
        end = _run_end(begin, chunks, columns)
        if end == begin:
            _count_whole(begin, columns, rates, bins, tiers, sides, beyond)
            begin += 1
            continue
        tier = int(tiers.tier_of_code[columns.code[begin] & 255])
        if tier >= 0 and not tiers.pinned[columns.process[begin]]:
            _count_run((begin, end, tier), columns, rates, bins, sides, lanes, beyond)
        begin = end


@inline
def _count_bins(at: Int16s, node: Int8s, code: np.int8, lanes: Int32Plane) -> None:
    """Count the pages of a code by bin, from bin -1 on; others count as of bin -1."""
    for i in range(0, CHUNK_PAGES, _LANES):
        for lane in range(_LANES):
            here = np.int64(node[i + lane] == code)
            lanes[lane, (np.int64(at[i + lane]) + 1) * here] += 1


@inline
def _add_lanes(lanes: Int32Plane, count: Int64s) -> None:
    """Add the histograms of all lanes, apart from bin -1."""
    for b in range(BINS):
        for lane in range(_LANES):
            count[b] += lanes[lane, b + 1]


@inline
def _sum_code(
    row: int, code: np.int8, columns: ChunkColumns, rates: TableRates
) -> tuple[int, float]:
    """Return how many pages of a chunk are of a code, and their accesses."""
    node, rate = columns.node[row], rates.page_rate[row]
    pages, accesses = 0, 0.0
    for i in range(CHUNK_PAGES):
        here = node[i] == code
        pages += int(here)
        accesses += np.float64(rate[i]) if here else 0.0
    return pages, accesses


@inline
def _lowest(at: Int16s, node: Int8s, code: np.int8) -> int:
    """Return the lowest bin of the pages of a code, ``BINS`` where there are none."""
    least = np.int16(BINS)
    for i in range(CHUNK_PAGES):
        other = np.int16(node[i] != code)
        least = min(least, np.int16(at[i] | (other << _ABOVE_BINS)))
    return int(least)


@inline
def _highest(at: Int16s, node: Int8s, code: np.int8) -> int:
    """Return the highest bin of the pages of a code, -1 where there are none."""
    most = np.int16(-1)
    for i in range(CHUNK_PAGES):
        other = np.int16(node[i] != code)
        most = max(most, np.int16(at[i] | -other))
    return int(most)


@inline
def _count_pages(
    row: int,
    p: int,
    columns: ChunkColumns,
    tier_of_code: Int8s,
    rates: TableRates,
    bins: RowBins,
    lanes: Int32Cube,
    beyond: Beyond,
) -> tuple[int, int]:
    """Count the pages of a chunk in detail: a pass per code that occurs, without branches.

    ``lanes`` has histograms of the rows that may leave each tier, then of those that may come.
    Returns the bins of the hottest that may come and of the coldest that may leave.
    """
    node, tiers = columns.node[row], len(lanes) // 2
    most, least, left = -1, BINS, 0
    for i in range(CHUNK_PAGES):
        left += int(node[i] != ABSENT)
    for on in range(beyond.accesses.shape[1]):
        code, tier = np.int8(on), int(tier_of_code[on])
        if left <= 0:
            break
        if tier < 0:
            continue
        pages, accesses = _sum_code(row, code, columns, rates)
        if pages == 0:
            continue
        left -= pages
        _store((p, on), pages, accesses, beyond)
        if tier < tiers - 1:
            _count_bins(bins.page_leaving[row], node, code, lanes[tier])
            least = min(least, _lowest(bins.page_leaving[row], node, code))
        if tier > 0:
            _count_bins(bins.page_coming[row], node, code, lanes[tiers + tier])
            most = max(most, _highest(bins.page_coming[row], node, code))
    return most, least


@kernel
def count_sides(
    chunks: int,
    columns: ChunkColumns,
    rates: TableRates,
    bins: RowBins,
    tiers: TierCodes,
    sides: Sides,
    beyond: Beyond,
) -> None:
    """Fill ``sides`` and add all movable rows to ``beyond``."""
    count = len(sides.leaving)
    lanes = np.zeros((2 * count, _LANES, BINS + 1), np.int32)
    _count_wholes(chunks, columns, rates, bins, tiers, sides, lanes, beyond)
    for row in range(len(columns.owner)):
        chunk = int(columns.owner[row])
        if chunk < 0 or columns.huge[chunk] or columns.resident[chunk] == 0:
            continue
        p = int(columns.process[chunk])
        if tiers.pinned[p]:
            continue
        most, least = _count_pages(row, p, columns, tiers.tier_of_code, rates, bins, lanes, beyond)
        sides.highest[chunk], sides.lowest[chunk] = most, least
    for tier in range(count):
        _add_lanes(lanes[tier], sides.leaving[tier])
        _add_lanes(lanes[count + tier], sides.coming[tier])
