# SPDX-License-Identifier: MIT
"""Which rows of a large table a view shows: candidates for moves, and pages that must leave.

A plan moves few pages: the hottest of the slower tiers and the coldest of the faster ones. Rows are
ordered by the heat with which they compete (:mod:`hmd.policy.planning`): those that may be demoted
by the upper bound of what their samples allow, those that may be promoted by the lower bound. Per
tier and direction as many rows are taken as a policy can afford; a cursor that goes round the table
adds others in turn, for policies that order pages by something else. All movable pages that are not
shown are given as totals. Costs about 1 ns per row of the table for the bins (the exponent of a
rate and the first 3 bits of its mantissa), 3 ns for their histograms, and 30 ns per row shown.

Pages must leave drained nodes, nodes of other pins, and memory that is paged out: the hottest or
the longest idle of them where there are more than one plan takes. So a plan of any table is made in
pieces, tick by tick, with memory for its own rows only. Costs about 4 ns per row of the table.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import (
    Bools,
    Float32s,
    Float64Plane,
    Int8Plane,
    Int8s,
    Int16Plane,
    Int16s,
    Int32Cube,
    Int32Plane,
    Int64Plane,
    Int64s,
    inline,
    kernel,
)
from hmd.heat.chunks import NEW, ChunkColumns, TableRates, huge_page_idle, is_mixed
from hmd.heat.rates import ANSCOMBE
from hmd.heat.settings import ABSENT, CHUNK_PAGES

#: Number of bins of heat that is not negative.
BINS: Final = 2048
# The other bits of a float's mantissa, which has 23.
_BIN_SHIFT: Final = np.int32(20)

CONFIDENCE: Final = 1.25
"""Standard deviations at which rows are compared: more than the policies' defaults."""
# In single precision, as rates are kept; a standard deviation is half of the transform.
_BOUND: Final = np.float32(CONFIDENCE / 2)
_ANSCOMBE: Final = np.float32(ANSCOMBE)
# Samples that a page needs before it may be promoted.
_MIN_SAMPLES: Final = np.float32(1.0)
_NO_SAMPLES: Final = np.float32(1e-6)

# Neighbours mostly are of one bin: in turn they are counted in this many histograms, since an
# addition has to wait for the one before it to the same bin.
_LANES: Final = 4
# Chunks that are compared at a time.
_RUN: Final = 64
# A bit that makes a bin higher than all others: a minimum with it needs no branch.
_ABOVE_BINS: Final = np.int16(12)
# One row in this many is shown because the cursor has come to it.
_CURSOR_SHARE: Final = 4
# More rows than there are: all of a bin.
_ALL: Final = 1 << 62


class RowBins(NamedTuple):
    """Bins of pages, shape ``(slots, 512)``, and of chunks that are one row, ``(chunks,)``.

    ``demotion`` is the bin at the upper bound, 0 of a row without samples: it is demoted first.
    ``promotion`` is that at the lower bound, -1 of a row with too few samples. Undefined of absent
    pages and free slots.
    """

    page_demotion: Int16Plane
    page_promotion: Int16Plane
    chunk_demotion: Int16s
    chunk_promotion: Int16s


class UnshownTotals(NamedTuple):
    """Movable pages that a view does not show; shape ``(processes, nodes)``.

    ``accesses`` per second, with priorities, and base ``pages``.
    """

    accesses: Float64Plane
    pages: Int64Plane


class TierCodes(NamedTuple):
    """Pages may move of processes not ``pinned``, with a code whose byte has a tier above -1."""

    pinned: Bools
    tier_of_code: Int8s


class CandidateHistograms(NamedTuple):
    """Rows by tier and bin, shape ``(tiers, bins)``: those that may be demoted, and promoted.

    By chunk, ``highest`` is the bin of the hottest row that may be promoted, -1 without one;
    ``lowest`` that of the coldest row that may be demoted.
    """

    demotable: Int64Plane
    promotable: Int64Plane
    highest: Int16s
    lowest: Int16s


class Selection(NamedTuple):
    """What is selected: the storage indexes of rows, and the totals of the others.

    ``cursor`` is the chunk with which the next selection goes on, shape ``(1,)``.
    """

    storage_index: Int64s
    unshown: UnshownTotals
    cursor: Int64s


