# SPDX-License-Identifier: MIT
"""Phases of moves: each move has room, in any order within its phase."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmd.policy.plan import Plan
from hmd.policy.planning import order_in_phases, phase_numbers

Column = npt.NDArray[np.int64]


def column(*values: int) -> Column:
    return np.array(values, np.int64)


def ordered(moves: list[tuple[int, int, int]], tiers: Column, room: list[int]) -> list[int]:
    """Return the order of moves of (pages, from node, to node)."""
    size, source, target = (column(*(move[i] for move in moves)) for i in range(3))
    order = np.full(len(moves), -1, np.int64)
    order_in_phases(size, source, target, tiers, int(tiers.max()) + 1, column(*room), order)
    return order.tolist()


def turns(moves: list[tuple[int, int, int]], order: list[int]) -> int:
    """Return how many runs of the same direction there are."""
    ways = [moves[i][1:] for i in order]
    return 1 + sum(a != b for a, b in itertools.pairwise(ways))


def test_move_phases_swaps_demotions_then_promotions() -> None:
    moves = [(1, 0, 1), (1, 1, 0)] * 100
    order = ordered(moves, column(0, 1), [0, 1000])
    assert order == [*range(0, 200, 2), *range(1, 200, 2)]


def test_move_phases_full_slow_tier_directions_alternate() -> None:
    moves = [(1, 0, 1), (1, 1, 0)] * 100
    assert turns(moves, ordered(moves, column(0, 1), [0, 10])) == 20


def test_move_phases_three_tiers_slowest_moves_first() -> None:
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
def test_move_phases_any_moves_each_once_with_room(
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


@given(feasible(), st.randoms(use_true_random=False))
def test_move_phases_any_order_within_phase_has_room(
    case: tuple[list[tuple[int, int, int]], list[int], list[int]], random: Random
) -> None:
    moves, tiers, room = case
    order = ordered(moves, column(*tiers), room)
    source, target = (column(*(moves[i][end] for i in order)) for end in (1, 2))
    phase = phase_numbers(source, target).tolist()
    assert phase == sorted(phase)
    shuffled = sorted(zip(phase, order, strict=True), key=lambda row: (row[0], random.random()))
    for _, i in shuffled:
        pages, here, there = moves[i]
        room[there] -= pages
        assert room[there] >= 0
        room[here] += pages


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], []),
        ([(0, 1), (0, 1), (1, 0)], [0, 0, 1]),
        ([(1, 2), (0, 1), (2, 0), (1, 0)], [0, 1, 2, 2]),
        ([(1, 0), (2, 0), (2, 1)], [0, 0, 1]),
        ([(0, 1), (0, 2)], [0, 0]),
    ],
)
def test_phase_numbers_increase_where_room_was_made(
    pairs: list[tuple[int, int]], expected: list[int]
) -> None:
    source, target = (column(*(pair[i] for pair in pairs)) for i in range(2))
    assert phase_numbers(source, target).tolist() == expected


def test_plan_joined_phases_stay_separate() -> None:
    def plan(*phase: int) -> Plan:
        empty = Plan.empty()
        rows = np.zeros(len(phase), np.intp)
        zeros: dict[str, Any] = {
            f.name: np.zeros(1, column.dtype)
            for f in fields(Plan)
            if isinstance(column := getattr(empty, f.name), np.ndarray)
        }
        one = replace(empty, **zeros)
        return replace(one.take(rows), phase=np.array(phase, np.int32))

    joined = Plan.joined((plan(0, 0, 1), Plan.empty(), plan(0, 1), plan(0)))
    assert joined.phase.tolist() == [0, 0, 1, 2, 3, 4]
    assert joined.phase.dtype == np.int32
