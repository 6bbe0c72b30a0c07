"""Moves in few rounds: all demotions of a round, then all of its promotions.

The order of :mod:`hmd.decide.move_order` finds room for every move, but it alternates: one page
down, one page up. A call of move_pages(2) moves pages to one node, and each costs a walk over all
CPUs to drain their LRU caches; thousands of calls of one page would cost many times their copies.
About 10 ns a move.
"""

from __future__ import annotations

from hmd.heat.kernels import Int64s, inline, kernel


@inline
def _turn(source_tier: int, target_tier: int, tiers: int) -> int:
    """Return when in its round a move is made: out of the slowest tiers first, then upwards."""
    if target_tier > source_tier:
        return tiers - 1 - source_tier
    return tiers + target_tier


@kernel
def in_rounds(
    size: Int64s,
    source: Int64s,
    target: Int64s,
    node_tier: Int64s,
    tiers: int,
    room: Int64s,
    order: Int64s,
) -> None:
    """Fill ``order`` with the moves by rounds; equal turns of a round stay as they came.

    Moves are given in an order in which each finds room: ``size`` pages from node ``source`` to
    node ``target``. ``room`` is what each node can take before them, and is left as it is after
    them. A round is as long as can be: within one, what leaves a node downwards does so before
    anything comes, so that only its sums have to fit.
    """
    moves = len(size)
    room_down, room_up = room.copy(), room.copy()
    begin = 0
    placed = 0
    while begin < moves:
        end = begin
        room_down[:], room_up[:] = room, room
        while end < moves:
            here, there, pages = source[end], target[end], size[end]
            down = node_tier[there] > node_tier[here]
            free = min(room_down[there], room_up[there]) if down else room_up[there]
            if free < pages and end > begin:
                break
            # Whoever goes up leaves only after all who come down have come.
            if down:
                room_down[here] += pages
                room_down[there] -= pages
            room_up[here] += pages
            room_up[there] -= pages
            end += 1
        for turn in range(2 * tiers):
            for move in range(begin, end):
                if _turn(node_tier[source[move]], node_tier[target[move]], tiers) == turn:
                    order[placed] = move
                    placed += 1
        room[:] = room_up
        begin = end
