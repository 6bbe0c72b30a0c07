"""The peak of this process's memory."""

from __future__ import annotations

from pathlib import Path


def peak_mib() -> float:
    """Return this process's peak memory in MiB; ru_maxrss would include its parent's before exec.

    VmHWM of proc_pid_status(5).
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024
