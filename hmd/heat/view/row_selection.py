"""The rows that a plan may be about: of a large table, a view shows only those.

A plan moves few pages: the hottest of the slower tiers and the coldest of the faster ones. Of each
such side the selection takes as many rows as a policy can afford, by a histogram of heat
(:mod:`hmd.heat.view.row_sides`); a cursor that goes round the table adds others in turn, for
policies that order pages by something else. What is left out is given as sums. Costs about 3 ns per
row of the table, and 30 ns per row that is shown.

Rows compete as in :mod:`hmd.decide.planning.hottest_fit`: those that would leave with the upper end
of what their samples allow, those that would come with the lower end.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.heat.chunk_columns import ChunkColumns, TableRates
from hmd.heat.geometry import CHUNK_PAGES
from hmd.heat.kernels import Int8s, Int16s, Int64Plane, Int64s, inline, kernel
from hmd.heat.view.heat_bins import BINS
from hmd.heat.view.page_columns import STRAYS
from hmd.heat.view.row_bins import RowBins, bins_of
from hmd.heat.view.row_sides import Beyond, Sides, TierCodes, count_sides

# One row in this many is shown because the cursor has come to it.
_CURSOR_SHARE: Final = 4
# More rows than there are: all of a bin.
_ALL: Final = 1 << 62


class Selection(NamedTuple):
    """What :func:`select_rows` fills: the numbers of rows, and the sums beyond.

    ``cursor`` is the chunk with which the next selection goes on, shape ``(1,)``.
    """

    number: Int64s
    beyond: Beyond
    cursor: Int64s


class _Limits(NamedTuple):
    """The bin on each side of a tier up to which rows are shown, and how many more of that bin.

    Shape ``(tiers, 2)``: rows that leave, and rows that come. ``retreats``, shape ``(1,)``, counts
    how often a limit was drawn back.
    """

    bin: Int64Plane
    left: Int64Plane
    retreats: Int64s


@inline
def _limits(leaving: Int64Plane, coming: Int64Plane, most: int) -> _Limits:
    """Return how far each side may go, with ``most`` rows of each."""
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
    limits = _Limits(bound, left, np.zeros(1, np.int64))
    for tier in range(tiers):
        for side in range(2):
            if left[tier, side] == 0:
                _retreat(tier, side, limits)
    return limits


@inline
def _retreat(tier: int, side: int, limits: _Limits) -> None:
    """Draw a limit back to the bin before it, all of which is shown.

    On a limit often are very many rows, all with as few samples: once those that go are shown, the
    others are passed over.
    """
    limits.bin[tier, side] += 1 if side else -1
    limits.left[tier, side] = _ALL
    limits.retreats[0] += 1


@inline
def _inside(at: int, tier: int, side: int, limits: _Limits) -> bool:
    """Return whether a row of this bin is shown on a side; of those on the limit, as many as go."""
    far = at - limits.bin[tier, side] if side else limits.bin[tier, side] - at
    if far != 0:
        return bool(far > 0)
    limits.left[tier, side] -= 1
    if limits.left[tier, side] == 0:
        _retreat(tier, side, limits)
    return True


@inline
def _farthest(limits: _Limits) -> tuple[int, int]:
    """Return the lowest bin at which a row of any tier comes, and the highest at which it leaves.

    Nothing comes from the fastest tier, nothing leaves the slowest.
    """
    least_up, most_down = BINS, -1
    for tier in range(len(limits.bin) - 1):
        least_up = min(least_up, int(limits.bin[tier + 1, 1]))
        most_down = max(most_down, int(limits.bin[tier, 0]))
    return least_up, most_down


@inline
def _take_out(place: tuple[int, int], size: int, rate: np.float32, sums: Beyond) -> None:
    """Take a row that is shown out of the sums; ``place``: process and node."""
    sums.accesses[place] -= np.float64(rate) * size
    sums.pages[place] -= size


class _Reach(NamedTuple):
    """Up to which bin pages leave, and from which on they come, by the byte of their code."""

    above: Int16s
    below: Int16s


@inline
def _reach(tier_of_code: Int8s, limits: _Limits) -> _Reach:
    """Return how far the rows of each code are shown; of codes that stay, none."""
    last = len(limits.bin) - 1
    above, below = np.full(256, -1, np.int16), np.full(256, BINS, np.int16)
    for code in range(256):
        tier = tier_of_code[code]
        if 0 <= tier < last:
            above[code] = limits.bin[tier, 0]
        if tier > 0:
            below[code] = limits.bin[tier, 1]
    return _Reach(above, below)


@inline
def _every(tier_of_code: Int8s) -> _Reach:
    """Return the reach that has all rows which may move."""
    above, below = np.full(256, -1, np.int16), np.full(256, BINS, np.int16)
    for code in range(256):
        if tier_of_code[code] >= 0:
            above[code] = BINS
    return _Reach(above, below)


@inline
def _within(node: Int8s, leaving: Int16s, coming: Int16s, reach: _Reach, into: Int16s) -> int:
    """Fill ``into`` with the pages of a chunk that are within reach; return how many.

    Without branches: which pages are is as good as random.
    """
    count = 0
    for i in range(CHUNK_PAGES):
        into[count] = i
        code = node[i] & 255
        count += int(leaving[i] <= reach.above[code]) | int(coming[i] >= reach.below[code])
    return count


@inline
def _next(chunk: int, chunks: int, sides: Sides, least_up: int, most_down: int) -> int:
    """Return the first chunk from ``chunk`` on with a row within the limits of its side."""
    while chunk < chunks and sides.highest[chunk] < least_up and sides.lowest[chunk] > most_down:
        chunk += 1
    return chunk


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
    number, beyond, cursor = selection
    in_turn_left = len(number) // _CURSOR_SHARE
    last = len(sides.leaving) - 1
    limits = _limits(sides.leaving, sides.coming, (len(number) - in_turn_left) // max(2 * last, 1))
    (least_up, most_down), retreats = _farthest(limits), limits.retreats[0]
    pinned, tier_of_code = tiers
    near, every = _reach(tier_of_code, limits), _every(tier_of_code)
    pages = np.empty(CHUNK_PAGES, np.int16)
    wholes, end = len(columns.owner) * CHUNK_PAGES, 0
    start, reached = cursor[0] if cursor[0] < chunks else 0, 0
    chunk = -1
    while True:
        if limits.retreats[0] != retreats:
            (least_up, most_down), retreats = _farthest(limits), limits.retreats[0]
            near = _reach(tier_of_code, limits)
        chunk += 1
        turn = start if in_turn_left >= CHUNK_PAGES else chunks
        if chunk < turn:
            chunk = _next(chunk, turn, sides, least_up, most_down)
        if chunk >= chunks:
            break
        in_turn = chunk >= start and in_turn_left >= CHUNK_PAGES
        reached = chunk + 1 if in_turn else reached
        p, row, resident = process[chunk], detail[chunk], columns.resident[chunk]
        if resident == 0 or pinned[p]:
            continue
        one = row < 0 or huge[chunk]
        strays = columns.strays[chunk] if row < 0 else 0
        size = resident - strays if row < 0 else (CHUNK_PAGES if one else 1)
        count = 1
        if not one:
            leaving, coming = bins.page_leaving[row], bins.page_coming[row]
            reach = every if in_turn else near
            count = _within(node[row], leaving, coming, reach, pages)
        for rank in range(count):
            i = 0 if one else int(pages[rank])
            code = columns.code[chunk] if row < 0 else node[row, i]
            tier = tier_of_code[code & 255]
            if tier < 0 or strays * STRAYS > resident:
                continue
            shown = False
            if tier < last:
                at = bins.chunk_leaving[chunk] if one else bins.page_leaving[row, i]
                shown = _inside(at, tier, 0, limits)
            if tier > 0 and not shown:
                at = bins.chunk_coming[chunk] if one else bins.page_coming[row, i]
                shown = _inside(at, tier, 1, limits)
            if not shown and not in_turn:
                continue
            in_turn_left -= 0 if shown else 1
            number[end] = wholes + chunk if one else row * CHUNK_PAGES + i
            end += 1
            rate = rates.chunk_rate[chunk] if one else rates.page_rate[row, i]
            _take_out((p, code), size, rate, beyond)
    cursor[0] = reached if reached < chunks else 0
    return end


def select_rows(
    chunks: int, columns: ChunkColumns, rates: TableRates, tiers: TierCodes, selection: Selection
) -> npt.NDArray[np.int64]:
    """Fill ``selection``; return the numbers of the rows that are shown.

    Pages that cannot move are neither shown nor in the sums.
    """
    count = max(int(tiers.tier_of_code.max()) + 1, 1)
    sides = Sides.of(count, chunks)
    bins = bins_of(rates)
    count_sides(chunks, columns, rates, bins, tiers, sides, selection.beyond)
    return selection.number[: take_sides(chunks, columns, rates, bins, tiers, sides, selection)]
