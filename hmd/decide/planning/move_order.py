"""The order of moves: every page finds room where it goes, at every step.

A promotion is preceded by the demotions that make its room and by no others; a demotion likewise
where the tier below is full. No group of processes comes to have more of the fastest tier than its
most, or less than its least. About 50 ns per move. :mod:`hmd.decide.planning.move_phases` then
gathers the moves into few phases.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from hmd.heat.kernels import Bools, Float32s, Int64Plane, Int64s, inline, kernel

_DONE: Final = 0
_NO_ROOM: Final = 1
_NO_BUDGET: Final = 2
_ANY: Final = -1
_NONE: Final = -1


class Movers(NamedTuple):
    """The pages that may move, columns of shape ``(rows,)``.

    Pages of ``size`` 4 KiB of a ``group``, on node ``source``, that go to ``tier``: first the
    promotions, the most valuable first, then the pages that may be demoted. A promotion without
    ``displaces`` takes only room that is free. Of demotions those of the lowest ``key`` go first.
    """

    size: Int64s
    source: Int64s
    tier: Int64s
    group: Int64s
    key: Float32s
    displaces: Bools


class Demotions(NamedTuple):
    """The pages that may be demoted from each tier of each group, shape ``(tiers, groups)``.

    They are the rows from ``begin`` to ``end`` (exclusive), of which the first ``must`` are demoted
    in any case, the others where room is needed.
    """

    begin: Int64Plane
    must: Int64Plane
    end: Int64Plane


class NodeRoom(NamedTuple):
    """The nodes: the ``tier`` of each, and how many pages it can take, shape ``(nodes,)``.

    ``near`` has for each node all nodes by distance. ``relieve``, shape ``(tiers,)``, marks tiers
    to be brought back to their headroom first. ``room`` is left as it is after the moves.
    """

    tier: Int64s
    room: Int64s
    near: Int64Plane
    relieve: Bools


class FastShares(NamedTuple):
    """Pages of the fastest tier by group, shape ``(groups,)``: now, at least and at most."""

    used: Int64s
    least: Int64s
    most: Int64s


class OrderedMoves(NamedTuple):
    """The moves in order, to be filled: the row of :class:`Movers`, and the node it goes to."""

    row: Int64s
    target: Int64s


class _Bounds(NamedTuple):
    """What the moves do not change: columns of the bundles above."""

    end: Int64Plane
    near: Int64Plane
    node_tier: Int64s
    least: Int64s
    most: Int64s


class _State(NamedTuple):
    """What each move changes.

    ``next_down`` is the next row to demote, shape ``(tiers, groups)``; ``used`` as in
    :class:`FastShares`; ``progress`` is the number of moves and the pages left of the budget;
    ``row`` and ``target`` are the moves; ``stack`` are rows that wait for room.
    """

    next_down: Int64Plane
    room: Int64s
    used: Int64s
    progress: Int64s
    row: Int64s
    target: Int64s
    stack: Int64s


@inline
def _node_with_room(tier: int, row: int, rows: Movers, bounds: _Bounds, room: Int64s) -> int:
    """Return the node of a tier that is nearest to a page and has room for it, or ``_NONE``."""
    near = bounds.near
    for rank in range(near.shape[1]):
        target = near[rows.source[row], rank]
        if bounds.node_tier[target] == tier and room[target] >= rows.size[row]:
            return int(target)
    return _NONE


@inline
def _coldest(
    tier: int, only: int, promoted: int, rows: Movers, bounds: _Bounds, state: _State
) -> int:
    """Take the coldest page that may be demoted from a tier, or ``_NONE``.

    It is of the group ``only``, or of any, and its group keeps its least without it. ``promoted``
    is the page that it would make room for, or ``_NONE``; it counts as promoted already.
    """
    end, next_down = bounds.end, state.next_down
    best = _NONE
    for group in range(next_down.shape[1]):
        if (only >= 0 and group != only) or next_down[tier, group] >= end[tier, group]:
            continue
        row = next_down[tier, group]
        if tier == 0:
            comes = rows.size[promoted] if promoted >= 0 and rows.group[promoted] == group else 0
            if state.used[group] + comes - rows.size[row] < bounds.least[group]:
                continue
        if best < 0 or rows.key[row] < rows.key[best]:
            best = row
    if best >= 0:
        next_down[tier, rows.group[best]] += 1
    return best


@inline
def _move(row: int, only: int, rows: Movers, bounds: _Bounds, state: _State) -> int:
    """Move ``row``, after the moves that make its room; return ``_DONE`` or why not.

    A page that waits for room waits for one that goes to a slower tier still, so that ``stack`` is
    no deeper than there are tiers. On the fastest tier it displaces pages of the group ``only``, or
    of any.
    """
    node_tier, tiers = bounds.node_tier, len(bounds.end)
    room, progress, stack = state.room, state.progress, state.stack
    promoted = row if rows.tier[row] == 0 else _NONE
    depth = 1
    stack[0] = row
    while depth:
        row = stack[depth - 1]
        size, source, tier = rows.size[row], rows.source[row], rows.tier[row]
        target = _node_with_room(tier, row, rows, bounds, room)
        if target < 0:
            down = _coldest(tier, only if tier == 0 else _ANY, promoted, rows, bounds, state)
            if down >= 0:
                stack[depth] = down
                depth += 1
                continue
            # None is demoted from there, but some may be promoted once this page has made room: it
            # takes a tier that is lower still, and a later plan brings it back.
            while target < 0 and node_tier[source] < tier < tiers - 1:
                tier += 1
                target = _node_with_room(tier, row, rows, bounds, room)
            if target < 0:
                return _NO_ROOM
        if size > progress[1]:
            return _NO_BUDGET
        room[target] -= size
        room[source] += size
        if node_tier[target] == 0:
            state.used[rows.group[row]] += size
        if node_tier[source] == 0:
            state.used[rows.group[row]] -= size
        state.row[progress[0]], state.target[progress[0]] = row, target
        progress[0] += 1
        progress[1] -= size
        depth -= 1
    return _DONE


@inline
def _promote(row: int, rows: Movers, bounds: _Bounds, state: _State) -> int:
    """Promote a page; where its group has its most, pages of that group make room."""
    group = rows.group[row]
    if rows.tier[row] > 0:
        return _move(row, _ANY, rows, bounds, state)
    while state.used[group] + rows.size[row] > bounds.most[group]:
        down = _coldest(0, group, row, rows, bounds, state)
        if down < 0:
            return _NO_ROOM
        result = _move(down, _ANY, rows, bounds, state)
        if result != _DONE:
            return result
    return _move(row, _ANY, rows, bounds, state)


@inline
def _is_short(tier: int, bounds: _Bounds, room: Int64s) -> bool:
    """Return whether a tier has less free than its headroom."""
    free = np.int64(0)
    for node in range(len(room)):
        if bounds.node_tier[node] == tier:
            free += room[node]
    return bool(free < 0)


@inline
def _demote_first(
    demotions: Demotions, relieve: Bools, rows: Movers, bounds: _Bounds, state: _State
) -> None:
    """Demote what must go, then what brings tiers to relieve back to their headroom."""
    begin, must, _ = demotions
    tiers, groups = begin.shape
    for tier in range(tiers - 1):
        for group in range(groups):
            stop = begin[tier, group] + must[tier, group]
            while state.next_down[tier, group] < stop:
                row = _coldest(tier, group, _NONE, rows, bounds, state)
                if row < 0 or _move(row, _ANY, rows, bounds, state) != _DONE:
                    break
        while relieve[tier] and _is_short(tier, bounds, state.room):
            row = _coldest(tier, _ANY, _NONE, rows, bounds, state)
            if row < 0 or _move(row, _ANY, rows, bounds, state) != _DONE:
                break


@inline
def _copy(values: Int64s, into: Int64s) -> None:
    """Copy a few numbers: a loop, since numba's slice assignment costs more than a move."""
    for index in range(len(values)):
        into[index] = values[index]


