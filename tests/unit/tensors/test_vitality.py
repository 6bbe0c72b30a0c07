# SPDX-License-Identifier: MIT
from __future__ import annotations

import numpy as np
import pytest

from bench.tensors.g10_traces import g10_folder
from hmd.base.units import MIB
from hmd.tensors.lifetimes import reuse_distances, vitality
from tests.unit.tensors.conftest import RW, R, W, g10_trace, make_trace

G10_NAMES = (
    *(f"bert-{batch}" for batch in (128, 256, 512, 1024)),
    *(f"resnet152-{batch}" for batch in (256, 1024, 1280)),
)


def test_vitality_small_step_births_deaths_and_periods() -> None:
    trace = make_trace(
        [1, 2, 4],
        [
            (1, [(0, R), (1, W)]),
            (2, [(2, W)]),
            (4, [(1, R), (2, RW)]),
            (8, [(2, W)]),
        ],
        persistent=[0],
    )
    life = vitality(trace)
    assert life.birth.tolist() == [-1, 0, 1]
    assert life.death.tolist() == [-1, 3, 3]
    periods = life.periods
    rows = zip(periods.tensor, periods.start, periods.end, periods.looped, strict=True)
    assert [tuple(map(int, row)) for row in rows] == [(0, 1, 0, 1), (1, 1, 2, 0)]
    assert periods.seconds.tolist() == pytest.approx([0.014, 0.002])
    assert life.live_bytes.tolist() == [3 * MIB, 7 * MIB, 7 * MIB, 1 * MIB]
    assert life.working_bytes.tolist() == [3 * MIB, 4 * MIB, 6 * MIB, 4 * MIB]


def test_reuse_distances_count_distinct_bytes_between() -> None:
    trace = make_trace([1, 2], [(1, [(0, W)]), (1, [(1, W)]), (1, [(1, R)]), (1, [(0, R)])])
    assert sorted(reuse_distances(trace)[0].tolist()) == [0, 2 * MIB]


@pytest.mark.parametrize("name", G10_NAMES)
def test_vitality_of_g10_trace_equals_its_tables(name: str) -> None:
    life = vitality(g10_trace(name))
    with np.load(g10_folder() / f"{name}.npz") as table:
        birth, death = table["tensor_birth"], table["tensor_death"]
        assert np.array_equal(life.birth, birth)
        read = death >= 0
        assert np.array_equal(life.death[read], death[read])
        # The table has no death where no kernel reads a tensor: it dies after its first kernel.
        unread = ~read & (birth >= 0)
        assert np.array_equal(life.death[unread], birth[unread] + 1)
        for column in ("tensor", "start", "end", "looped"):
            assert np.array_equal(getattr(life.periods, column), table[f"interval_{column}"])
        assert np.allclose(life.periods.seconds * 1e6, table["interval_us"], rtol=1e-9, atol=1e-6)
