"""The threads of a process: the CPU time of each, and the CPU that it ran on last.

Reads one small file of /proc per thread and call, about 8 µs each.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from hmd.machine.process_id import PROC
from hmd.machine.procfs import read_bytes

ThreadTimes: TypeAlias = Mapping[int, int]
"""CPU time of each thread in nanoseconds, by its id."""

_PROCESSOR = 36  # of the fields of stat after the name, which is the second of 52


def thread_times(pid: int, proc: Path = PROC) -> ThreadTimes | None:
    """Return the CPU time of each thread of a process; None where it has exited.

    From schedstat (Documentation/scheduler/sched-stats.rst), which counts nanoseconds where stat
    counts ticks. Threads that have exited are not included.
    """
    times: dict[int, int] = {}
    try:
        threads = [entry.name for entry in (proc / str(pid) / "task").iterdir()]
    except OSError:
        return None
    for thread in threads:
        words = (read_bytes(proc / str(pid) / "task" / thread / "schedstat") or b"").split()
        if words and words[0].isdigit():
            times[int(thread)] = int(words[0])
    return times


def last_cpu(pid: int, proc: Path = PROC) -> int | None:
    """Return the CPU that a thread runs on, or ran on last; None where it has exited.

    For a process, that of its first thread; also for one that has exited and is not yet reaped
    (proc_pid_stat(5), field 39).
    """
    data = read_bytes(proc / str(pid) / "stat") or b""
    fields = data[data.rfind(b")") + 1 :].split()
    return int(fields[_PROCESSOR]) if len(fields) > _PROCESSOR else None
