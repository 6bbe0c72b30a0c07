# SPDX-License-Identifier: MIT
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmd.linux.procfs import ProcessId
from hmd.migrate.move_budget import BatchSize, move_sequence
from tests.fakes.move_pages_kernel import make_plan


def test_move_sequence_by_phase_process_node_addresses_ascending() -> None:
    rows = [
        (0, 50 << 12, 1, 0, 1),
        (1, 40 << 12, 1, 0, 1),
        (0, 30 << 12, 1, 0, 1),
        (0, 20 << 12, 1, 1, 0),
        (0, 10 << 12, 1, 1, 2),
        (1, 10 << 12, 1, 1, 0),
    ]
    plan = make_plan([ProcessId(1, 1), ProcessId(2, 1)], rows)
    order, starts = move_sequence(plan)
    groups = [group.tolist() for group in np.split(order, starts[1:])]
    assert groups == [[2, 0], [1], [3], [4], [5]]


def test_move_sequence_of_many_processes_groups_in_order() -> None:
    count = 70_000
    processes = [ProcessId(pid, 1) for pid in range(count)]
    plan = make_plan(processes, [(i, (count - i) << 12, 1, 0, 1) for i in range(count)])
    order, starts = move_sequence(plan)
    assert order.tolist() == starts.tolist() == list(range(count))


def test_move_sequence_of_no_rows_empty() -> None:
    order, starts = move_sequence(make_plan([], []))
    assert (len(order), len(starts)) == (0, 0)


def test_batch_size_short_calls_grows_to_maximum() -> None:
    size = BatchSize(256, 5120, 0.020)
    for _ in range(10):
        size.observe(size.pages, 0.001)
    assert size.pages == 5120


def test_batch_size_long_calls_shrinks_to_minimum() -> None:
    size = BatchSize(256, 5120, 0.020)
    for _ in range(10):
        size.observe(size.pages, 0.001)
    size.observe(5120, 0.040)
    assert size.pages == 1280
    size.observe(1280, 10.0)
    assert size.pages == 256


def test_batch_size_small_call_unchanged() -> None:
    size = BatchSize(256, 5120, 0.020)
    for _ in range(10):
        size.observe(size.pages, 0.001)
    size.observe(1, 0.002)
    assert size.pages == 5120


def test_batch_size_zero_duration_grows() -> None:
    size = BatchSize(256, 5120, 0.020)
    size.observe(256, 0.0)
    assert size.pages == 512


@given(st.lists(st.sampled_from([1, 512]), min_size=1, max_size=60), st.integers(1, 2000))
def test_batch_take_at_least_one_row_within_limit(page_counts: list[int], limit: int) -> None:
    size = BatchSize(limit, limit, 1.0)
    column = np.array(page_counts, np.uint32)
    count = size.count_fitting(column)
    assert 1 <= count <= len(page_counts)
    assert count == 1 or column[:count].sum() <= limit
    assert count == len(page_counts) or column[: count + 1].sum() > limit


@pytest.mark.parametrize(("least", "most"), [(0, 10), (10, 5)])
def test_batch_size_invalid_bounds_refused(least: int, most: int) -> None:
    with pytest.raises(ValueError, match="no batch size"):
        BatchSize(least, most, 0.02)