@inline
def heat_bin(heat: np.float32) -> int:
    """Return the bin of some heat; below 0 for negative heat."""
    return int(np.float32(heat).view(np.int32) >> _BIN_SHIFT)


@kernel
def fill_bins(rate: Float32s, samples: Float32s, demotion: Int16s, promotion: Int16s) -> None:
    """Fill the bins of rows, from rates and effective samples; all shaped ``(n,)``, no branches."""
    for row in range(len(rate)):
        n = max(samples[row], _NO_SAMPLES)
        root = np.sqrt(n + _ANSCOMBE)
        above, below = root + _BOUND, max(root - _BOUND, np.float32(0.0))
        each = rate[row] / n
        demotion[row] = heat_bin(each * above * above) if samples[row] > 0.0 else 0
        promotion[row] = heat_bin(each * below * below) if samples[row] >= _MIN_SAMPLES else -1


@inline
def _add(process_node: tuple[int, int], pages: int, accesses: float, to: UnshownTotals) -> None:
    to.accesses[process_node] += accesses
    to.pages[process_node] += pages


@inline
def _are_alike(
    begin: int, end: int, process: np.int32, code: np.int8, columns: ChunkColumns
) -> bool:
    """Return whether these chunks are coarse, of one process, and resident on one node."""
    slot, resident = columns.page_slot[begin:end], columns.resident[begin:end]
    minority, codes = columns.minority_pages[begin:end], columns.chunk_node[begin:end]
    processes, other = columns.process[begin:end], np.int32(0)
    for i in range(len(slot)):
        differs = np.int32(minority[i]) | np.int32(codes[i] ^ code) | (processes[i] ^ process)
        other |= differs | ~(slot[i] >> np.int32(31)) | np.int32(resident[i] <= 0)
    return bool(other == 0)


@inline
def _alike_end(begin: int, chunks: int, columns: ChunkColumns) -> int:
    """Return the end of the chunks from ``begin`` that are alike, ``begin`` if none are."""
    process, code = columns.process[begin], columns.chunk_node[begin]
    end = begin
    while end + _RUN <= chunks and _are_alike(end, end + _RUN, process, code, columns):
        end += _RUN
    while end < chunks and _are_alike(end, end + 1, process, code, columns):
        end += 1
    return end


@inline
def _count_alike(
    run: tuple[int, int, int],
    columns: ChunkColumns,
    rates: TableRates,
    bins: RowBins,
    histograms: CandidateHistograms,
    lanes: Int32Cube,
    unshown: UnshownTotals,
) -> None:
    """Count chunks that are alike: the first, the one after the last, their tier."""
    begin, end, tier = run
    tiers = len(histograms.demotable)
    resident, rate = columns.resident[begin:end], rates.chunk_rate[begin:end]
    highest, lowest = histograms.highest[begin:end], histograms.lowest[begin:end]
    demotion, promotion = bins.chunk_demotion[begin:end], bins.chunk_promotion[begin:end]
    pages, accesses = 0, 0.0
    for i in range(len(rate)):
        accesses += np.float64(rate[i]) * resident[i]
        pages += int(resident[i])
    on = int(columns.chunk_node[begin])
    _add((int(columns.process[begin]), on), pages, accesses, unshown)
    if tier < tiers - 1:
        for i in range(len(rate)):
            lowest[i] = demotion[i]
            lanes[tier, i % _LANES, np.int64(demotion[i]) + 1] += 1
    if tier > 0:
        for i in range(len(rate)):
            highest[i] = promotion[i]
            lanes[tiers + tier, i % _LANES, np.int64(promotion[i]) + 1] += 1


