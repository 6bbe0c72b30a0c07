# SPDX-License-Identifier: MIT
"""A parser of perf rings in Python, as perf_event_open(2) describes them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from hmd.sample.access_batch import Kind
from hmd.sample.perf_ring import RecordColumns, RingCounts, SampleType

LOST, THROTTLE, UNTHROTTLE, SAMPLE, LOST_SAMPLES = 2, 5, 6, 9, 13
U64 = 2**64 - 1
U32 = 2**32 - 1

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
        record_type, misc, length = struct.unpack("<IHH", at(result.tail, 8))
        if length < 8 or length % 8 or length > (head - result.tail) & U64:
            result.counts.corrupt += 1
            result.tail = head
            return result
        body = at(result.tail + 8, length - 8)
        words = struct.unpack(f"<{len(body) // 8}Q", body)
        if record_type == SAMPLE and len(words) == len(fields):
            values = dict(zip(fields, words, strict=True))
            if misc & 7 in (4, 5):  # PERF_RECORD_MISC_GUEST_KERNEL, _USER
                result.counts.guest += 1
            elif values.get(SampleType.ADDR, 0) >> 63:
                if row(values, kind)[KIND] == Kind.STORE:
                    result.counts.kernel_stores += 1
                else:
                    result.counts.kernel_loads += 1
            elif is_cached(values) and row(values, kind)[KIND] == Kind.STORE:
                result.counts.cached_stores += 1
            elif is_cached(values):
                result.counts.cached_loads += 1
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


def is_cached(values: dict[SampleType, int]) -> bool:
    """Whether the data source is PERF_MEM_LVL_HIT | PERF_MEM_LVL_L1."""
    level = values.get(SampleType.DATA_SRC, 0) >> 5
    return bool(level & 2 and level & 8)


KIND = 8
"""The kind's place in a row."""


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
                    columns.thread,
                    columns.latency,
                    columns.period,
                    columns.cpu,
                    columns.kind,
                    columns.instructions,
                )
            ),
            strict=True,
        )
    )


def record(record_type: int, words: list[int], misc: int = 2) -> bytes:
    return struct.pack(f"<IHH{len(words)}Q", record_type, misc, 8 + 8 * len(words), *words)
