# SPDX-License-Identifier: MIT
"""Draining of perf rings and of perf's files into columns: the interface of hmd/native/ring.c.

The kernel or the emulated machine writes a ring; records of a file lie in memory one after the
other (``split_records``, ``read_records``). A sample costs a few nanoseconds, and a drain allocates
nothing. Records are validated, since the writer is not trusted.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from enum import IntEnum, IntFlag
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd._native import ffi, lib
from hmd.base.units import PAGE_BYTES
from hmd.linux.page_calls import c_array
from hmd.sample.access_batch import Kind

HEADER_BYTES: Final = PAGE_BYTES
"""The header page before the data (struct perf_event_mmap_page)."""
_HEAD_WORD, _TAIL_WORD = 1024 // 8, 1032 // 8
"""data_head and data_tail of the header page, in words."""


class SampleType(IntFlag):
    """Fields of a sample of fixed size (enum perf_event_sample_format, perf_event_open(2)).

    A ring may have no others. READ is one word there, as for an event without read_format.
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
    WEIGHT_STRUCT = 1 << 24


class Level(IntEnum):
    """What answered an access, by its data source (HMD_LEVEL in hmd/native/ring.h)."""

    UNKNOWN = 0
    L1 = 1
    L2 = 2
    L3 = 3
    """The last-level cache, or a cache of another socket."""
    FILL_BUFFER = 4
    """A line that was on its way."""
    MEMORY = 5
    REMOTE_MEMORY = 6
    CXL_MEMORY = 7
    PERSISTENT_MEMORY = 8


def sample_bytes(sample_type: SampleType) -> int:
    """Return the size of a sample record of this type, its 8-byte header included."""
    return int(lib.hmd_ring_sample_bytes(int(sample_type)))


@dataclass(slots=True)
class RingCounts:
    """What was read from a ring, in records; ``lost`` in samples. Fields of hmd_ring_counts.

    ``skipped`` are records of types that a sampler does not use. ``corrupt`` are records of
    impossible size, and rings that were discarded up to the writer's head. Not among the
    ``samples`` are those of stores and loads that hit the first-level cache (``cached_stores``,
    ``cached_loads``), those of the kernel's own addresses (``kernel_stores``, ``kernel_loads``),
    and those of virtual machines' guests (``guest``), whose addresses are not the host's.
    """

    samples: int = 0
    lost: int = 0
    throttled: int = 0
    unthrottled: int = 0
    skipped: int = 0
    corrupt: int = 0
    cached_stores: int = 0
    cached_loads: int = 0
    kernel_stores: int = 0
    kernel_loads: int = 0
    guest: int = 0

    @property
    def dropped(self) -> int:
        """Samples that tell nothing of programs' memory."""
        return self.cached_stores + self.cached_loads + self.kernel_addresses + self.guest

    @property
    def kernel_addresses(self) -> int:
        """Samples of the kernel's own addresses."""
        return self.kernel_stores + self.kernel_loads

    @property
    def useless_stores(self) -> int:
        """Samples of stores that tell nothing of programs' memory."""
        return self.cached_stores + self.kernel_stores


_COUNTS: Final = tuple(field.name for field in fields(RingCounts))

OPTIONAL_COLUMNS: Final = ("level", "code_address")
"""Columns that are filled where a reader asks for them."""


