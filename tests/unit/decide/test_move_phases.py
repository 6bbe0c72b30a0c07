"""Moves by rounds: the same moves, each with room when it is made, in few turns."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from hmd.decide.move_phases import in_rounds

Column = npt.NDArray[np.int64]


def column(*values: int) -> Column:
    return np.array(values, np.int64)


def ordered(moves: list[tuple[int, int, int]], tiers: Column, room: list[int]) -> list[int]:
    """Return the order of moves of (pages, from node, to node)."""
    size, source, target = (column(*(move[i] for move in moves)) for i in range(3))
    order = np.full(len(moves), -1, np.int64)
    in_rounds(size, source, target, tiers, int(tiers.max()) + 1, column(*room), order)
    return order.tolist()


def turns(moves: list[tuple[int, int, int]], order: list[int]) -> int:
    """Return how many runs of the same direction there are."""
    ways = [moves[i][1:] for i in order]
    return 1 + sum(a != b for a, b in itertools.pairwise(ways))


def test_swaps_are_parted_into_all_down_and_all_up() -> None:
    moves = [(1, 0, 1), (1, 1, 0)] * 100
    order = ordered(moves, column(0, 1), [0, 1000])
    assert order == [*range(0, 200, 2), *range(1, 200, 2)]


def test_a_round_ends_where_the_slower_tier_is_full() -> None:
    moves = [(1, 0, 1), (1, 1, 0)] * 100
    assert turns(moves, ordered(moves, column(0, 1), [0, 10])) == 20


def test_the_slowest_tier_makes_room_first() -> None:
    # Tier 1 is full: what it sends down makes room for what comes from above.
    moves = [(1, 1, 2), (1, 0, 1), (1, 2, 0)] * 50
    order = ordered(moves, column(0, 1, 2), [0, 0, 1000])
    assert [moves[i][1:] for i in order] == [(1, 2)] * 50 + [(0, 1)] * 50 + [(2, 0)] * 50


@st.composite
def feasible(draw: st.DrawFn) -> tuple[list[tuple[int, int, int]], list[int], list[int]]:
    """Moves between four nodes of three tiers, each with room when its turn comes."""
    tiers = [0, 1, 1, 2]
    room = draw(st.lists(st.integers(0, 20), min_size=4, max_size=4))
    free, moves = room.copy(), []
    for _ in range(draw(st.integers(0, 60))):
        source, target = draw(st.permutations(range(4)))[:2]
        pages = draw(st.sampled_from((1, 1, 1, 8)))
        if tiers[source] == tiers[target] or free[target] < pages:
            continue
        free[source] += pages
        free[target] -= pages
        moves.append((pages, source, target))
    return moves, tiers, room


@given(feasible())
def test_every_move_is_made_once_and_finds_room(
    case: tuple[list[tuple[int, int, int]], list[int], list[int]],
) -> None:
    moves, tiers, room = case
    order = ordered(moves, column(*tiers), room)
    assert sorted(order) == list(range(len(moves)))
    for i in order:
        pages, source, target = moves[i]
        room[target] -= pages
        assert room[target] >= 0
        room[source] += pages
