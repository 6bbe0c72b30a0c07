# SPDX-License-Identifier: MIT
"""Columns of records: the values that occur in one, and the rows that are kept."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmd.sample.perf_ring import RecordColumns, Ring, SampleType, distinct
from tests.unit.sample.ring_oracle import SAMPLE, U32, U64


@given(st.lists(st.integers(0, 5) | st.integers(0, U32), max_size=300))
def test_distinct_values_are_in_order_of_appearance(
    column: list[int],
) -> None:
    values, which = distinct(np.array(column, np.uint32))
    assert values == list(dict.fromkeys(column))
    assert [values[i] for i in which] == column


def test_distinct_values_beyond_the_limit_have_no_index() -> None:
    column = np.arange(40_000, dtype=np.uint32) * np.uint32(32_768)
    values, which = distinct(np.concatenate([column, column]))
    most = len(values)
    assert values == column[:most].tolist()
    assert 10_000 < most < 40_000
    expected = np.where(np.arange(40_000) < most, np.arange(40_000), -1)
    assert (which == np.concatenate([expected, expected])).all()


@given(
    st.lists(
        st.tuples(st.integers(-1, 3), st.sampled_from([0, 1, 4096, 1 << 55, 1 << 56, U64])),
        max_size=40,
    )
)
def test_rows_without_process_or_user_address_are_dropped(rows: list[tuple[int, int]]) -> None:
    ring = bytearray(4096 + 4096)
    for i, (_, address) in enumerate(rows):
        struct.pack_into("<IHHQQ", ring, 4096 + 24 * i, SAMPLE, 0, 24, address, i)
    struct.pack_into("<Q", ring, 1024, 24 * len(rows))
    memory = np.frombuffer(ring, np.uint8)
    columns = RecordColumns(64)
    Ring.over(memory, SampleType.ADDR | SampleType.PHYS_ADDR).drain(columns)
    user = [(i, p, a) for i, (p, a) in enumerate(rows) if a < 1 << 63]  # others are the kernel's
    process = np.array([process for _, process, _ in user], np.int32)
    left = columns.keep(process, 1 << 56)
    kept = [(i, p, a) for i, p, a in user if p >= 0 and 0 < a < 1 << 56]
    assert columns.count == len(kept)
    assert left.tolist() == [p for _, p, _ in kept]
    assert columns.address[: len(kept)].tolist() == [a for _, _, a in kept]
    assert columns.physical[: len(kept)].tolist() == [i for i, _, _ in kept]


def test_instructions_are_read_where_asked_for_and_stay_with_their_rows() -> None:
    ring = bytearray(4096 + 4096)
    for i in range(4):
        struct.pack_into("<IHHQQ", ring, 4096 + 24 * i, SAMPLE, 0, 24, 1000 + i, 4096 * i)
    struct.pack_into("<Q", ring, 1024, 24 * 4)
    columns = RecordColumns(8, optional=("code_address",))
    memory = np.frombuffer(ring, np.uint8)
    Ring.over(memory, SampleType.IP | SampleType.ADDR).drain(columns)
    assert columns.code_address[:4].tolist() == [1000, 1001, 1002, 1003]
    columns.keep(np.array([0, -1, 0, 0], np.int32), 1 << 56)  # the first has no address
    assert columns.code_address[: columns.count].tolist() == [1002, 1003]
    assert not hasattr(RecordColumns(8), "code_address")


def test_process_column_of_other_length_is_refused() -> None:
    with pytest.raises(ValueError, match="processes of 1 rows, not 0"):
        RecordColumns(4).keep(np.zeros(1, np.int32), 1 << 56)
