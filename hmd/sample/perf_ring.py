"""Draining perf rings into columns: the typed front of hmd/native/ring.c.

Takes a ring (header page and data) that the kernel, or the emulated machine, writes; gives rows
in preallocated numpy columns. A sample costs a few nanoseconds; a drain allocates nothing. What
the writer put into the ring is checked, never trusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import Any

import numpy as np
import numpy.typing as npt

from hmd._native import ffi, lib
from hmd.sample.access_batch import Kind
from hmd.units import PAGE_BYTES

HEADER_BYTES = PAGE_BYTES
"""The header page, which comes before the data (struct perf_event_mmap_page)."""


class SampleType(IntFlag):
    """Fields of a sample (enum perf_event_sample_format, perf_event_open(2)).

    Those of fixed size only: a field of varying size would make every record a parse. READ is
    one word, as of an event without read_format.
    """

    IP = 1 << 0
    TID = 1 << 1
    TIME = 1 << 2
    ADDR = 1 << 3
    READ = 1 << 4
    ID = 1 << 6
    CPU = 1 << 7
    PERIOD = 1 << 8
    STREAM_ID = 1 << 9
    WEIGHT = 1 << 14
    DATA_SRC = 1 << 15
    IDENTIFIER = 1 << 16
    TRANSACTION = 1 << 17
    PHYS_ADDR = 1 << 19


def sample_bytes(sample_type: SampleType) -> int:
    """Return the size of a sample record of this type, its 8-byte header included."""
    return int(lib.hmd_ring_sample_bytes(int(sample_type)))


@dataclass(slots=True)
class RingCounts:
    """What was read from rings, in records; ``lost`` in samples.

    ``skipped`` are records of types that tell a sampler nothing. ``corrupt`` are records of
    impossible size, and rings that had to be given up to the writer's head.
    """

    samples: int = 0
    lost: int = 0
    throttled: int = 0
    unthrottled: int = 0
    skipped: int = 0
    corrupt: int = 0


class RecordColumns:
    """Preallocated columns of ``capacity`` rows; the first ``count`` are filled.

    ``weight`` and ``period`` are clamped to 32 bits; a field that the ring's sample type lacks
    is 0. ``instructions`` is the READ field, a count of them in every ring of hmd's that has
    one. The arrays are reused by every drain: copy what must live longer.
    """

    __slots__ = (
        "_c",
        "address",
        "capacity",
        "cpu",
        "instructions",
        "kind",
        "period",
        "physical",
        "pid",
        "tid",
        "time_ns",
        "weight",
    )

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.address = np.zeros(capacity, np.uint64)
        self.physical = np.zeros(capacity, np.uint64)
        self.time_ns = np.zeros(capacity, np.uint64)
        self.instructions = np.zeros(capacity, np.uint64)
        self.pid = np.zeros(capacity, np.uint32)
        self.tid = np.zeros(capacity, np.uint32)
        self.weight = np.zeros(capacity, np.uint32)
        self.period = np.zeros(capacity, np.uint32)
        self.cpu = np.zeros(capacity, np.uint16)
        self.kind = np.zeros(capacity, np.uint8)
        # The arrays live as long as this object, so their addresses stay valid.
        pointers = {
            name: ffi.cast(ctype, getattr(self, name).ctypes.data)
            for name, ctype in _COLUMN_TYPES.items()
        }
        self._c: Any = ffi.new("struct hmd_ring_columns *", {"capacity": capacity, **pointers})

    @property
    def count(self) -> int:
        """Rows filled."""
        return int(self._c.count)

    @property
    def full(self) -> bool:
        """True where no row is left."""
        return self.count >= self.capacity

    def clear(self) -> None:
        """Forget the rows."""
        self._c.count = 0

    def keep(self, process: npt.NDArray[np.int32], end: int) -> npt.NDArray[np.int32]:
        """Leave the rows of a process (0 or above) with an address from 1 to below ``end``.

        ``process`` has shape ``(count,)`` and is changed too; returns what is left of it.
        """
        if len(process) != self.count or not process.flags.c_contiguous:
            raise ValueError(f"processes of {len(process)} rows, not {self.count} in a row")
        kept = lib.hmd_ring_keep(self._c, ffi.from_buffer("int32_t[]", process), end)
        return process[: int(kept)]


def distinct(column: npt.NDArray[np.uint32]) -> tuple[list[int], npt.NDArray[np.int32]]:
    """Return the values of a column, each once, and which of them each row has.

    In the order in which they come, 16384 of them at most; rows of values beyond have -1. It
    does not sort, as numpy's unique does.
    """
    column = np.ascontiguousarray(column, np.uint32)
    values = np.empty(min(len(column), lib.HMD_DISTINCT_MOST), np.uint32)
    which = np.empty(len(column), np.int32)
    count = lib.hmd_ring_distinct(
        ffi.from_buffer("uint32_t[]", column),
        len(column),
        ffi.from_buffer("uint32_t[]", values),
        ffi.from_buffer("int32_t[]", which),
    )
    return values[: int(count)].tolist(), which


_COLUMN_TYPES = {
    "address": "uint64_t *",
    "physical": "uint64_t *",
    "time_ns": "uint64_t *",
    "instructions": "uint64_t *",
    "pid": "uint32_t *",
    "tid": "uint32_t *",
    "weight": "uint32_t *",
    "period": "uint32_t *",
    "cpu": "uint16_t *",
    "kind": "uint8_t *",
}


class Ring:
    """One ring. Its memory belongs to whoever made it and must outlive it."""

    __slots__ = ("_counts", "_memory", "_source")

    def __init__(
        self, header: int, data: int, data_bytes: int, sample_type: SampleType, kind: Kind
    ) -> None:
        """Read a ring at these addresses; ``kind`` is that of samples that do not tell theirs.

        ValueError where the data is no power of two of bytes, an address is not aligned to 8, or
        the sample type has a field of varying size.
        """
        if header % 8 or data % 8:
            raise ValueError("a ring starts at a multiple of 8 bytes")
        if data_bytes < 8 or data_bytes & (data_bytes - 1):
            raise ValueError(f"a ring of {data_bytes} bytes is not a power of two")
        if not sample_bytes(sample_type):
            raise ValueError(f"sample type {int(sample_type):#x} has fields of varying size")
        self._memory: object = None
        self._counts: Any = ffi.new("struct hmd_ring_counts *")
        self._source = ffi.new(
            "struct hmd_ring_source *",
            {
                "header": ffi.cast("void *", header),
                "data": ffi.cast("void *", data),
                "data_bytes": data_bytes,
                "sample_type": int(sample_type),
                "kind": int(kind),
            },
        )

    @classmethod
    def over(
        cls, memory: npt.NDArray[np.uint8], sample_type: SampleType, kind: Kind = Kind.LOAD
    ) -> Ring:
        """Return a ring over an array of a header page and its data, which it keeps alive."""
        if len(memory) <= HEADER_BYTES:
            raise ValueError("a ring needs a header page and data")
        start = memory.ctypes.data
        ring = cls(start, start + HEADER_BYTES, len(memory) - HEADER_BYTES, sample_type, kind)
        ring._memory = memory
        return ring

    @property
    def counts(self) -> RingCounts:
        """What was read since the ring was made."""
        c = self._counts
        return RingCounts(
            int(c.samples),
            int(c.lost),
            int(c.throttled),
            int(c.unthrottled),
            int(c.skipped),
            int(c.corrupt),
        )

    def copy(self, buffer: Any) -> int:
        """Move whole records, of any type, into a buffer of ffi's; returns the bytes copied."""
        return int(lib.hmd_ring_bytes(self._source, buffer, ffi.sizeof(buffer)))

    def drain(self, columns: RecordColumns) -> bool:
        """Append what is in the ring; True where samples are lost because columns are full."""
        return bool(lib.hmd_ring_drain(self._source, columns._c, self._counts))
