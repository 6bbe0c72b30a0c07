"""The clock of a recording.

On a real machine this is CLOCK_MONOTONIC. In the emulated machine it is modelled time: what its
memory accesses and instructions take on the modelled machine. Guest time passes ``dilation`` times
slower, and unevenly where the emulation falls behind.
"""

from __future__ import annotations

import time
from typing import Literal, Protocol, TypeAlias

from hmd.machine.plugin_memory import SharedMemory

ClockKind: TypeAlias = Literal["monotonic", "modelled"]


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
