"""The identity of a process.

A pid alone is not one: the kernel reuses it. A pid with its start time (field 22 of
/proc/PID/stat, proc_pid_stat(5)) is.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """A process: its pid, and its start time in clock ticks since boot."""

    pid: int
    start_ticks: int