@inline
def _count_chunk(
    chunk: int,
    columns: ChunkColumns,
    rates: TableRates,
    bins: RowBins,
    tiers: TierCodes,
    histograms: CandidateHistograms,
    unshown: UnshownTotals,
) -> None:
    """Count a chunk that is one row."""
    slot, resident, p = columns.page_slot[chunk], columns.resident[chunk], columns.process[chunk]
    if resident == 0 or tiers.pinned[p] or (slot >= 0 and not columns.huge[chunk]):
        return
    code = int(columns.chunk_node[chunk] if slot < 0 else columns.node[slot, 0])
    tier = int(tiers.tier_of_code[int(code) & 255])
    minority = columns.minority_pages[chunk]
    if tier < 0 or (slot < 0 and is_mixed(minority, resident)):
        return
    size = int(resident) - int(columns.minority_pages[chunk]) if slot < 0 else CHUNK_PAGES
    _add((int(p), code), size, np.float64(rates.chunk_rate[chunk]) * size, unshown)
    if tier < len(histograms.demotable) - 1:
        histograms.lowest[chunk] = bins.chunk_demotion[chunk]
        histograms.demotable[tier, bins.chunk_demotion[chunk]] += 1
    if tier > 0:
        histograms.highest[chunk] = bins.chunk_promotion[chunk]
        if bins.chunk_promotion[chunk] >= 0:
            histograms.promotable[tier, bins.chunk_promotion[chunk]] += 1


@inline
def _count_chunks(
    chunks: int,
    columns: ChunkColumns,
    rates: TableRates,
    bins: RowBins,
    tiers: TierCodes,
    histograms: CandidateHistograms,
    lanes: Int32Cube,
    unshown: UnshownTotals,
) -> None:
    """Count chunks that are one row: of terabytes nearly all are, in long runs that are alike."""
    histograms.highest[:], histograms.lowest[:] = -1, BINS
    begin = 0
    while begin < chunks:
        end = _alike_end(begin, chunks, columns)
        if end == begin:
            _count_chunk(begin, columns, rates, bins, tiers, histograms, unshown)
            begin += 1
            continue
        tier = int(tiers.tier_of_code[int(columns.chunk_node[begin]) & 255])
        if tier >= 0 and not tiers.pinned[columns.process[begin]]:
            _count_alike((begin, end, tier), columns, rates, bins, histograms, lanes, unshown)
        begin = end


@inline
def _count_bins(bins: Int16s, node: Int8s, code: np.int8, lanes: Int32Plane) -> None:
    """Count the pages of a code by bin, from bin -1 on; others count as of bin -1."""
    for i in range(0, CHUNK_PAGES, _LANES):
        for lane in range(_LANES):
            here = np.int64(node[i + lane] == code)
            lanes[lane, (np.int64(bins[i + lane]) + 1) * here] += 1


@inline
def _add_lanes(lanes: Int32Plane, histogram: Int64s) -> None:
    """Add the histograms of all lanes, apart from bin -1."""
    for b in range(BINS):
        for lane in range(_LANES):
            histogram[b] += lanes[lane, b + 1]


@inline
def _sum_code(
    slot: int, code: np.int8, columns: ChunkColumns, rates: TableRates
) -> tuple[int, float]:
    """Return how many pages of a chunk are of a code, and their accesses."""
    node, rate = columns.node[slot], rates.page_rate[slot]
    pages, accesses = 0, 0.0
    for i in range(CHUNK_PAGES):
        here = node[i] == code
        pages += int(here)
        accesses += np.float64(rate[i]) if here else 0.0
    return pages, accesses


@inline
def _lowest_bin(bins: Int16s, node: Int8s, code: np.int8) -> int:
    """Return the lowest bin of the pages of a code, ``BINS`` where there are none."""
    lowest = np.int16(BINS)
    for i in range(CHUNK_PAGES):
        other = np.int16(node[i] != code)
        lowest = min(lowest, np.int16(bins[i] | (other << _ABOVE_BINS)))
    return int(lowest)


@inline
def _highest_bin(bins: Int16s, node: Int8s, code: np.int8) -> int:
    """Return the highest bin of the pages of a code, -1 where there are none."""
    highest = np.int16(-1)
    for i in range(CHUNK_PAGES):
        other = np.int16(node[i] != code)
        highest = max(highest, np.int16(bins[i] | -other))
    return int(highest)


