from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmd.machine.process_id import ProcessId
from hmd.migrate.batches import BatchSize, move_groups


def test_groups_are_by_phase_process_and_node_with_rising_addresses(bench: SimpleNamespace) -> None:
    rows = [
        (0, 50 << 12, 1, 0, 1),
        (1, 40 << 12, 1, 0, 1),
        (0, 30 << 12, 1, 0, 1),
        (0, 20 << 12, 1, 1, 0),
        (0, 10 << 12, 1, 1, 2),
        (1, 10 << 12, 1, 1, 0),
    ]
    plan = bench.plan([ProcessId(1, 1), ProcessId(2, 1)], rows)
    found = [(g.process, g.node, g.rows.tolist()) for g in move_groups(plan, np.arange(len(plan)))]
    assert found == [(0, 1, [2, 0]), (1, 1, [1]), (0, 0, [3]), (0, 2, [4]), (1, 0, [5])]
    some = move_groups(plan, np.array([0, 5]))
    assert [g.rows.tolist() for g in some] == [[0], [5]]


def test_batches_grow_while_calls_are_short_and_stop_at_the_most() -> None:
    size = BatchSize(256, 5120, 0.020)
    for _ in range(10):
        size.observe(size.pages, 0.001)
    assert size.pages == 5120


def test_batches_shrink_at_once_and_stop_at_the_least() -> None:
    size = BatchSize(256, 5120, 0.020)
    for _ in range(10):
        size.observe(size.pages, 0.001)
    size.observe(5120, 0.040)
    assert size.pages == 2560
    size.observe(2560, 10.0)
    assert size.pages == 256


def test_a_small_call_says_nothing_of_large_ones() -> None:
    size = BatchSize(256, 5120, 0.020)
    for _ in range(10):
        size.observe(size.pages, 0.001)
    size.observe(1, 0.002)
    assert size.pages == 5120


def test_a_clock_too_coarse_to_tell_counts_as_short() -> None:
    size = BatchSize(256, 5120, 0.020)
    size.observe(256, 0.0)
    assert size.pages == 512


@given(st.lists(st.sampled_from([1, 512]), min_size=1, max_size=60), st.integers(1, 2000))
def test_a_batch_takes_at_least_one_row_and_no_more_than_fits(weights: Any, limit: Any) -> None:
    size = BatchSize(limit, limit, 1.0)
    column = np.array(weights, np.uint32)
    count = size.take(column)
    assert 1 <= count <= len(weights)
    assert count == 1 or column[:count].sum() <= limit
    assert count == len(weights) or column[: count + 1].sum() > limit


@pytest.mark.parametrize(("least", "most"), [(0, 10), (10, 5)])
def test_refuses_sizes_that_make_no_sense(least: int, most: int) -> None:
    with pytest.raises(ValueError, match="no batch size"):
        BatchSize(least, most, 0.02)
