# SPDX-License-Identifier: MIT
"""The clock of a recording, and CPUs that come and go.

On a real machine the clock is CLOCK_MONOTONIC. In the emulated machine it is modelled time: what
its memory accesses and instructions take on the modelled machine. Guest time passes ``dilation``
times slower, and unevenly where the emulation falls behind.

CPUs come online or go offline with SMT, a resume or a larger guest; a check is a small read of
sysfs (10 µs).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from hmd.linux.emulator_memory import SharedMemory
from hmd.linux.procfs import parse_ids, read_text

ClockKind: TypeAlias = Literal["monotonic", "modelled"]

ONLINE = "devices/system/cpu/online"


class Clock(Protocol):
    """A clock; ``kind`` names the time that it gives."""

    kind: ClockKind

    def now_ns(self, cpu: int | None = None) -> int:
        """Return the time now: of one CPU where each has a clock, else of the machine."""
        ...

    def close(self) -> None:
        """Free resources; may be called twice."""
        ...


class MonotonicClock:
    """CLOCK_MONOTONIC."""

    kind: ClockKind = "monotonic"

    def now_ns(self, cpu: int | None = None) -> int:
        """Return the time now; all CPUs share one clock."""
        return time.monotonic_ns()

    def close(self) -> None:
        """Do nothing: there are no resources."""


class ModelledClock:
    """Modelled time of the emulated machine; it stands still while no CPU runs.

    Each CPU has a clock of its own, which stamps its samples. The machine's clock is that of the
    CPU furthest ahead, from which a CPU continues when it wakes. It lags execution by at most 2 µs
    of host time.
    """

    kind: ClockKind = "modelled"

    def __init__(self, memory: SharedMemory) -> None:
        """Take ownership of the memory."""
        self._memory = memory

    def now_ns(self, cpu: int | None = None) -> int:
        """Return the time now."""
        if cpu is None:
            return self._memory.clock_ps // 1000
        return self._memory.vcpu_clock_ps(cpu) // 1000

    def close(self) -> None:
        """Unmap the memory."""
        self._memory.close()


def online_cpus(sysfs: Path) -> tuple[int, ...]:
    """Return the CPUs that are online, ascending."""
    return parse_ids(read_text(sysfs / ONLINE))


class CpuWatch:
    """The CPUs that were online at the last check."""

    def __init__(self, sysfs: Path) -> None:
        """Start with the CPUs that are online."""
        self._sysfs = sysfs
        self._seen = online_cpus(sysfs)

    def changed(self) -> bool:
        """Return whether other CPUs are online than at the last check; never if none is listed."""
        seen = online_cpus(self._sysfs)
        before, self._seen = self._seen, seen or self._seen
        return self._seen != before
