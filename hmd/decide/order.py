"""The order of moves: every page finds room where it goes, at every step.

A promotion is preceded by the demotions that make its room and by no others; a demotion likewise
where the tier below is full. About 50 ns a move.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.heat.kernels import inline, kernel

_DONE: Final = 0
_NO_ROOM: Final = 1
_NO_BUDGET: Final = 2


@inline
def _node_with_room(
    tier: int,
    size: int,
    source: int,
    room: npt.NDArray[np.int64],
    near: npt.NDArray[np.int64],
    node_tier: npt.NDArray[np.int64],
) -> int:
    """Return the nearest node of a tier that has room, -1 if none has."""
    for place in range(near.shape[1]):
        target = near[source, place]
        if node_tier[target] == tier and room[target] >= size:
            return int(target)
    return -1


@inline
def _advance(
    row: int,
    size: npt.NDArray[np.int64],
    source: npt.NDArray[np.int64],
    tier: npt.NDArray[np.int64],
    following: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    room: npt.NDArray[np.int64],
    near: npt.NDArray[np.int64],
    node_tier: npt.NDArray[np.int64],
    tally: npt.NDArray[np.int64],
    moved: npt.NDArray[np.int64],
    target: npt.NDArray[np.int64],
    waiting: npt.NDArray[np.int64],
) -> int:
    """Move ``row``, after what must go before it; says whether it could be done.

    A page that waits for room waits for one that goes to a slower tier still, so that the stack
    of ``waiting`` is no deeper than there are tiers. ``tally`` is moves made and pages left.
    """
    depth = 1
    waiting[0] = row
    while depth:
        row = waiting[depth - 1]
        goal = _node_with_room(tier[row], size[row], source[row], room, near, node_tier)
        if goal < 0:
            full = tier[row]
            if following[full] < end[full]:
                waiting[depth] = following[full]
                following[full] += 1
                depth += 1
                continue
            # None goes down from there, but some may go up once this page has made room: it
            # takes one that is lower still, and a later plan brings it back.
            while goal < 0 and node_tier[source[row]] < full < len(end) - 1:
                full += 1
                goal = _node_with_room(full, size[row], source[row], room, near, node_tier)
            if goal < 0:
                return _NO_ROOM
        if size[row] > tally[1]:
            return _NO_BUDGET
        room[goal] -= size[row]
        room[source[row]] += size[row]
        moved[tally[0]], target[tally[0]] = row, goal
        tally[0] += 1
        tally[1] -= size[row]
        depth -= 1
    return _DONE


@kernel(
    "int64",
    "int64[::1]",
    "int64[::1]",
    "int64[::1]",
    "boolean[::1]",
    "int64[::1]",
    "int64[::1]",
    "boolean[::1]",
    "int64[::1]",
    "int64[:, ::1]",
    "int64[::1]",
    "int64",
    "int64[::1]",
    "int64[::1]",
    returns="int64",
)
def arrange(
    promotions: int,
    size: npt.NDArray[np.int64],
    source: npt.NDArray[np.int64],
    tier: npt.NDArray[np.int64],
    displaces: npt.NDArray[np.bool_],
    begin: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    relieve: npt.NDArray[np.bool_],
    room: npt.NDArray[np.int64],
    near: npt.NDArray[np.int64],
    node_tier: npt.NDArray[np.int64],
    budget: int,
    moved: npt.NDArray[np.int64],
    target: npt.NDArray[np.int64],
) -> int:
    """Fill ``moved`` with rows in the order in which to move them; returns how many.

    Rows are pages of ``size`` 4 KiB on node ``source`` that go to ``tier``: first the
    ``promotions``, the most valuable first, of which those without ``displaces`` only take room
    that is free; then pages that may go down, rows ``begin[t]..end[t]`` of tier ``t``, the
    coldest first. ``room`` is what each node can take, in pages, and is left as it is after the
    moves; ``near`` lists for each node all nodes by distance; ``budget`` is in pages;
    ``target`` is the node that each moved row goes to. Tiers to ``relieve`` are brought back to
    their headroom first.
    """
    tiers = len(begin)
    following = begin.copy()
    room_before, following_before = room.copy(), following.copy()
    waiting = np.empty(tiers + 1, np.int64)
    tally = np.array([0, budget], np.int64)
    # Pages of this size found no room on the tier: larger ones need not try.
    refused = np.full(tiers, np.iinfo(np.int64).max, np.int64)
    for high in range(tiers - 1):
        while relieve[high] and following[high] < end[high]:
            short = np.int64(0)
            for place in range(len(room)):
                if node_tier[place] == high:
                    short += room[place]
            if short >= 0:
                break
            row = following[high]
            following[high] += 1
            if (
                _advance(
                    row,
                    size,
                    source,
                    tier,
                    following,
                    end,
                    room,
                    near,
                    node_tier,
                    tally,
                    moved,
                    target,
                    waiting,
                )
                != _DONE
            ):
                break
    for row in range(promotions):
        if size[row] >= refused[tier[row]]:
            continue
        if not displaces[row]:
            free = _node_with_room(tier[row], size[row], source[row], room, near, node_tier)
            if free < 0:
                continue
        room_before[:], following_before[:] = room, following
        moves, left = tally[0], tally[1]
        result = _advance(
            row,
            size,
            source,
            tier,
            following,
            end,
            room,
            near,
            node_tier,
            tally,
            moved,
            target,
            waiting,
        )
        if result == _DONE:
            continue
        # Room made for a page that is larger than a tick's budget serves the next tick.
        if result == _NO_ROOM or moves > 0:
            room[:], following[:] = room_before, following_before
            tally[0], tally[1] = moves, left
        if result == _NO_BUDGET:
            break
        refused[tier[row]] = size[row]
    return int(tally[0])
