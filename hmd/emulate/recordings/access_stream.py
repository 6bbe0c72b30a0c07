"""A recorded stream of memory accesses and the modelled cost of each access, as columns.

``hmd.emulate.recordings.replay`` runs a stream through the timing model. A stream takes 35 bytes
per access in memory; on disk it is a compressed ``.npz`` file.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hmd.errors import HmdError
from hmd.numpy_archive import DAMAGED, read_arrays, reason_of

NO_NODE = 0xFF


class CacheLevel(IntEnum):
    """What served an access: a cache level, or memory."""

    L1 = 0
    LLC = 1
    MEMORY = 2
    PREFETCHED = 3


class AccessFlag(IntFlag):
    """Kind of an access; ``HALT`` is not an access: the CPU halts until its next row."""

    LOAD = 0
    STORE = 1
    KERNEL = 2
    HALT = 4


@dataclass(frozen=True, slots=True)
class AccessStream:
    """Recorded accesses in program order, one row each; all columns have shape ``(n,)``.

    ``instructions`` is the CPU's cumulative count of retired instructions, ``value`` the first
    8 bytes loaded (0 if unknown; the model then sees no pointer chases), ``flags`` of
    ``AccessFlag``.
    """

    vcpu: npt.NDArray[np.uint8]
    instructions: npt.NDArray[np.uint64]
    vaddr: npt.NDArray[np.uint64]
    paddr: npt.NDArray[np.uint64]
    size: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint8]
    value: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        """Return the number of accesses."""
        return len(self.vcpu)

    def columns(self) -> list[npt.NDArray[Any]]:
        """Return the columns as the native module reads them; raises ``ValueError``."""
        return _columns(self, len(self))

    def write(self, path: Path) -> None:
        """Write the columns to a compressed ``.npz`` file."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        with path.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **columns)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that ``write`` wrote; raises HmdError for any other file."""
        try:
            return cls(**read_arrays(path, [field.name for field in fields(cls)]))
        except DAMAGED as error:
            reason = reason_of(error)
            raise HmdError(f"{path}: no access stream can be read from it: {reason}") from error


@dataclass(frozen=True, slots=True)
class AccessCosts:
    """Modelled cost of each access of a stream; columns of shape ``(n,)``.

    ``level`` of ``CacheLevel``; ``node`` that served the access, ``NO_NODE`` on a hit;
    ``latency_ps`` from issue to data, as in the weight of a PEBS record; ``stall_ps`` by which
    the access advanced the CPU's clock.
    """

    level: npt.NDArray[np.uint8]
    node: npt.NDArray[np.uint8]
    latency_ps: npt.NDArray[np.uint32]
    stall_ps: npt.NDArray[np.uint64]

    @classmethod
    def empty(cls, count: int) -> Self:
        """Return columns to be filled."""
        return cls(
            np.empty(count, np.uint8),
            np.empty(count, np.uint8),
            np.empty(count, np.uint32),
            np.empty(count, np.uint64),
        )

    def columns(self, count: int) -> list[npt.NDArray[Any]]:
        """Return the columns as the native module fills them; raises ``ValueError``."""
        return _columns(self, count)


_NARROW = {
    "vcpu": np.uint8,
    "size": np.uint8,
    "flags": np.uint8,
    "level": np.uint8,
    "node": np.uint8,
    "latency_ps": np.uint32,
}


def _columns(owner: AccessStream | AccessCosts, count: int) -> list[npt.NDArray[Any]]:
    columns = []
    for field in fields(owner):
        column = getattr(owner, field.name)
        dtype = np.dtype(_NARROW.get(field.name, np.uint64))
        if column.dtype != dtype or column.shape != (count,) or not column.flags.c_contiguous:
            raise ValueError(f"{field.name} must be contiguous {dtype} of shape ({count},)")
        columns.append(column)
    return columns