@inline
def _count_pages(
    slot: int,
    p: int,
    columns: ChunkColumns,
    tier_of_code: Int8s,
    rates: TableRates,
    bins: RowBins,
    lanes: Int32Cube,
    unshown: UnshownTotals,
) -> tuple[int, int]:
    """Count the pages of a page slot: a pass per code that occurs, without branches.

    ``lanes`` has histograms of the rows that may be demoted from each tier, then of those that may
    be promoted. Returns the highest bin of the latter and the lowest of the former.
    """
    node, tiers = columns.node[slot], len(lanes) // 2
    highest, lowest, left = -1, BINS, 0
    for i in range(CHUNK_PAGES):
        left += int(node[i] != ABSENT)
    for on in range(unshown.accesses.shape[1]):
        code, tier = np.int8(on), int(tier_of_code[on])
        if left <= 0:
            break
        if tier < 0:
            continue
        pages, accesses = _sum_code(slot, code, columns, rates)
        if pages == 0:
            continue
        left -= pages
        _add((p, on), pages, accesses, unshown)
        if tier < tiers - 1:
            _count_bins(bins.page_demotion[slot], node, code, lanes[tier])
            lowest = min(lowest, _lowest_bin(bins.page_demotion[slot], node, code))
        if tier > 0:
            _count_bins(bins.page_promotion[slot], node, code, lanes[tiers + tier])
            highest = max(highest, _highest_bin(bins.page_promotion[slot], node, code))
    return highest, lowest


@kernel
def count_candidates(
    chunks: int,
    columns: ChunkColumns,
    rates: TableRates,
    bins: RowBins,
    tiers: TierCodes,
    histograms: CandidateHistograms,
    unshown: UnshownTotals,
) -> None:
    """Fill ``histograms`` and add all movable rows to ``unshown``."""
    count = len(histograms.demotable)
    lanes = np.zeros((2 * count, _LANES, BINS + 1), np.int32)
    _count_chunks(chunks, columns, rates, bins, tiers, histograms, lanes, unshown)
    for slot in range(len(columns.owner)):
        chunk = int(columns.owner[slot])
        if chunk < 0 or columns.huge[chunk] or columns.resident[chunk] == 0:
            continue
        p = int(columns.process[chunk])
        if tiers.pinned[p]:
            continue
        highest, lowest = _count_pages(
            slot, p, columns, tiers.tier_of_code, rates, bins, lanes, unshown
        )
        histograms.highest[chunk], histograms.lowest[chunk] = highest, lowest
    for tier in range(count):
        _add_lanes(lanes[tier], histograms.demotable[tier])
        _add_lanes(lanes[count + tier], histograms.promotable[tier])


class _Limits(NamedTuple):
    """The bin of each tier up to which rows are shown, and how many more of that bin.

    Shape ``(tiers, 2)``: for demotion, then for promotion. ``retreats``, shape ``(1,)``, counts how
    often a limit was drawn back.
    """

    bin: Int64Plane
    left: Int64Plane
    retreats: Int64s


@inline
def _find_limits(histograms: CandidateHistograms, max_rows: int) -> _Limits:
    """Return the limits with ``max_rows`` rows of each tier and direction."""
    tiers = len(histograms.demotable)
    bound, left = np.zeros((tiers, 2), np.int64), np.zeros((tiers, 2), np.int64)
    for tier in range(tiers):
        rows, rest, b = histograms.demotable[tier], max_rows, 0
        while b < BINS and rows[b] <= rest:
            rest -= rows[b]
            b += 1
        bound[tier, 0], left[tier, 0] = b, rest
        rows, rest, b = histograms.promotable[tier], max_rows, BINS - 1
        while b >= 0 and rows[b] <= rest:
            rest -= rows[b]
            b -= 1
        bound[tier, 1], left[tier, 1] = b, rest
    limits = _Limits(bound, left, np.zeros(1, np.int64))
    for tier in range(tiers):
        for way in range(2):
            if left[tier, way] == 0:
                _retreat(tier, way, limits)
    return limits


@inline
def _retreat(tier: int, way: int, limits: _Limits) -> None:
    """Draw a limit whose quota is used back to the bin before it: others of its bin are skipped."""
    limits.bin[tier, way] += 1 if way else -1
    limits.left[tier, way] = _ALL
    limits.retreats[0] += 1


