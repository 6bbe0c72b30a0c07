"""Memory hotplug: notices that nodes have gained or lost their memory.

Costs a small read of sysfs per check (10 µs).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hmd.machine.nodes.numa_nodes import memory_nodes

CHECKS_AFTER_CHANGE: Final = 3
"""Checks after a change: a node is listed before its memory and its tier are known."""


class NodeWatch:
    """The nodes with memory at the last check."""

    def __init__(self, sysfs: Path) -> None:
        """Start with the present nodes."""
        self._sysfs = sysfs
        self._seen = memory_nodes(sysfs)
        self._checks_left = 0

    def due(self) -> bool:
        """Return whether nodes have recently changed, so that the topology must be read again."""
        seen = memory_nodes(self._sysfs)
        if seen != self._seen:
            self._seen, self._checks_left = seen, CHECKS_AFTER_CHANGE
        if not self._checks_left:
            return False
        self._checks_left -= 1
        return True
