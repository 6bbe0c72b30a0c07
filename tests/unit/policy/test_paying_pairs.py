# SPDX-License-Identifier: MIT
"""Paying pairs: the best gain with the least loss, until a pair does not pay."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from hmd.policy.saving import paying_pairs


class Side(NamedTuple):
    """What each row gains or loses, and its pages."""

    value: npt.NDArray[np.float64]
    size: npt.NDArray[np.int64]


def by_hand(coming: Side, leaving: Side, room: int) -> tuple[list[int], list[int]]:
    """The same with ``room`` of 0 or more, pair by pair, in Python."""
    gains = sorted(range(len(coming.value)), key=lambda row: (-coming.value[row], row))
    losses = sorted(range(len(leaving.value)), key=lambda row: (leaving.value[row], row))
    free = room
    came: list[int] = []
    gone: list[int] = []
    for row in gains:
        size, made = int(coming.size[row]), 0
        taken: list[int] = []
        while free + made < size and losses:
            taken.append(losses.pop(0))
            made += int(leaving.size[taken[-1]])
        displaces = bool(taken) or bool(gone)
        price = float(leaving.value[[*gone, *taken][-1]]) if displaces else 0.0
        if free + made < size or coming.value[row] <= price:
            break
        came.append(row)
        gone += taken
        free += made - size
    return came, gone


@pytest.mark.parametrize("room", [0, 3, 100])
def test_pairs_drawn_at_random_equal_those_by_hand(room: int) -> None:
    random = np.random.default_rng(room)
    for _ in range(40):
        rows = random.integers(0, 12, 2)
        coming, leaving = (
            Side(random.permutation(50)[:count].astype(float), random.integers(1, 4, count))
            for count in rows
        )
        came, gone = paying_pairs(*coming, *leaving, room)
        assert (came.tolist(), gone.tolist()) == by_hand(coming, leaving, room)


def test_pairs_tier_over_its_headroom_coldest_leave_though_nothing_comes() -> None:
    nothing = Side(np.empty(0), np.empty(0, np.int64))
    leaving = Side(np.array([5.0, 1.0, 3.0]), np.array([1, 1, 1]))
    came, gone = paying_pairs(*nothing, *leaving, -2)
    assert came.tolist() == []
    assert gone.tolist() == [1, 2]


def test_pairs_gain_equal_to_loss_does_not_pay() -> None:
    one = Side(np.array([2.0]), np.array([1]))
    came, gone = paying_pairs(*one, *one, 0)
    assert came.tolist() == []
    assert gone.tolist() == []
