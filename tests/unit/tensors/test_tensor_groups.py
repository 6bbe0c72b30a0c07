# SPDX-License-Identifier: MIT
from __future__ import annotations

import numpy as np

from bench.tensors.publications.deeptm import group_tensors
from hmd.base.units import MIB
from hmd.tensors.move_plan import WHOLE
from tests.unit.tensors.conftest import R, W, make_trace

TRACE = make_trace([1, 2, 4], [(1, [(0, W), (1, W)]), (1, [(2, W)]), (1, [(0, R), (1, R), (2, R)])])


def test_groups_of_tensors_with_equal_uses_are_one_tensor() -> None:
    groups = group_tensors(TRACE)
    assert groups.members == ((0, 1), (2,))
    assert groups.trace.tensor_bytes.tolist() == [3 * MIB, 4 * MIB]
    assert groups.trace.use_tensor.tolist() == [0, 1, 0, 1]
    assert groups.trace.ideal_ticks == TRACE.ideal_ticks
    assert np.array_equal(groups.trace.use_start, [0, 1, 2, 4])


def test_groups_expand_whole_moves_to_every_member() -> None:
    moves = list(group_tensors(TRACE).expand([(1, 0, 0, 1, WHOLE)], 4096))
    assert moves == [(1, 0, 0, 1, WHOLE), (1, 1, 0, 1, WHOLE)]


def test_groups_expand_pieces_to_the_members_in_order() -> None:
    pieces = [(0, 0, 0, 1, 2 * MIB), (1, 0, 0, 1, MIB), (5, 0, 0, 1, 3 * MIB)]
    moves = list(group_tensors(TRACE).expand(pieces, 4096))
    assert moves == [
        (0, 0, 0, 1, MIB),
        (0, 1, 0, 1, MIB),
        (1, 1, 0, 1, MIB),
        (5, 0, 0, 1, MIB),
        (5, 1, 0, 1, 2 * MIB),
    ]
