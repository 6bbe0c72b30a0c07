# SPDX-License-Identifier: MIT
"""Sampled memory accesses, as columns: a few nanoseconds per sample, where objects cost hundreds.

Every sampler returns batches (``AccessBatch``), a trace has ``Samples``. ``COLUMNS`` is the one
table of their columns, which perf rings (``hmd.sample.perf_ring``) and trace files (``hmd.trace``)
follow. A new column is a line here, a field of the class of both, and what fills it: in
``hmd/native/ring.c`` for perf rings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T", bound=np.generic)


class Kind(IntEnum):
    """Kind of a sampled access."""

    LOAD = 0
    STORE = 1
    FAULT = 2


class Column(NamedTuple):
    """A column's types, its name in trace files; ``optional``: some sources and files lack it."""

    dtype: type[np.generic]
    trace_dtype: str
    trace_name: str = ""
    optional: bool = False


COLUMNS: Final[Mapping[str, Column]] = {
    "time_ns": Column(np.uint64, "<u8"),
    "address": Column(np.uint64, "<u8"),
    "process": Column(np.int32, "<u2"),
    "thread": Column(np.uint32, "<u4"),
    "cpu": Column(np.uint16, "<u2"),
    "kind": Column(np.uint8, "u1"),
    "latency_ns": Column(np.uint32, "<u4", trace_name="weight_ns"),
    "period": Column(np.uint32, "<u4"),
    "instructions": Column(np.uint64, "<u8", optional=True),
    "code_address": Column(np.uint64, "<u8", optional=True),
}

SAMPLE_COLUMNS: Final[Mapping[str, np.dtype[Any]]] = {
    name: np.dtype(column.trace_dtype) for name, column in COLUMNS.items()
}
FILE_NAMES: Final[Mapping[str, str]] = {
    name: column.trace_name or name for name, column in COLUMNS.items()
}
"""Types of columns in trace files, and their names there and in exports."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """What batches and samples have in common: columns by the names of ``COLUMNS``."""

    address: npt.NDArray[np.uint64]
    kind: npt.NDArray[np.uint8]
    cpu: npt.NDArray[np.uint16]
    thread: npt.NDArray[np.uint32]
    time_ns: npt.NDArray[np.uint64]
    latency_ns: npt.NDArray[np.uint32]
    period: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.address)

    def take(self, rows: slice | npt.NDArray[Any]) -> Self:
        """Return rows, selected by a slice, a mask or indices."""
        columns = self._columns().items()
        taken: dict[str, Any] = {n: None if c is None else c[rows] for n, c in columns}
        return type(self)(**taken)

    @classmethod
    def concatenated(cls, parts: Sequence[Self]) -> Self:
        """Return all rows of parts of one source, at least one, in the order of the parts."""
        joined: dict[str, Any] = {}
        for name, first in parts[0]._columns().items():
            columns = [getattr(part, name) for part in parts]
            joined[name] = None if first is None else np.concatenate(columns)
        return cls(**joined)

    def _columns(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in COLUMNS}


@dataclass(frozen=True, slots=True)
class AccessBatch(_Rows):
    """Sampled accesses, one row each; all columns have shape ``(n,)``.

    ``process`` indexes the processes that the sampler tracks, in the order of ``track()``.
    ``thread`` (its id), ``time_ns`` and ``latency_ns`` (of a load) are 0 if the source does not
    provide them. Times are of CLOCK_MONOTONIC; on the emulated machine, of the CPU's modelled
    clock. ``period`` is the number of accesses that the row represents. ``instructions`` is the
    CPU's count of executed instructions, ``code_address`` where the instruction is; None if the
    source has none, or nobody asks.
    """

    process: npt.NDArray[np.int32]
    instructions: npt.NDArray[np.uint64] | None = None
    code_address: npt.NDArray[np.uint64] | None = None

    @classmethod
    def of(
        cls,
        address: npt.ArrayLike,
        process: npt.ArrayLike = 0,
        *,
        kind: npt.ArrayLike = Kind.LOAD,
        time_ns: npt.ArrayLike = 0,
        latency_ns: npt.ArrayLike = 0,
        period: npt.ArrayLike = 1,
    ) -> AccessBatch:
        """Return samples of a source that knows no CPU and no thread; scalars apply to all rows."""
        addresses = np.asarray(address, np.uint64)
        count = len(addresses)

        def new_column(values: npt.ArrayLike, dtype: type[T]) -> npt.NDArray[T]:
            column = np.empty(count, dtype)  # not a view: callers may write it
            column[:] = values
            return column

        return cls(
            process=new_column(process, np.int32),
            address=addresses,
            kind=new_column(kind, np.uint8),
            cpu=new_column(0, np.uint16),
            thread=new_column(0, np.uint32),
            time_ns=new_column(time_ns, np.uint64),
            latency_ns=new_column(latency_ns, np.uint32),
            period=new_column(period, np.uint32),
        )

    @classmethod
    def empty(cls) -> AccessBatch:
        """Return a batch without samples."""
        return cls.of(np.empty(0, np.uint64))


@dataclass(frozen=True, slots=True)
class Samples(_Rows):
    """Sampled accesses in order of time; all columns have shape ``(n,)``.

    As of :class:`AccessBatch`; ``process`` indexes the trace's processes, and ``instructions``,
    those that the row's CPU had executed by then in any process, are 0 if they are not counted, as
    an unknown ``code_address`` is.
    """

    process: npt.NDArray[np.uint16]
    instructions: npt.NDArray[np.uint64]
    code_address: npt.NDArray[np.uint64]

    @classmethod
    def empty(cls) -> Samples:
        """Return no samples."""
        columns: dict[str, Any] = {n: np.empty(0, dtype) for n, dtype in SAMPLE_COLUMNS.items()}
        return cls(**columns)

    def in_order_of_time(self) -> Samples:
        """Return the samples in order of time; the sort is stable."""
        if np.all(self.time_ns[1:] >= self.time_ns[:-1]):
            return self
        return self.take(np.argsort(self.time_ns, kind="stable"))
