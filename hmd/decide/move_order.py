"""The order of moves: every page finds room where it goes, at every step.

A promotion is preceded by the demotions that make its room and by no others; a demotion likewise
where the tier below is full. No group of processes comes to have more of the fastest tier than it
may, or less than is its own. About 50 ns a move.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.heat.kernels import Bools, Float32s, Int64Plane, Int64s, inline, kernel

Integers = npt.NDArray[np.int64]

_DONE: Final = 0
_NO_ROOM: Final = 1
_NO_BUDGET: Final = 2
_ANY: Final = -1


class _Movers(NamedTuple):
    """The pages that may move; columns of shape ``(rows,)`` as :func:`arrange` has them."""

    size: Integers
    source: Integers
    tier: Integers
    group: Integers
    key: npt.NDArray[np.float32]


class _Fixed(NamedTuple):
    """What stays as it is; ``end`` and ``near`` have two dimensions."""

    end: npt.NDArray[np.int64]
    near: npt.NDArray[np.int64]
    node_tier: Integers
    least: Integers


class _State(NamedTuple):
    """What each move changes; ``tally`` is moves made and pages left of the budget."""

    following: npt.NDArray[np.int64]
    room: Integers
    held: Integers
    tally: Integers
    moved: Integers
    target: Integers
    waiting: Integers


@inline
def _node_with_room(tier: int, row: int, rows: _Movers, fixed: _Fixed, room: Integers) -> int:
    """Return the node of a tier that is nearest to a page and has room for it, -1 if none has."""
    near = fixed.near
    for place in range(near.shape[1]):
        target = near[rows.source[row], place]
        if fixed.node_tier[target] == tier and room[target] >= rows.size[row]:
            return int(target)
    return -1


@inline
def _next_down(
    tier: int, only: int, riser: int, rows: _Movers, fixed: _Fixed, state: _State
) -> int:
    """Take the coldest page that may go down from a tier, -1 if there is none.

    Of the group ``only``, or of any; none that its group must keep. ``riser`` is the page that it
    would make room for, -1 if none, and counts as there already.
    """
    following, end = state.following, fixed.end
    best = -1
    for group in range(following.shape[1]):
        if (only >= 0 and group != only) or following[tier, group] >= end[tier, group]:
            continue
        row = following[tier, group]
        if tier == 0:
            comes = rows.size[riser] if riser >= 0 and rows.group[riser] == group else 0
            if state.held[group] + comes - rows.size[row] < fixed.least[group]:
                continue
        if best < 0 or rows.key[row] < rows.key[best]:
            best = row
    if best >= 0:
        following[tier, rows.group[best]] += 1
    return best


@inline
def _advance(row: int, only: int, rows: _Movers, fixed: _Fixed, state: _State) -> int:
    """Move ``row``, after what must go before it; says whether it could be done.

    A page that waits for room waits for one that goes to a slower tier still, so that the stack
    of ``waiting`` is no deeper than there are tiers. On the fastest tier it displaces pages of the
    group ``only``, or of any.
    """
    room, tally, waiting = state.room, state.tally, state.waiting
    riser = row if rows.tier[row] == 0 else -1
    depth = 1
    waiting[0] = row
    while depth:
        row = waiting[depth - 1]
        size, here, full = rows.size[row], rows.source[row], rows.tier[row]
        goal = _node_with_room(full, row, rows, fixed, room)
        if goal < 0:
            down = _next_down(full, only if full == 0 else _ANY, riser, rows, fixed, state)
            if down >= 0:
                waiting[depth] = down
                depth += 1
                continue
            # None goes down from there, but some may go up once this page has made room: it
            # takes one that is lower still, and a later plan brings it back.
            while goal < 0 and fixed.node_tier[here] < full < len(fixed.end) - 1:
                full += 1
                goal = _node_with_room(full, row, rows, fixed, room)
            if goal < 0:
                return _NO_ROOM
        if size > tally[1]:
            return _NO_BUDGET
        room[goal] -= size
        room[here] += size
        if fixed.node_tier[goal] == 0:
            state.held[rows.group[row]] += size
        if fixed.node_tier[here] == 0:
            state.held[rows.group[row]] -= size
        state.moved[tally[0]], state.target[tally[0]] = row, goal
        tally[0] += 1
        tally[1] -= size
        depth -= 1
    return _DONE


@inline
def _promote(row: int, most: Integers, rows: _Movers, fixed: _Fixed, state: _State) -> int:
    """Move a page up; one of a group that has all it may displaces pages of that group."""
    group = rows.group[row]
    if rows.tier[row] > 0:
        return _advance(row, _ANY, rows, fixed, state)
    while state.held[group] + rows.size[row] > most[group]:
        down = _next_down(0, group, row, rows, fixed, state)
        if down < 0:
            return _NO_ROOM
        result = _advance(down, _ANY, rows, fixed, state)
        if result != _DONE:
            return result
    return _advance(row, _ANY, rows, fixed, state)


@inline
def _send_down(
    begin: npt.NDArray[np.int64],
    must: npt.NDArray[np.int64],
    relieve: npt.NDArray[np.bool_],
    rows: _Movers,
    fixed: _Fixed,
    state: _State,
) -> None:
    """Move down what must go, and what brings tiers to relieve back to their headroom."""
    tiers, groups = begin.shape
    for tier in range(tiers - 1):
        for group in range(groups):
            while state.following[tier, group] < begin[tier, group] + must[tier, group]:
                row = _next_down(tier, group, -1, rows, fixed, state)
                if row < 0 or _advance(row, _ANY, rows, fixed, state) != _DONE:
                    break
        while relieve[tier]:
            short = np.int64(0)
            for place in range(len(state.room)):
                if fixed.node_tier[place] == tier:
                    short += state.room[place]
            if short >= 0:
                break
            row = _next_down(tier, _ANY, -1, rows, fixed, state)
            if row < 0 or _advance(row, _ANY, rows, fixed, state) != _DONE:
                break


@kernel
def arrange(
    promotions: int,
    size: Int64s,
    source: Int64s,
    tier: Int64s,
    group: Int64s,
    key: Float32s,
    displaces: Bools,
    begin: Int64Plane,
    must: Int64Plane,
    end: Int64Plane,
    relieve: Bools,
    room: Int64s,
    near: Int64Plane,
    node_tier: Int64s,
    held: Int64s,
    least: Int64s,
    most: Int64s,
    budget: int,
    moved: Int64s,
    target: Int64s,
) -> int:
    """Fill ``moved`` with rows in the order in which to move them; returns how many.

    Rows are pages of ``size`` 4 KiB of a ``group`` on node ``source`` that go to ``tier``: first
    the ``promotions``, the most valuable first, of which those without ``displaces`` only take
    room that is free; then pages that may go down, rows ``begin[t, g]..end[t, g]`` of tier ``t``
    and group ``g``, of which the first ``must[t, g]`` go in any case, the others where room is
    needed, those of the lowest ``key`` first. ``room`` is what each node can take, in pages, and
    is left as it is after the moves; ``near`` lists for each node all nodes by distance;
    ``budget`` is in pages; ``target`` is the node that each moved row goes to. Tiers to
    ``relieve`` are brought back to their headroom first. Groups hold ``held`` pages of tier 0 and
    may hold ``least`` to ``most``.
    """
    following, before, had = begin.copy(), room.copy(), held.copy()
    rows = _Movers(size, source, tier, group, key)
    fixed = _Fixed(end, near, node_tier, least)
    tally = np.array([0, budget], np.int64)
    waiting = np.empty(len(begin) + 1, np.int64)
    state = _State(following, room, held.copy(), tally, moved, target, waiting)
    _send_down(begin, must, relieve, rows, fixed, state)
    followed = following.copy()
    # Pages of this size found no room on the tier: larger ones need not try.
    refused = np.full((len(begin), len(held)), np.iinfo(np.int64).max, np.int64)
    for row in range(promotions):
        if size[row] >= refused[tier[row], group[row]]:
            continue
        if not displaces[row] and _node_with_room(tier[row], row, rows, fixed, room) < 0:
            continue
        before[:], followed[:], had[:] = room, following, state.held
        moves, left = tally[0], tally[1]
        result = _promote(row, most, rows, fixed, state)
        if result == _DONE:
            continue
        one = group[row]
        lacks = state.held[one] < min(had[one], least[one])
        # Room made for a page that is larger than a tick's budget serves the next tick.
        if result == _NO_ROOM or moves > 0 or lacks:
            room[:], following[:], state.held[:] = before, followed, had
            tally[0], tally[1] = moves, left
        if result == _NO_BUDGET:
            break
        refused[tier[row], group[row]] = size[row]
    return int(tally[0])
