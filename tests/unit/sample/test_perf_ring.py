"""The C drain of perf rings, compared with a parser in Python for any ring content."""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmd.sample.access_batch import Kind
from hmd.sample.perf_ring import (
    HEADER_BYTES,
    RecordColumns,
    Ring,
    RingCounts,
    SampleType,
    distinct,
    sample_bytes,
)

LOST, THROTTLE, UNTHROTTLE, SAMPLE, LOST_SAMPLES = 2, 5, 6, 9, 13
DATA_HEAD, DATA_TAIL = 1024, 1032
U64 = 2**64 - 1
U32 = 2**32 - 1
PAGE = mmap.PAGESIZE

# Fields in the order in which perf_output_sample() writes them.
ORDER = (
    SampleType.IDENTIFIER,
    SampleType.IP,
    SampleType.TID,
    SampleType.TIME,
    SampleType.ADDR,
    SampleType.ID,
    SampleType.STREAM_ID,
    SampleType.CPU,
    SampleType.PERIOD,
    SampleType.READ,
    SampleType.WEIGHT,
    SampleType.DATA_SRC,
    SampleType.TRANSACTION,
    SampleType.PHYS_ADDR,
)
PMU_TYPE = (
    SampleType.IP
    | SampleType.TID
    | SampleType.TIME
    | SampleType.ADDR
    | SampleType.CPU
    | SampleType.PERIOD
    | SampleType.WEIGHT
    | SampleType.DATA_SRC
    | SampleType.PHYS_ADDR
)

Row = tuple[int, int, int, int, int, int, int, int, int, int]


@dataclass
class Parsed:
    """Result of the oracle: rows, counts, position of the tail, whether samples were lost."""

    rows: list[Row] = field(default_factory=list)
    counts: RingCounts = field(default_factory=RingCounts)
    tail: int = 0
    over: bool = False


def oracle(
    data: bytes, head: int, tail: int, sample_type: SampleType, kind: Kind, capacity: int
) -> Parsed:
    """Parse a ring byte by byte, as perf_event_open(2) describes it."""
    result = Parsed(tail=tail)
    size = len(data)

    def at(position: int, count: int) -> bytes:
        return bytes(data[(position + i) % size] for i in range(count))

    if (head - tail) & U64 > size or head % 8 or tail % 8:
        result.counts.corrupt += 1
        result.tail = head
        return result
    fields = [f for f in ORDER if f & sample_type]
    while result.tail != head:
        record_type, _, length = struct.unpack("<IHH", at(result.tail, 8))
        if length < 8 or length % 8 or length > (head - result.tail) & U64:
            result.counts.corrupt += 1
            result.tail = head
            return result
        body = at(result.tail + 8, length - 8)
        words = struct.unpack(f"<{len(body) // 8}Q", body)
        if record_type == SAMPLE and len(words) == len(fields):
            values = dict(zip(fields, words, strict=True))
            if is_cached_store(values):
                result.counts.cached += 1
            elif len(result.rows) == capacity:
                result.over = True
                result.counts.lost += 1
            else:
                result.rows.append(row(values, kind))
                result.counts.samples += 1
        elif record_type == SAMPLE:
            result.counts.corrupt += 1
        elif record_type in (LOST, LOST_SAMPLES):
            needed = 2 if record_type == LOST else 1
            if len(words) < needed:
                result.counts.corrupt += 1
            else:
                result.counts.lost = (result.counts.lost + words[needed - 1]) & U64
        elif record_type == THROTTLE:
            result.counts.throttled += 1
        elif record_type == UNTHROTTLE:
            result.counts.unthrottled += 1
        else:
            result.counts.skipped += 1
        result.tail = (result.tail + length) & U64
    return result


def is_cached_store(values: dict[SampleType, int]) -> bool:
    """Whether the data source is PERF_MEM_OP_STORE and PERF_MEM_LVL_HIT | PERF_MEM_LVL_L1."""
    source = values.get(SampleType.DATA_SRC, 0)
    level = source >> 5
    return bool(source & 4 and level & 2 and level & 8)