class RecordColumns:
    """Preallocated columns of ``capacity`` rows; the first ``count`` are filled.

    The columns are those of struct hmd_ring_columns. ``latency`` (in units of the writer) and
    ``period`` are clamped to 32 bits; a field that the ring's sample type lacks is 0, and ``level``
    and ``code_address`` (of the instruction) exist where ``optional`` names them.
    ``instructions`` is the READ field, an instruction count in all of hmd's rings that have one.
    Every drain reuses the arrays: copy rows that must live longer.
    """

    address: npt.NDArray[np.uint64]
    physical: npt.NDArray[np.uint64]
    time_ns: npt.NDArray[np.uint64]
    instructions: npt.NDArray[np.uint64]
    pid: npt.NDArray[np.uint32]
    thread: npt.NDArray[np.uint32]
    latency: npt.NDArray[np.uint32]
    period: npt.NDArray[np.uint32]
    cpu: npt.NDArray[np.uint16]
    kind: npt.NDArray[np.uint8]
    level: npt.NDArray[np.uint8]
    code_address: npt.NDArray[np.uint64]

    def __init__(self, capacity: int, *, optional: Collection[str] = ()) -> None:
        self.capacity = capacity
        self.c: Any = ffi.new("struct hmd_ring_columns *", {"capacity": capacity})
        for name, field in ffi.typeof("struct hmd_ring_columns").fields:
            if field.type.kind == "pointer" and (name in optional or name not in OPTIONAL_COLUMNS):
                dtype = np.dtype(field.type.item.cname.removesuffix("_t"))
                column = np.zeros(capacity, dtype)
                # The array lives as long as this object, so its address stays valid.
                setattr(self, name, column)
                setattr(self.c, name, ffi.cast(field.type, column.ctypes.data))

    @property
    def count(self) -> int:
        """Rows filled."""
        return int(self.c.count)

    @property
    def without_address(self) -> int:
        """Rows of a process that ``keep`` has dropped because their address is 0."""
        return int(self.c.without_address)

    def clear(self) -> None:
        """Discard the rows."""
        self.c.count = 0

    def keep(self, process: npt.NDArray[np.int32], end: int) -> npt.NDArray[np.int32]:
        """Keep the rows of a process (0 or above) with an address from 1 to below ``end``.

        ``process`` has shape ``(count,)`` and is compacted too; returns its remaining part.
        """
        if len(process) != self.count or not process.flags.c_contiguous:
            raise ValueError(f"processes of {len(process)} rows, not {self.count} in a row")
        kept = lib.hmd_ring_keep(self.c, c_array(process), end)
        return process[: int(kept)]


def distinct(column: npt.NDArray[np.uint32]) -> tuple[list[int], npt.NDArray[np.int32]]:
    """Return the distinct values of a column, at most 16384, and each row's index among them.

    Values are in order of first occurrence; rows of further values have -1. Unlike numpy's unique,
    it does not sort.
    """
    column = np.ascontiguousarray(column, np.uint32)
    values = np.empty(min(len(column), lib.HMD_MAX_DISTINCT), np.uint32)
    which = np.empty(len(column), np.int32)
    count = lib.hmd_ring_distinct(c_array(column), len(column), c_array(values), c_array(which))
    return values[: int(count)].tolist(), which


Bytes: TypeAlias = bytes | bytearray | memoryview


class SampleFormat(NamedTuple):
    """What sizes the fields of an event's samples in a file: struct hmd_sample_format."""

    sample_type: int
    read_format: int = 0
    branch_sample_type: int = 0
    user_registers: int = 0
    interrupt_registers: int = 0


class RecordList(NamedTuple):
    """Offset, type and event id (0: none) of records in memory, ``(records,)``, up to ``bytes``."""

    offset: npt.NDArray[np.uint32]
    type: npt.NDArray[np.uint32]
    id: npt.NDArray[np.uint64]
    bytes: int


def split_records(data: Bytes, id_word: int = 0, max_records: int = 1 << 16) -> RecordList:
    """List the records at the beginning of ``data``; ``id_word`` has the event's id, 0: none.

    The list ends before the first record that is not whole or of impossible size.
    """
    offset, kind = np.empty((2, max_records), np.uint32)
    identity = np.empty(max_records, np.uint64)
    listed = ffi.new(
        "struct hmd_record_list *",
        {
            "offset": c_array(offset),
            "type": c_array(kind),
            "id": c_array(identity),
            "capacity": max_records,
        },
    )
    lib.hmd_records_split(ffi.from_buffer(data), len(data), id_word, listed)
    count = int(listed.count)
    return RecordList(offset[:count], kind[:count], identity[:count], int(listed.bytes))


