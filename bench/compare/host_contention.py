"""What the host's other work costs emulated CPUs: time in which their threads could not run.

The guest's clock is the host's, so that it runs on while QEMU's thread of a CPU waits for a CPU of
the host. Two causes are measured: the thread's wait in the run queues of the host's kernel (the
second field of /proc/PID/task/TID/schedstat, Documentation/scheduler/sched-stats.rst), and the
time that a hypervisor took from the host's CPUs (steal in proc_stat(5)), as a share of one CPU.
What shared caches and memory of the host cost is in neither.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hmd.errors import MissingError
from hmd.machine.process_id import PROC

_STEAL = 8  # of the fields of the first line of /proc/stat


@dataclass(frozen=True, slots=True)
class HostWait:
    """Seconds since the start of the thread and of the host."""

    queued_s: float
    stolen_s: float

    def since(self, earlier: HostWait) -> float:
        """Return the seconds that the thread lost from an earlier reading to this one."""
        return self.queued_s - earlier.queued_s + self.stolen_s - earlier.stolen_s


class HostContention:
    """Readings of emulated CPUs' threads, of which the mean counts."""

    def __init__(self, pid: int, vcpus: Sequence[int], proc: Path = PROC) -> None:
        """Find the threads of CPUs in a QEMU process; MissingError where it has none."""
        self._proc, tasks = proc, proc / str(pid) / "task"
        self._threads = [_thread_named(tasks, f"CPU {vcpu}/TCG") for vcpu in vcpus]

    def read(self) -> HostWait:
        """Return the waits so far; 0 s in queues where the kernel has no scheduler statistics."""
        files = [thread / "schedstat" for thread in self._threads]
        waits = [int(file.read_text().split()[1]) if file.exists() else 0 for file in files]
        waited_ns = sum(waits) / len(waits)
        cpus = (self._proc / "stat").read_text().split("\n", 1)[0].split()
        stolen_s = int(cpus[_STEAL]) / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
        return HostWait(waited_ns * 1e-9, stolen_s)


def _thread_named(tasks: Path, name: str) -> Path:
    for task in tasks.iterdir():
        if (task / "comm").read_text().strip() == name:
            return task
    raise MissingError(f"QEMU has no thread {name!r}: this version gives its threads no names")
