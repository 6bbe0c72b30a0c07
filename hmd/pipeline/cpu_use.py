"""How many CPUs each process keeps busy.

Takes what processes have used of CPU time whenever one is read, gives an upper bound of their CPU
seconds per second. The kernel counts CPU time in steps of 10 ms on most machines, so that a single
tick says little: older readings fade.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.decide.process_slots import ProcessSlots, carried
from hmd.machine.process_id import ProcessId
from hmd.pipeline.process_readings import ProcessReading

_KEPT: Final = 0.9
"""What a reading keeps of those before it."""

_CPU_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")

Values = npt.NDArray[np.float64]


class CpuUse:
    """Follows the CPU time of processes."""

    def __init__(self) -> None:
        self._slots = ProcessSlots()
        self._processes: tuple[ProcessId, ...] = ()
        # By process: the time of its last reading, 0 before the first, and its CPU ticks then.
        self._before: Values = np.zeros((0, 2))
        # By process: CPU seconds and seconds between readings.
        self._sums: Values = np.zeros((0, 2))

    def follow(
        self,
        processes: tuple[ProcessId, ...],
        readings: Sequence[ProcessReading],
        now_s: float,
    ) -> None:
        """Take the readings of a tick."""
        moved = self._slots.follow(processes)
        self._processes = processes
        if moved is not None:
            self._before = carried(self._before, moved)
            self._sums = carried(self._sums, moved)
        for slot, stat in readings:
            then_s, ticks = self._before[slot]
            self._before[slot] = now_s, stat.cpu_ticks
            if then_s and now_s > then_s:
                used_s = (stat.cpu_ticks - ticks) * _CPU_TICK_S
                self._sums[slot] = self._sums[slot] * _KEPT + (used_s, now_s - then_s)

    def cpus_of(self, processes: tuple[ProcessId, ...]) -> Values:
        """At most so many CPUs each process keeps busy, ``(processes,)``; NaN: not known.

        Of the processes of the last tick; of others nothing is known.
        """
        cpus = np.full(len(processes), np.nan)
        if processes == self._processes:
            used_s, elapsed_s = self._sums.T
            most_s = used_s + _CPU_TICK_S  # the last step was counted only in part
            np.divide(most_s, elapsed_s, out=cpus, where=elapsed_s > 0)
        return cpus
