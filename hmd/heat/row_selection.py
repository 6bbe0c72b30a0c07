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
from hmd.heat.geometry import CHUNK_PAGES
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

    ``accesses`` per second, with priorities, and 4 KiB ``pages``. ``moments`` has a row per process
    for rates r of support s: the number of rows with s > 0, and their sums of r, r ** 2 and r / s.
    """

    accesses: Float64Plane
    pages: Int64Plane
    moments: Float64Plane

    @classmethod
    def none(cls, processes: int, nodes: int) -> Beyond:
        """Return the sums over no pages."""
        return cls(
            np.zeros((processes, nodes)),
            np.zeros((processes, nodes), np.int64),
            np.zeros((processes, 4)),
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
def _add(
    sign: float, place: tuple[int, int], size: int, row: tuple[np.float32, np.float32], sums: Beyond
) -> None:
    """Add a row to the sums, or take it out with a ``sign`` of -1.

    ``place`` is its process and its node, ``row`` its rate and its support.
    """
    rate, support = np.float64(row[0]), row[1]
    sums.accesses[place] += sign * rate * size
    sums.pages[place] += int(sign) * size
    if support > 0.0:
        process = place[0]
        sums.moments[process, 0] += sign
        sums.moments[process, 1] += sign * rate
        sums.moments[process, 2] += sign * rate * rate
        sums.moments[process, 3] += sign * rate / support


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
    process, detail, huge, node = columns.process, columns.detail, columns.huge, columns.node
    leaving, coming, highest, lowest = sides
    pinned, tier_of_code = tiers
    accesses, pages, moments = beyond
    last = len(leaving) - 1
    for chunk in range(chunks):
        p, row, resident = process[chunk], detail[chunk], columns.resident[chunk]
        highest[chunk], lowest[chunk] = -1, BINS
        if resident == 0 or pinned[p]:
            continue
        if row < 0 or huge[chunk]:
            strays = columns.strays[chunk] if row < 0 else 0
            code = columns.code[chunk] if row < 0 else node[row, 0]
            tier = tier_of_code[code & 255]
            if tier < 0 or strays * STRAYS > resident:
                continue
            rate, support = rates.chunk_rate[chunk], rates.chunk_support[chunk]
            size = resident - strays if row < 0 else CHUNK_PAGES
            _add(1.0, (p, code), size, (rate, support), beyond)
            if tier < last:
                lowest[chunk] = bins.chunk_leaving[chunk]
                leaving[tier, lowest[chunk]] += 1
            if tier > 0:
                highest[chunk] = bins.chunk_coming[chunk]
                if highest[chunk] >= 0:
                    coming[tier, highest[chunk]] += 1
            continue
        # As _add, with sums that stay in registers.
        most, least = -1, BINS
        seen, first, second, noise = 0, 0.0, 0.0, 0.0
        for i in range(CHUNK_PAGES):
            code = node[row, i]
            tier = tier_of_code[code & 255]
            if tier < 0:
                continue
            rate, support = np.float64(rates.page_rate[row, i]), rates.page_support[row, i]
            accesses[p, code] += rate
            pages[p, code] += 1
            if support > 0.0:
                seen += 1
                first += rate
                second += rate * rate
                noise += rate / support
            if tier < last:
                at = bins.page_leaving[row, i]
                leaving[tier, at] += 1
                least = min(least, at)
            if tier > 0:
                at = bins.page_coming[row, i]
                if at >= 0:
                    coming[tier, at] += 1
                most = max(most, at)
        highest[chunk], lowest[chunk] = most, least
        moments[p, 0] += seen
        moments[p, 1] += first
        moments[p, 2] += second
        moments[p, 3] += noise


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
    least_up, most_down = bound[:, 1].min(), bound[:, 0].max()
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
        for i in range(1 if one else CHUNK_PAGES):
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
            support = rates.chunk_support[chunk] if one else rates.page_support[row, i]
            _add(-1.0, (p, code), size, (rate, support), beyond)
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
