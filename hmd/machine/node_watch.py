"""Which nodes have memory, watched while the machine runs: memory comes and goes by hotplug.

Takes a small read of sysfs at each look (10 µs); says when the topology is to be read again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hmd.machine.numa_nodes import memory_nodes

LOOKS: Final = 3
"""A node is listed before its memory is counted and its tier is known: so often is looked again."""


class NodeWatch:
    """The nodes with memory, as they were at the last look."""

    def __init__(self, sysfs: Path) -> None:
        """Take what is there now for known."""
        self._sysfs = sysfs
        self._seen = memory_nodes(sysfs)
        self._looks = 0

    def due(self) -> bool:
        """Tell whether nodes have come or gone of late, so that the topology may be another."""
        seen = memory_nodes(self._sysfs)
        if seen != self._seen:
            self._seen, self._looks = seen, LOOKS
        if not self._looks:
            return False
        self._looks -= 1
        return True