@inline
def _farthest(limits: _Limits) -> tuple[int, int]:
    """Return the lowest bin of any tier that is promoted, and the highest that is demoted."""
    lowest_up, highest_down = BINS, -1
    for tier in range(len(limits.bin) - 1):
        lowest_up = min(lowest_up, int(limits.bin[tier + 1, 1]))
        highest_down = max(highest_down, int(limits.bin[tier, 0]))
    return lowest_up, highest_down


class _Reach(NamedTuple):
    """Up to which bin pages are demoted, and from which on promoted, by the byte of their code."""

    demotion: Int16s
    promotion: Int16s


@inline
def _reach(tier_of_code: Int8s, limits: _Limits) -> _Reach:
    """Return how far the rows of each code are shown; of codes that stay, none."""
    last = len(limits.bin) - 1
    demotion, promotion = np.full(256, -1, np.int16), np.full(256, BINS, np.int16)
    for code in range(256):
        tier = tier_of_code[code]
        if 0 <= tier < last:
            demotion[code] = limits.bin[tier, 0]
        if tier > 0:
            promotion[code] = limits.bin[tier, 1]
    return _Reach(demotion, promotion)


@inline
def _pages_within(
    node: Int8s, demotion: Int16s, promotion: Int16s, reach: _Reach, into: Int16s
) -> int:
    """Fill ``into`` with the pages of a chunk within reach, without branches; return how many."""
    count = 0
    for i in range(CHUNK_PAGES):
        into[count] = i
        code = int(node[i]) & 255
        within = demotion[i] <= reach.demotion[code]
        count += int(within) | int(promotion[i] >= reach.promotion[code])
    return count


