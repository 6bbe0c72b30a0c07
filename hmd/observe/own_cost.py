"""What the daemon itself costs: CPU time and resident memory.

Read once per tick: 0.5 µs for the CPU clock and 9 µs for psutil's memory_info(). CPU time is of
CLOCK_PROCESS_CPUTIME_ID, since psutil's cpu_times() counts clock ticks of 10 ms (proc_pid_stat(5)).
"""

from __future__ import annotations

import time

import psutil


class OwnCost:
    """The costs of the calling process; ``cpu_s`` counts from the construction on."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._begun_s = time.process_time()

    @property
    def cpu_s(self) -> float:
        """CPU time of all threads so far, in seconds."""
        return time.process_time() - self._begun_s

    @property
    def resident_bytes(self) -> int:
        """Resident memory now, shared pages included."""
        resident: int = self._process.memory_info().rss
        return resident
