"""The rows that a plan may be about: of a large table, a view shows only those.

A plan moves few pages: the hottest of the slower tiers and the coldest of the faster ones. Of each
such side the selection takes as many rows as a policy can afford, by a histogram of heat; a hand
that goes round the table adds others in turn, for policies that order pages by something else.
What is left out is given as sums. Costs about 8 ns per row of the table.

Rows compete as in :mod:`hmd.decide.hottest_fit`: those that would leave with the upper end of what
their samples allow, those that would come with the lower end.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.heat.chunk_columns import ChunkColumns, TableRates
from hmd.heat.geometry import ABSENT, CHUNK_PAGES
from hmd.heat.kernels import (
    Bools,
    Float64Plane,
    Int8s,
    Int16s,
    Int64Plane,
    Int64s,
    inline,
    kernel,
)
from hmd.heat.page_columns import STRAYS
from hmd.heat.row_bins import BINS, RowBins, bins_of

# One row in this many is one of the hand's.
_HAND_SHARE: Final = 4


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


class Selection(NamedTuple):
    """What :func:`select_rows` fills: the numbers of rows, and the sums beyond.

    ``hand`` is the chunk at which the hand stands, shape ``(1,)``.
    """

    number: Int64s
    beyond: Beyond
    hand: Int64s


class TierCodes(NamedTuple):
    """Which pages may move: those of processes not ``pinned``, of a code that has a tier.

    ``tier_of_code`` is as of :func:`hmd.heat.page_columns.tier_of_code`.
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


class _Limits(NamedTuple):
    """The bin on each side of a tier up to which rows are shown, and how many of that bin."""

    bin: Int64Plane
    left: Int64Plane


@inline
def _limits(leaving: Int64Plane, coming: Int64Plane, most: int) -> _Limits:
    """Return how far each side may go; columns 0 for rows that leave, 1 for those that come."""
    tiers = len(leaving)
    bound, left = np.zeros((tiers, 2), np.int64), np.zeros((tiers, 2), np.int64)
    for tier in range(tiers):
        rest, b = most, 0
        while b < BINS and leaving[tier, b] <= rest:
            rest -= leaving[tier, b]
            b += 1
        bound[tier, 0], left[tier, 0] = b, rest
        rest, b = most, BINS - 1
        while b >= 0 and coming[tier, b] <= rest:
            rest -= coming[tier, b]
            b -= 1
        bound[tier, 1], left[tier, 1] = b, rest
    return _Limits(bound, left)


@inline
def _add(sign: int, place: tuple[int, int], size: int, rate: np.float32, sums: Beyond) -> None:
    """Add a row to the sums, or take it out with a ``sign`` of -1; ``place``: process and node."""
    sums.accesses[place] += np.float64(rate) * (sign * size)
    sums.pages[place] += sign * size


@inline
def _only_code(row: int, columns: ChunkColumns) -> int:
    """Return the code of all pages of a chunk in detail, ``ABSENT`` where they differ."""
    node = columns.node[row]
    first, alike = node[0], True
    for i in range(len(node)):
        alike &= node[i] == first
    return int(first) if alike else ABSENT


@inline
def _store(place: tuple[int, int], pages: int, accesses: float, beyond: Beyond) -> None:
    """Add the sums over rows of one process and node."""
    beyond.accesses[place] += accesses
    beyond.pages[place] += pages


