# SPDX-License-Identifier: MIT
"""The clock of a recording."""

from __future__ import annotations

import time
from typing import Literal, TypeAlias

from hmd.linux.emulator_memory import SharedMemory

ClockKind: TypeAlias = Literal["monotonic", "modelled"]


class Clock:
    """CLOCK_MONOTONIC, or the modelled time of the emulated machine, whose memory it then owns.

    Modelled time is what memory accesses and instructions take on the modelled machine; it stands
    still while no CPU runs. Guest time passes ``dilation`` times slower, and unevenly where the
    emulation falls behind. Each CPU has a clock of its own, which stamps its samples. The machine's
    is that of the CPU furthest ahead, from which a CPU continues when it wakes; it lags execution
    by at most 2 µs of host time.
    """

    def __init__(self, memory: SharedMemory | None = None) -> None:
        self._memory = memory
        self.kind: ClockKind = "modelled" if memory else "monotonic"

    def now_ns(self, cpu: int | None = None) -> int:
        """Return the time now: of one CPU where each has a clock, else of the machine."""
        if self._memory is None:
            return time.monotonic_ns()
        if cpu is None:
            return self._memory.clock_ps // 1000
        return self._memory.vcpu_clock_ps(cpu) // 1000

    def close(self) -> None:
        """Unmap the memory; may be called twice."""
        if self._memory is not None:
            self._memory.close()