@kernel
def select_candidates(
    chunks: int,
    columns: ChunkColumns,
    rates: TableRates,
    bins: RowBins,
    tiers: TierCodes,
    histograms: CandidateHistograms,
    selection: Selection,
) -> int:
    """Fill ``selection``, and take its rows out of the totals; return how many rows there are."""
    huge, node = columns.huge, columns.node
    storage_index, (accesses, unshown_pages), cursor = selection
    in_turn_left = len(storage_index) // _CURSOR_SHARE
    last = len(histograms.demotable) - 1
    limits = _find_limits(histograms, (len(storage_index) - in_turn_left) // max(2 * last, 1))
    (lowest_up, highest_down), retreats = _farthest(limits), limits.retreats[0]
    pinned, tier_of_code = tiers
    # Columns of their own, and no calls per row: a call with a bundle costs as much as ten rows.
    highest, lowest = histograms.highest, histograms.lowest
    bound, left = limits.bin, limits.left
    near, every = _reach(tier_of_code, limits), _reach(tier_of_code, limits)
    for code in range(256):
        every.demotion[code] = BINS if tier_of_code[code] >= 0 else -1
    pages = np.empty(CHUNK_PAGES, np.int16)
    first_chunk, end = len(columns.owner) * CHUNK_PAGES, 0
    start, reached = cursor[0] if cursor[0] < chunks else 0, 0
    chunk = -1
    while True:
        if limits.retreats[0] != retreats:
            (lowest_up, highest_down), retreats = _farthest(limits), limits.retreats[0]
            near = _reach(tier_of_code, limits)
        chunk += 1
        turn = start if in_turn_left >= CHUNK_PAGES else chunks
        if chunk < turn:
            while chunk < turn and highest[chunk] < lowest_up and lowest[chunk] > highest_down:
                chunk += 1
        if chunk >= chunks:
            break
        in_turn = chunk >= start and in_turn_left >= CHUNK_PAGES
        reached = chunk + 1 if in_turn else reached
        p, slot, resident = (
            columns.process[chunk],
            columns.page_slot[chunk],
            columns.resident[chunk],
        )
        minority = columns.minority_pages[chunk]
        if resident == 0 or pinned[p] or (slot < 0 and is_mixed(minority, resident)):
            continue
        one = slot < 0 or huge[chunk]
        size, count = CHUNK_PAGES if one else 1, 1
        if slot < 0:
            size = int(resident) - int(minority)
        if not one:
            demotion, promotion = bins.page_demotion[slot], bins.page_promotion[slot]
            reach = every if in_turn else near
            count = _pages_within(node[slot], demotion, promotion, reach, pages)
        for rank in range(count):
            i = 0 if one else int(pages[rank])
            code = columns.chunk_node[chunk] if slot < 0 else node[slot, i]
            tier = tier_of_code[int(code) & 255]
            if tier < 0:
                continue
            shown = False
            if tier < last:
                at = bins.chunk_demotion[chunk] if one else bins.page_demotion[slot, i]
                far = bound[tier, 0] - at
                shown = far >= 0
                if far == 0:
                    left[tier, 0] -= 1
                    if left[tier, 0] == 0:
                        _retreat(tier, 0, limits)
            if tier > 0 and not shown:
                at = bins.chunk_promotion[chunk] if one else bins.page_promotion[slot, i]
                far = at - bound[tier, 1]
                shown = far >= 0
                if far == 0:
                    left[tier, 1] -= 1
                    if left[tier, 1] == 0:
                        _retreat(tier, 1, limits)
            if not shown and not in_turn:
                continue
            in_turn_left -= 0 if shown else 1
            storage_index[end] = first_chunk + chunk if one else slot * CHUNK_PAGES + i
            end += 1
            rate = rates.chunk_rate[chunk] if one else rates.page_rate[slot, i]
            accesses[p, code] -= np.float64(rate) * size
            unshown_pages[p, code] -= size
    cursor[0] = reached if reached < chunks else 0
    return end


def select_rows(
    chunks: int, columns: ChunkColumns, rates: TableRates, tiers: TierCodes, selection: Selection
) -> npt.NDArray[np.int64]:
    """Fill ``selection``; return the storage indexes of the rows that are shown."""
    shapes = [rates.page_rate.shape] * 2 + [rates.chunk_rate.shape] * 2
    bins = RowBins(*(np.empty(shape, np.int16) for shape in shapes))
    fill_bins(
        rates.page_rate.reshape(-1),
        rates.page_samples.reshape(-1),
        bins.page_demotion.reshape(-1),
        bins.page_promotion.reshape(-1),
    )
    fill_bins(rates.chunk_rate, rates.chunk_samples, bins.chunk_demotion, bins.chunk_promotion)
    count = max(int(tiers.tier_of_code.max()) + 1, 1)
    histograms = CandidateHistograms(
        np.zeros((count, BINS), np.int64),
        np.zeros((count, BINS), np.int64),
        np.empty(chunks, np.int16),
        np.empty(chunks, np.int16),
    )
    count_candidates(chunks, columns, rates, bins, tiers, histograms, selection.unshown)
    end = select_candidates(chunks, columns, rates, bins, tiers, histograms, selection)
    return selection.storage_index[:end]


_AGE: Final = np.uint8(NEW - 1)


class Cut(NamedTuple):
    """Which rows are taken: those of bins above ``lowest_bin``, and ``left`` of that bin.

    ``bins`` counts the rows of each bin while none is taken; the others have shape ``(1,)``.
    """

    bins: Int64s
    lowest_bin: Int64s
    left: Int64s


@kernel
def visit_evacuated(
    chunks: int,
    columns: ChunkColumns,
    leaves: Int8Plane,
    rates: TableRates,
    by_idle: bool,
    cut: Cut,
    storage_index: Int64s,
) -> int:
    """Fill ``storage_index`` with the rows that are taken, or count them by bin if it is empty.

    ``leaves`` has 1 for codes of pages that leave, by process and byte. Rows are sorted into bins
    by their rate, or ``by_idle`` by the ticks since their last sample. Returns how many were taken.
    """
    end, first_chunk = 0, len(columns.owner) * CHUNK_PAGES
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


def rows_to_evacuate(
    chunks: int,
    columns: ChunkColumns,
    leaves: npt.NDArray[np.bool_],
    rates: TableRates | None,
    max_rows: int,
) -> npt.NDArray[np.int64]:
    """Return the storage indexes of at most ``max_rows`` rows that must leave their node.

    ``leaves``, shape ``(processes, nodes)``, marks these nodes. The rows are the hottest by
    ``rates``, to an eighth of an octave, or the longest idle without rates.
    """
    # By the byte of a page's code; those of unmovable pages are other ones than nodes.
    codes = np.zeros((len(leaves), 256), np.int8)
    codes[:, : leaves.shape[1]] = leaves
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
