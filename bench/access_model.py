# SPDX-License-Identifier: MIT
"""The timing model access by access, as the plugin of the emulated machine calls it.

hmd replays recorded misses; benchmarks and tests of the model make accesses, hits included, and
read what each cost: 35 bytes per access in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum, IntFlag
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hmd.emulate._timing import ffi, lib
from hmd.emulate.recordings.replay import TimingModel

NO_NODE = 0xFF

_NARROW = {
    "vcpu": np.uint8,
    "size": np.uint8,
    "flags": np.uint8,
    "level": np.uint8,
    "node": np.uint8,
    "latency_ps": np.uint32,
}


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


def _columns(owner: AccessStream | AccessCosts, count: int) -> list[npt.NDArray[Any]]:
    columns = []
    for field in fields(owner):
        column = getattr(owner, field.name)
        dtype = np.dtype(_NARROW.get(field.name, np.uint64))
        if column.dtype != dtype or column.shape != (count,) or not column.flags.c_contiguous:
            raise ValueError(f"{field.name} must be contiguous {dtype} of shape ({count},)")
        columns.append(column)
    return columns


@dataclass(frozen=True, slots=True)
class AccessCost:
    """The cost of one access: a row of ``AccessCosts``."""

    level: CacheLevel
    node: int
    latency_ps: int
    stall_ps: int


class AccessModel(TimingModel):
    """A timing model that accesses can be made in."""

    def access(
        self,
        vcpu: int,
        instructions: int,
        vaddr: int,
        paddr: int,
        size: int = 8,
        flags: AccessFlag = AccessFlag.LOAD,
        value: int = 0,
    ) -> AccessCost:
        """Make one access."""
        timing, out = self.open(vcpu), ffi.new("struct timing_outcome *")
        lib.timing_access(timing, vcpu, instructions, vaddr, paddr, size, flags, value, out)
        return AccessCost(CacheLevel(out.level), out.node, out.latency_ps, out.stall_ps)

    def replay(self, stream: AccessStream, into: AccessCosts | None = None) -> int:
        """Make all accesses of a stream in order; return the machine's clock in ps.

        ``into``, made by ``AccessCosts.empty(len(stream))``, receives the cost of each.
        """
        timing, count = self.open(), len(stream)
        if count and int(stream.vcpu.max()) >= self.params.vcpus:
            raise ValueError(f"the stream has CPU {stream.vcpu.max()}: set vcpus to more than that")
        accesses = [ffi.from_buffer(f"{each.dtype}_t[]", each) for each in stream.columns()]
        outcomes = [ffi.NULL] * len(fields(AccessCosts))
        if into is not None:
            columns = into.columns(count)
            outcomes = [ffi.from_buffer(f"{each.dtype}_t[]", each) for each in columns]
        return int(lib.timing_replay(timing, count, *accesses, *outcomes))

    def flush(self, vcpu: int, address: int | None = None) -> None:
        """Remove a CPU's translations of user addresses, or that of one address."""
        if address is None:
            lib.timing_flush(self.open(vcpu), vcpu)
        else:
            lib.timing_flush_page(self.open(vcpu), vcpu, address)

    def resume(self, vcpu: int, instructions: int) -> None:
        """Wake a CPU: its clock jumps to that of the machine."""
        lib.timing_resume(self.open(vcpu), vcpu, instructions)

    def vcpu_clock_ps(self, vcpu: int, instructions: int) -> int:
        """Return a CPU's modelled time at an instruction count."""
        return int(lib.timing_vcpu_clock_ps(self.open(vcpu), vcpu, instructions))