@inline
def _count_wholes(
    chunks: int,
    columns: ChunkColumns,
    rates: TableRates,
    bins: RowBins,
    tiers: TierCodes,
    sides: Sides,
    beyond: Beyond,
) -> None:
    """Count chunks that are one row; neighbours mostly lie on one node, and are added up first."""
    process, detail, huge, node = columns.process, columns.detail, columns.huge, columns.node
    leaving, coming, highest, lowest = sides
    pinned, tier_of_code = tiers
    last, at_process, at_code = len(leaving) - 1, -1, 0
    pages, accesses = 0, 0.0
    for chunk in range(chunks):
        highest[chunk], lowest[chunk] = -1, BINS
        row, resident = detail[chunk], int(columns.resident[chunk])
        p = int(process[chunk])
        if resident == 0 or pinned[p] or (row >= 0 and not huge[chunk]):
            continue
        code = int(columns.code[chunk] if row < 0 else node[row, 0])
        strays = int(columns.strays[chunk]) if row < 0 else 0
        tier = tier_of_code[code & 255]
        if tier < 0 or strays * STRAYS > resident:
            continue
        if p != at_process or code != at_code:
            if at_process >= 0:
                _store((at_process, at_code), pages, accesses, beyond)
            at_process, at_code = p, code
            pages, accesses = 0, 0.0
        size = resident - strays if row < 0 else CHUNK_PAGES
        accesses += np.float64(rates.chunk_rate[chunk]) * size
        pages += size
        if tier < last:
            lowest[chunk] = bins.chunk_leaving[chunk]
            leaving[tier, lowest[chunk]] += 1
        if tier > 0:
            highest[chunk] = bins.chunk_coming[chunk]
            if highest[chunk] >= 0:
                coming[tier, highest[chunk]] += 1
    if at_process >= 0:
        _store((at_process, at_code), pages, accesses, beyond)


@inline
def _count_alike(
    row: int,
    place: tuple[int, int],
    tier: int,
    rates: TableRates,
    bins: RowBins,
    sides: Sides,
    beyond: Beyond,
) -> tuple[int, int]:
    """Count the pages of a chunk in detail that all lie on one node.

    Returns the bins of the hottest that may come and of the coldest that may leave.
    """
    rate = rates.page_rate[row]
    accesses = 0.0
    for i in range(len(rate)):
        accesses += np.float64(rate[i])
    _store(place, CHUNK_PAGES, accesses, beyond)
    most, least = -1, BINS
    if tier < len(sides.leaving) - 1:
        at, count = bins.page_leaving[row], sides.leaving[tier]
        for i in range(len(at)):
            count[at[i]] += 1
            least = min(least, at[i])
    if tier > 0:
        at, count = bins.page_coming[row], sides.coming[tier]
        for i in range(len(at)):
            most = max(most, at[i])
            if at[i] >= 0:
                count[at[i]] += 1
    return most, least


@inline
def _count_mixed(
    row: int,
    p: int,
    columns: ChunkColumns,
    tier_of_code: Int8s,
    rates: TableRates,
    bins: RowBins,
    sides: Sides,
    beyond: Beyond,
) -> tuple[int, int]:
    """Count the pages of a chunk in detail that lie on several nodes; as :func:`_count_alike`."""
    leaving, coming = sides.leaving, sides.coming
    most, least, last = -1, BINS, len(leaving) - 1
    for i in range(CHUNK_PAGES):
        code = columns.node[row, i]
        tier = tier_of_code[code & 255]
        if tier < 0:
            continue
        _add(1, (p, code), 1, rates.page_rate[row, i], beyond)
        if tier < last:
            at = bins.page_leaving[row, i]
            leaving[tier, at] += 1
            least = min(least, at)
        if tier > 0:
            at = bins.page_coming[row, i]
            if at >= 0:
                coming[tier, at] += 1
            most = max(most, at)
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
    _count_wholes(chunks, columns, rates, bins, tiers, sides, beyond)
    for row in range(len(columns.owner)):
        chunk = int(columns.owner[row])
        if chunk < 0 or columns.huge[chunk] or columns.resident[chunk] == 0:
            continue
        p = int(columns.process[chunk])
        if tiers.pinned[p]:
            continue
        code = _only_code(row, columns)
        tier = int(tiers.tier_of_code[code & 255])
        most, least = -1, BINS
        if code == ABSENT:
            most, least = _count_mixed(
                row, p, columns, tiers.tier_of_code, rates, bins, sides, beyond
            )
        elif tier >= 0:
            most, least = _count_alike(row, (p, code), tier, rates, bins, sides, beyond)
        sides.highest[chunk], sides.lowest[chunk] = most, least