def read_records(
    sample_format: SampleFormat,
    kind: Kind,
    data: Bytes,
    offset: npt.NDArray[np.uint32],
    columns: RecordColumns,
) -> RingCounts:
    """Append the samples of one event, at offsets that ``split_records`` gave; count the others.

    What a cache answered and the kernel's addresses are kept. Samples that do not fit the format
    are corrupt, and those for which the columns have no room are lost.
    """
    counts = ffi.new("struct hmd_ring_counts *")
    lib.hmd_records_read(
        ffi.new("struct hmd_sample_format *", sample_format),
        int(kind),
        ffi.from_buffer(data),
        c_array(np.ascontiguousarray(offset)),
        len(offset),
        columns.c,
        counts,
    )
    return ring_counts(counts)


def ring_counts(counts: Any) -> RingCounts:
    """Return a struct hmd_ring_counts."""
    return RingCounts(*(int(getattr(counts, name)) for name in _COUNTS))


class Ring:
    """A ring that the CPU ``cpu`` fills, -1: any. The caller owns its memory.

    ``kind`` is that of samples without a data source. ``close`` ends all use of the memory.
    ValueError if the data size is not a power of two, an address is not aligned to 8 bytes, or the
    sample type has a field of variable size.
    """

    def __init__(
        self,
        header: int,
        data: int,
        data_bytes: int,
        sample_type: SampleType,
        kind: Kind,
        cpu: int = -1,
    ) -> None:
        if header % 8 or data % 8:
            raise ValueError("a ring starts at a multiple of 8 bytes")
        if data_bytes < 8 or data_bytes & (data_bytes - 1):
            raise ValueError(f"a ring of {data_bytes} bytes is not a power of two")
        if not sample_bytes(sample_type):
            raise ValueError(f"sample type {int(sample_type):#x} has fields of variable size")
        self.cpu, self.kind = cpu, kind
        self._attached = True
        self._memory: object = None
        self._words: Any = ffi.cast("volatile uint64_t *", header)
        self._counts: Any = ffi.new("struct hmd_ring_counts *")
        self.source: Any = ffi.new(
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
        cls,
        memory: npt.NDArray[np.uint8],
        sample_type: SampleType,
        kind: Kind = Kind.LOAD,
        cpu: int = -1,
    ) -> Ring:
        """Return a ring over an array of a header page and its data, which it keeps alive."""
        if len(memory) <= HEADER_BYTES:
            raise ValueError("a ring needs a header page and data")
        start, size = memory.ctypes.data, len(memory) - HEADER_BYTES
        ring = Ring(start, start + HEADER_BYTES, size, sample_type, kind, cpu)
        ring._memory = memory
        return ring

    def close(self) -> None:
        """Treat the ring as empty from now on: its memory is about to be unmapped."""
        self._attached = False

    @property
    def pending(self) -> bool:
        """Whether the writer has added records since the last drain; 0.1 µs."""
        return self._attached and bool(self._words[_HEAD_WORD] != self._words[_TAIL_WORD])

    @property
    def counts(self) -> RingCounts:
        """Records read since the ring was created."""
        return ring_counts(self._counts)

    def copy(self, buffer: Any) -> int:
        """Move whole records, of any type, into a buffer of ffi's; returns the bytes copied."""
        if not self._attached:
            return 0
        return int(lib.hmd_ring_bytes(self.source, buffer, ffi.sizeof(buffer)))

    def drain(self, columns: RecordColumns) -> bool:
        """Append the ring's samples; True if samples are lost because the columns are full."""
        if not self._attached:
            return False
        return bool(lib.hmd_ring_drain(self.source, columns.c, self._counts))