def row(values: dict[SampleType, int], kind: Kind) -> Row:
    source = values.get(SampleType.DATA_SRC, 0)
    if source & 4:
        kind = Kind.STORE
    elif source & 2:
        kind = Kind.LOAD
    tid = values.get(SampleType.TID, 0)
    return (
        values.get(SampleType.ADDR, 0),
        values.get(SampleType.PHYS_ADDR, 0),
        values.get(SampleType.TIME, 0),
        tid & U32,
        tid >> 32,
        min(values.get(SampleType.WEIGHT, 0), U32),
        min(values.get(SampleType.PERIOD, 0), U32),
        values.get(SampleType.CPU, 0) & 0xFFFF,
        int(kind),
        values.get(SampleType.READ, 0),
    )


def rows_of(columns: RecordColumns) -> list[Row]:
    n = columns.count
    return list(
        zip(
            *(
                column[:n].tolist()
                for column in (
                    columns.address,
                    columns.physical,
                    columns.time_ns,
                    columns.pid,
                    columns.tid,
                    columns.weight,
                    columns.period,
                    columns.cpu,
                    columns.kind,
                    columns.instructions,
                )
            ),
            strict=True,
        )
    )


class GuardedRing:
    """Ring memory between pages without access: one byte out of bounds ends the test run.

    ``data_bytes`` up to a page lie directly before a guard page, header and data apart.
    """

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, 5 * PAGE)
        self._bytes = np.frombuffer(self._map, np.uint8)
        start = self._bytes.ctypes.data
        libc = ctypes.CDLL(None, use_errno=True)
        for guard in (0, 2, 4):
            assert libc.mprotect(ctypes.c_void_p(start + guard * PAGE), PAGE, 0) == 0
        self._start = start
        self.header = self._bytes[PAGE : 2 * PAGE]

    def ring(self, data: bytes, sample_type: SampleType, kind: Kind = Kind.LOAD) -> Ring:
        end = 4 * PAGE
        self.data = self._bytes[end - len(data) : end]
        self.data[:] = np.frombuffer(data, np.uint8)
        return Ring(self._start + PAGE, self._start + end - len(data), len(data), sample_type, kind)

    def place(self, head: int, tail: int) -> None:
        self.header[DATA_HEAD : DATA_HEAD + 16].view(np.uint64)[:] = (head, tail)

    @property
    def tail(self) -> int:
        return int(self.header[DATA_TAIL : DATA_TAIL + 8].view(np.uint64)[0])


@pytest.fixture(scope="module")
def memory() -> Iterator[GuardedRing]:
    yield GuardedRing()


def u64() -> st.SearchStrategy[int]:
    return st.one_of(st.integers(0, U64), st.sampled_from((0, 1, U32, U64, 1 << 47)))


def record(record_type: int, words: list[int]) -> bytes:
    return struct.pack(f"<IHH{len(words)}Q", record_type, 2, 8 + 8 * len(words), *words)


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
    return record(kind, [draw(u64()) for _ in range(words)])


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
    process = np.array([process for process, _ in rows], np.int32)
    left = columns.keep(process, 1 << 56)
    kept = [(i, p, a) for i, (p, a) in enumerate(rows) if p >= 0 and 0 < a < 1 << 56]
    assert columns.count == len(kept)
    assert left.tolist() == [p for _, p, _ in kept]
    assert columns.address[: len(kept)].tolist() == [a for _, _, a in kept]
    assert columns.physical[: len(kept)].tolist() == [i for i, _, _ in kept]


def test_process_column_of_other_length_is_refused() -> None:
    with pytest.raises(ValueError, match="processes of 1 rows, not 0"):
        RecordColumns(4).keep(np.zeros(1, np.int32), 1 << 56)
