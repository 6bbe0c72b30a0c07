"""Moves in few phases, within each of which they may be made in any order.

The order of :mod:`hmd.decide.planning.move_order` finds room for every move, but it alternates: one
page down, one page up. One call of move_pages(2) moves pages to one node, and each call walks all
CPUs to drain their LRU caches; thousands of calls of one page would cost many times their copies.
So moves are gathered into groups, all demotions of a group before its promotions, and a plan
numbers its phases: the mover takes those as they are. About 10 ns per move.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.heat.kernels import Int64s, inline, kernel


class PlacedMoves(NamedTuple):
    """Moves of ``size`` pages from node ``source`` to node ``target``, shape ``(n,)``."""

    size: Int64s
    source: Int64s
    target: Int64s


@inline
def _turn(source_tier: int, target_tier: int, tiers: int) -> int:
    """Return when in its group a move is made: out of the slowest tiers first, then upwards."""
    if target_tier > source_tier:
        return tiers - 1 - source_tier
    return tiers + target_tier


@kernel
def order_in_phases(
    moves: PlacedMoves, node_tier: Int64s, tiers: int, room: Int64s, order: Int64s
) -> None:
    """Fill ``order`` with the moves by groups; moves of one turn of a group keep their order.

    Moves are given in an order in which each finds room. ``room`` is how many pages each node can
    take before them, and is left as it is after them. A group is as long as can be: within one,
    what leaves a node downwards does so before anything comes, so that only its sums have to fit.
    """
    size, source, target = moves
    room_down, room_up = room.copy(), room.copy()
    begin = 0
    ordered = 0
    while begin < len(size):
        end = begin
        room_down[:], room_up[:] = room, room
        while end < len(size):
            here, there, pages = source[end], target[end], size[end]
            down = node_tier[there] > node_tier[here]
            free = min(room_down[there], room_up[there]) if down else room_up[there]
            if free < pages and end > begin:
                break
            # A promoted page leaves its node only after all demoted ones have come there.
            if down:
                room_down[here] += pages
                room_down[there] -= pages
            room_up[here] += pages
            room_up[there] -= pages
            end += 1
        for turn in range(2 * tiers):
            for move in range(begin, end):
                if _turn(node_tier[source[move]], node_tier[target[move]], tiers) == turn:
                    order[ordered] = move
                    ordered += 1
        room[:] = room_up
        begin = end


def phase_numbers(
    source: npt.NDArray[np.integer], target: npt.NDArray[np.integer]
) -> npt.NDArray[np.int32]:
    """Return the phase of each move, rising from 0; all columns have shape ``(n,)``.

    Moves are given in an order in which each finds room, from node ``source`` to node ``target``.
    A move into a node that earlier moves of its phase leave may need the room that they make, so it
    begins the next phase. The moves of a phase find room in any order.
    """
    if not len(source):
        return np.zeros(0, np.int32)
    # Runs of moves between the same two nodes: there are few of them.
    turns = np.flatnonzero((np.diff(source) != 0) | (np.diff(target) != 0)) + 1
    starts = np.concatenate((np.zeros(1, np.intp), turns))
    phase = np.zeros(len(starts), np.int32)
    left: set[int] = set()
    current = 0
    runs = zip(source[starts].tolist(), target[starts].tolist(), strict=True)
    for run, (from_node, to_node) in enumerate(runs):
        if to_node in left:
            current += 1
            left.clear()
        left.add(from_node)
        phase[run] = current
    return np.repeat(phase, np.diff(starts, append=len(source)))