@kernel
def take_sides(
    chunks: int,
    columns: ChunkColumns,
    rates: TableRates,
    bins: RowBins,
    tiers: TierCodes,
    sides: Sides,
    selection: Selection,
) -> int:
    """Fill ``selection`` with as many rows as it has room for; return how many.

    ``sides`` is as :func:`count_sides` left it. What is shown is taken out of the sums.
    """
    process, detail, huge, node = columns.process, columns.detail, columns.huge, columns.node
    number, beyond, hand = selection
    by_hand = len(number) // _HAND_SHARE
    last = len(sides.leaving) - 1
    limits = _limits(sides.leaving, sides.coming, (len(number) - by_hand) // max(2 * last, 1))
    bound, left = limits
    # Nothing comes from the fastest tier, nothing leaves the slowest.
    least_up, most_down = BINS, -1
    for tier in range(last):
        least_up = min(least_up, int(bound[tier + 1, 1]))
        most_down = max(most_down, int(bound[tier, 0]))
    pinned, tier_of_code = tiers
    wholes, end = len(columns.owner) * CHUNK_PAGES, 0
    start, reached = hand[0] if hand[0] < chunks else 0, 0
    for chunk in range(chunks):
        in_turn = chunk >= start and by_hand >= CHUNK_PAGES
        reached = chunk + 1 if in_turn else reached
        if not in_turn and sides.highest[chunk] < least_up and sides.lowest[chunk] > most_down:
            continue
        p, row, resident = process[chunk], detail[chunk], columns.resident[chunk]
        if resident == 0 or pinned[p]:
            continue
        one = row < 0 or huge[chunk]
        strays = columns.strays[chunk] if row < 0 else 0
        size = resident - strays if row < 0 else (CHUNK_PAGES if one else 1)
        # The bins that no row of the chunk is taken between, where all its pages lie on one tier.
        above, below = BINS, -1
        if not (one or in_turn):
            only = _only_code(row, columns)
            tier = int(tier_of_code[only & 255])
            if only != ABSENT:
                above = int(bound[tier, 0]) if 0 <= tier < last else -1
                below = int(bound[tier, 1]) if tier > 0 else BINS
        for i in range(1 if one else CHUNK_PAGES):
            if not one and bins.page_leaving[row, i] > above and bins.page_coming[row, i] < below:
                continue
            code = columns.code[chunk] if row < 0 else node[row, i]
            tier = tier_of_code[code & 255]
            if tier < 0 or strays * STRAYS > resident:
                continue
            # How far inside the limit of its side a row is, of one on the limit as far as they go.
            inside = -1
            if tier < last:
                at = bins.chunk_leaving[chunk] if one else bins.page_leaving[row, i]
                inside = bound[tier, 0] - at
                if inside == 0:
                    left[tier, 0] -= 1
                    inside = left[tier, 0]
            if tier > 0 and inside < 0:
                at = bins.chunk_coming[chunk] if one else bins.page_coming[row, i]
                inside = at - bound[tier, 1]
                if inside == 0:
                    left[tier, 1] -= 1
                    inside = left[tier, 1]
            if inside < 0 and in_turn:
                by_hand -= 1
            elif inside < 0:
                continue
            number[end] = wholes + chunk if one else row * CHUNK_PAGES + i
            end += 1
            rate = rates.chunk_rate[chunk] if one else rates.page_rate[row, i]
            _add(-1, (p, code), size, rate, beyond)
    hand[0] = reached if reached < chunks else 0
    return end


def select_rows(
    chunks: int, columns: ChunkColumns, rates: TableRates, tiers: TierCodes, selection: Selection
) -> npt.NDArray[np.int64]:
    """Fill ``selection``; return the numbers of the rows that are shown.

    Pages that cannot move are neither shown nor in the sums.
    """
    count = max(int(tiers.tier_of_code.max()) + 1, 1)
    sides = Sides(
        np.zeros((count, BINS), np.int64),
        np.zeros((count, BINS), np.int64),
        np.empty(chunks, np.int16),
        np.empty(chunks, np.int16),
    )
    bins = bins_of(rates)
    count_sides(chunks, columns, rates, bins, tiers, sides, selection.beyond)
    return selection.number[: take_sides(chunks, columns, rates, bins, tiers, sides, selection)]
