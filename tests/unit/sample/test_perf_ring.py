# SPDX-License-Identifier: MIT
"""The C drain of perf rings, compared with a parser in Python for any ring content."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmd.sample.access_batch import Kind
from hmd.sample.perf_ring import HEADER_BYTES, RecordColumns, Ring, SampleType, sample_bytes
from tests.unit.sample.conftest import DATA_HEAD, GuardedRing
from tests.unit.sample.ring_oracle import (
    LOST,
    LOST_SAMPLES,
    ORDER,
    PMU_TYPE,
    SAMPLE,
    THROTTLE,
    U32,
    U64,
    UNTHROTTLE,
    oracle,
    record,
    rows_of,
)


def u64() -> st.SearchStrategy[int]:
    return st.one_of(st.integers(0, U64), st.sampled_from((0, 1, U32, U64, 1 << 47)))


def sample_types() -> st.SearchStrategy[SampleType]:
    chosen = st.sets(st.sampled_from(ORDER)).map(lambda fields: SampleType(sum(fields)))
    return st.one_of(st.just(PMU_TYPE), chosen)


@st.composite
def records(draw: st.DrawFn, sample_type: SampleType) -> bytes:
    fields = sum(1 for f in ORDER if f & sample_type)
    kind = draw(st.sampled_from((SAMPLE, SAMPLE, SAMPLE, LOST, LOST_SAMPLES, THROTTLE, 6, 1, 77)))
    words = {SAMPLE: fields, LOST: 2, LOST_SAMPLES: 1, THROTTLE: 3, UNTHROTTLE: 3}.get(kind)
    if words is None:
        words = draw(st.integers(0, 6))
    misc = draw(st.integers(0, 5)) | draw(st.sampled_from((0, 1 << 14)))  # mode of the CPU; a flag
    return record(kind, [draw(u64()) for _ in range(words)], misc)


@st.composite
def filled_rings(draw: st.DrawFn) -> tuple[bytes, int, int, SampleType]:
    """Well-formed records somewhere in a ring, wrapped where they reach its end."""
    sample_type = draw(sample_types())
    size = draw(st.sampled_from((128, 256, 1024, 4096)))
    tail = 8 * draw(st.one_of(st.integers(0, 2 * size // 8), st.integers(0, U64 // 8)))
    data = bytearray(draw(st.binary(min_size=size, max_size=size)))
    head = tail
    for written in draw(st.lists(records(sample_type), max_size=40)):
        if (head - tail) + len(written) > size:
            break
        for i, byte in enumerate(written):
            data[(head + i) % size] = byte
        head += len(written)
    return bytes(data), head & U64, tail, sample_type


def compare(
    memory: GuardedRing,
    data: bytes,
    head: int,
    tail: int,
    sample_type: SampleType,
    capacity: int,
    kind: Kind = Kind.LOAD,
) -> None:
    """Drain into columns of ``capacity`` rows, and by the oracle."""
    ring = memory.ring(data, sample_type, kind)
    memory.place(head, tail)
    columns = RecordColumns(capacity)
    expected = oracle(data, head, tail, sample_type, kind, capacity)
    expected.counts.lost &= U64
    assert ring.drain(columns) == expected.over
    assert rows_of(columns) == expected.rows
    assert ring.counts == expected.counts
    assert memory.tail == expected.tail == head
    assert memory.data.tobytes() == data, "a reader writes nothing into the data"


@given(filled=filled_rings(), capacity=st.integers(1, 50), kind=st.sampled_from(Kind))
@settings(max_examples=150, deadline=None)
def test_ring_of_any_records_is_read_as_written(
    memory: GuardedRing, filled: tuple[bytes, int, int, SampleType], capacity: int, kind: Kind
) -> None:
    compare(memory, *filled, capacity, kind)


@given(
    filled=filled_rings(),
    damage=st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), min_size=1, max_size=8),
    head_shift=st.one_of(st.just(0), st.integers(-64, 64), st.integers(0, U64)),
    tail_shift=st.one_of(st.just(0), st.integers(-64, 64), st.integers(0, U64)),
)
@settings(max_examples=150, deadline=None)
def test_ring_with_damaged_records_stays_in_bounds_and_ends(
    memory: GuardedRing,
    filled: tuple[bytes, int, int, SampleType],
    damage: list[tuple[int, int]],
    head_shift: int,
    tail_shift: int,
) -> None:
    data, head, tail, sample_type = filled
    damaged = bytearray(data)
    for position, byte in damage:
        damaged[position % len(data)] = byte
    head, tail = (head + head_shift) & U64, (tail + tail_shift) & U64
    compare(memory, bytes(damaged), head, tail, sample_type, 16)


@given(data=st.binary(min_size=512, max_size=512), head=u64(), tail=u64())
@settings(max_examples=100, deadline=None)
def test_ring_of_random_bytes_stays_in_bounds_and_ends(
    memory: GuardedRing, data: bytes, head: int, tail: int
) -> None:
    compare(memory, data, head, tail, PMU_TYPE, 4)


@pytest.mark.parametrize(
    ("size", "what"), [(0, "zero"), (4, "short"), (12, "unaligned"), (65528, "huge")]
)
def test_ring_with_impossible_record_size_is_given_up_once(
    memory: GuardedRing, size: int, what: str
) -> None:
    words = [7] * 9
    good = record(SAMPLE, words)
    data = (struct.pack("<IHH", SAMPLE, 0, size) + good).ljust(4096, b"\0")
    ring = memory.ring(data, PMU_TYPE)
    memory.place(8 + len(good), 0)
    columns = RecordColumns(8)
    assert not ring.drain(columns)
    assert (columns.count, ring.counts.corrupt, memory.tail) == (0, 1, 8 + len(good)), what
    # What is written afterwards is read again.
    head = 8 + len(good)
    memory.data[head : head + len(good)] = np.frombuffer(good, np.uint8)
    memory.place(head + len(good), memory.tail)
    ring.drain(columns)
    assert (columns.count, ring.counts.corrupt) == (1, 1)


def test_ring_with_head_past_its_data_resynchronises(memory: GuardedRing) -> None:
    ring = memory.ring(bytes(4096), PMU_TYPE)
    memory.place(4096 + 8, 0)
    assert not ring.drain(RecordColumns(4))
    assert (ring.counts.corrupt, memory.tail) == (1, 4104)


def test_ring_samples_beyond_full_columns_are_counted_as_lost(memory: GuardedRing) -> None:
    data = b"".join(record(SAMPLE, [i] * 9) for i in range(10)).ljust(1024, b"\0")
    ring = memory.ring(data, PMU_TYPE)
    memory.place(10 * sample_bytes(PMU_TYPE), 0)
    columns = RecordColumns(4)
    assert ring.drain(columns)
    assert columns.address[:4].tolist() == [0, 1, 2, 3]
    assert (ring.counts.samples, ring.counts.lost) == (4, 6)
    columns.clear()
    assert not ring.drain(columns)
    assert columns.count == 0


def test_sample_size_follows_its_fields() -> None:
    assert sample_bytes(SampleType.TID | SampleType.ADDR) == 24
    assert sample_bytes(PMU_TYPE) == 80


def test_sample_fields_of_varying_size_are_refused(memory: GuardedRing) -> None:
    callchain = SampleType(1 << 5)
    assert sample_bytes(callchain) == 0
    with pytest.raises(ValueError, match="variable size"):
        memory.ring(bytes(64), callchain)


@pytest.mark.parametrize("size", [0, 4, 24, 4095])
def test_ring_of_other_size_than_power_of_two_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        Ring(0, 0, size, PMU_TYPE, Kind.LOAD)


def test_ring_without_alignment_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 8"):
        Ring(4, 4096, 64, PMU_TYPE, Kind.LOAD)


def test_ring_over_an_array_keeps_it_alive() -> None:
    array: npt.NDArray[np.uint8] = np.zeros(HEADER_BYTES + 4096, np.uint8)
    array[HEADER_BYTES : HEADER_BYTES + 80] = np.frombuffer(record(SAMPLE, [5] * 9), np.uint8)
    array[DATA_HEAD : DATA_HEAD + 8].view(np.uint64)[0] = 80
    ring = Ring.over(array, PMU_TYPE)
    del array
    columns = RecordColumns(2)
    ring.drain(columns)
    assert columns.address[: columns.count].tolist() == [5]


def test_ring_without_header_is_refused() -> None:
    with pytest.raises(ValueError, match="header page"):
        Ring.over(np.zeros(HEADER_BYTES, np.uint8), PMU_TYPE)