@kernel
def arrange(
    promotions: int,
    rows: Movers,
    demotions: Demotions,
    nodes: NodeRoom,
    shares: FastShares,
    budget_pages: int,
    moves: OrderedMoves,
) -> int:
    """Fill ``moves`` in the order in which to make them; return how many there are.

    The first ``promotions`` rows are promoted, as far as room, shares and budget go.
    """
    bounds = _Bounds(demotions.end, nodes.near, nodes.tier, shares.least, shares.most)
    room, next_down, used = nodes.room, demotions.begin.copy(), shares.used.copy()
    progress = np.array([0, budget_pages], np.int64)
    stack = np.empty(len(next_down) + 1, np.int64)
    state = _State(next_down, room, used, progress, moves.row, moves.target, stack)
    _demote_first(demotions, nodes.relieve, rows, bounds, state)
    next_flat = next_down.reshape(-1)
    room_before, next_before, used_before = room.copy(), next_flat.copy(), used.copy()
    # Pages of this size found no room on the tier: larger ones need not try.
    refused = np.full((len(next_down), len(used)), np.iinfo(np.int64).max, np.int64)
    for row in range(promotions):
        tier, group = rows.tier[row], rows.group[row]
        if rows.size[row] >= refused[tier, group]:
            continue
        if not rows.displaces[row] and _node_with_room(tier, row, rows, bounds, room) < 0:
            continue
        _copy(room, room_before)
        _copy(next_flat, next_before)
        _copy(used, used_before)
        moved, left = progress[0], progress[1]
        result = _promote(row, rows, bounds, state)
        if result == _DONE:
            continue
        lacks = used[group] < min(used_before[group], shares.least[group])
        # Room made for a page that is larger than a tick's budget serves the next tick.
        if result == _NO_ROOM or moved > 0 or lacks:
            _copy(room_before, room)
            _copy(next_before, next_flat)
            _copy(used_before, used)
            progress[0], progress[1] = moved, left
        if result == _NO_BUDGET:
            break
        refused[tier, group] = rows.size[row]
    return int(progress[0])
