"""A batch of sampled memory accesses, as columns.

Every sampler returns batches, whatever its source: PEBS, IBS, the emulated machine, page faults, a
recorded trace. Columns cost a few nanoseconds per sample; objects would cost hundreds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T", bound=np.generic)


class Kind(IntEnum):
    """Kind of a sampled access."""

    LOAD = 0
    STORE = 1
    FAULT = 2


@dataclass(frozen=True, slots=True)
class AccessBatch:
    """Sampled accesses, one row each; all columns have shape ``(n,)``.

    ``process`` indexes the processes that the sampler tracks, in the order of ``track()``.
    ``thread`` (its id), ``time_ns`` and ``weight_ns`` (load latency) are 0 if the source does not
    provide them. Times are of CLOCK_MONOTONIC; on the emulated machine, of the CPU's modelled
    clock. ``period`` is the number of accesses that the row represents. ``instructions`` is the
    CPU's count of executed instructions, None if the source does not count.
    """

    process: npt.NDArray[np.int32]
    address: npt.NDArray[np.uint64]
    kind: npt.NDArray[np.uint8]
    cpu: npt.NDArray[np.uint16]
    thread: npt.NDArray[np.uint32]
    time_ns: npt.NDArray[np.uint64]
    weight_ns: npt.NDArray[np.uint32]
    period: npt.NDArray[np.uint32]
    instructions: npt.NDArray[np.uint64] | None = None

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.address)

    def take(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> AccessBatch:
        """Return some rows, by mask or by index."""
        columns: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        taken: dict[str, Any] = {n: c if c is None else c[rows] for n, c in columns.items()}
        return AccessBatch(**taken)

    @classmethod
    def of(
        cls,
        address: npt.ArrayLike,
        process: npt.ArrayLike = 0,
        *,
        kind: npt.ArrayLike = Kind.LOAD,
        time_ns: npt.ArrayLike = 0,
        weight_ns: npt.ArrayLike = 0,
        period: npt.ArrayLike = 1,
    ) -> AccessBatch:
        """Return samples of a source that knows no CPU and no thread; a scalar is of all rows."""
        addresses = np.asarray(address, np.uint64)
        count = len(addresses)
        return cls(
            _column(process, np.int32, count),
            addresses,
            _column(kind, np.uint8, count),
            np.zeros(count, np.uint16),
            np.zeros(count, np.uint32),
            _column(time_ns, np.uint64, count),
            _column(weight_ns, np.uint32, count),
            _column(period, np.uint32, count),
        )

    @classmethod
    def empty(cls) -> AccessBatch:
        """Return a batch without samples."""
        return cls.of(np.empty(0, np.uint64))


def _column(values: npt.ArrayLike, kind: type[T], count: int) -> npt.NDArray[T]:
    """Return a column of its own: callers may write it."""
    column = np.empty(count, kind)
    column[:] = values
    return column
