"""The clock that a recording's times are of.

On any machine that is CLOCK_MONOTONIC. In the emulated machine it is modelled time: what its
memory and instructions take on the machine that it models. The guest's own clock runs
``dilation`` times slower than that, and unevenly where emulation falls behind.
"""

from __future__ import annotations

import time
from typing import Literal, Protocol, TypeAlias

from hmd.machine.plugin_memory import SharedMemory

ClockKind: TypeAlias = Literal["monotonic", "modelled"]


class Clock(Protocol):
    """A clock; ``kind`` says whose time it tells."""

    kind: ClockKind

    def now_ns(self, cpu: int | None = None) -> int:
        """Return the time now, of a CPU where each has its own, else the machine's."""
        ...

    def close(self) -> None:
        """Free what it needed; may be called twice."""
        ...


class MonotonicClock:
    """CLOCK_MONOTONIC."""

    kind: ClockKind = "monotonic"

    def now_ns(self, cpu: int | None = None) -> int:
        """Return the time now, which all CPUs share."""
        return time.monotonic_ns()

    def close(self) -> None:
        """Nothing is held."""


class ModelledClock:
    """Modelled time of the emulated machine; it stands still while no CPU runs.

    Each CPU has its own clock, which is what samples are stamped with. The machine's is that of
    the CPU furthest ahead; one that wakes goes on from there. Behind what has run by 2 µs of
    host time at most.
    """

    kind: ClockKind = "modelled"

    def __init__(self, memory: SharedMemory) -> None:
        """Own the memory from now on."""
        self._memory = memory

    def now_ns(self, cpu: int | None = None) -> int:
        """Return the time now."""
        if cpu is None:
            return self._memory.clock_ps // 1000
        return self._memory.vcpu_clock_ps(cpu) // 1000

    def close(self) -> None:
        """Unmap the memory."""
        self._memory.close()
