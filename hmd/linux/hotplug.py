# SPDX-License-Identifier: MIT
"""CPUs and memory that come and go, and the physical addresses of a node.

CPUs come online or go offline with SMT, a resume or a larger guest. A check is a small read of
sysfs (10 µs).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from hmd.linux.procfs import SYSFS, parse_ids, read_text
from hmd.linux.topology import memory_nodes

CHECKS_AFTER_CHANGE: Final = 3
"""Checks after a change: a node is listed before its memory and its tier are known."""

_BLOCK_BYTES = "devices/system/memory/block_size_bytes"


ONLINE: Final = "devices/system/cpu/online"


def online_cpus(sysfs: Path) -> tuple[int, ...]:
    """Return the CPUs that are online, ascending."""
    return parse_ids(read_text(sysfs / ONLINE))


class CpuWatch:
    """The CPUs that were online at the last check."""

    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs
        self._seen = online_cpus(sysfs)

    def changed(self) -> bool:
        """Return whether other CPUs are online than at the last check; never if none is listed."""
        seen = online_cpus(self._sysfs)
        before, self._seen = self._seen, seen or self._seen
        return self._seen != before


class NodeWatch:
    """The nodes with memory at the last check."""

    def __init__(self, sysfs: Path) -> None:
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


def physical_ranges(node: int, sysfs: Path = SYSFS) -> tuple[tuple[int, int], ...]:
    """Return start and end (exclusive) of a node's ranges of addresses, ascending.

    /sys/devices/system/node/nodeN/memoryM is the block of block_size_bytes bytes at M times that
    size (Documentation/admin-guide/mm/memory-hotplug.rst). () for a node that does not exist, and
    where the kernel lists no blocks (CONFIG_MEMORY_HOTPLUG).
    """
    size = _hexadecimal(read_text(sysfs / _BLOCK_BYTES))
    try:
        names = os.listdir(sysfs / f"devices/system/node/node{node}")  # noqa: PTH208
    except OSError:
        return ()
    numbers = (name.removeprefix("memory") for name in names if name.startswith("memory"))
    ranges: list[tuple[int, int]] = []
    for block in sorted(int(number) for number in numbers if number.isdigit()):
        start, end = block * size, (block + 1) * size
        if ranges and ranges[-1][1] == start:
            start = ranges.pop()[0]
        ranges.append((start, end))
    return tuple(ranges) if size else ()


def _hexadecimal(text: str | None) -> int:
    try:
        return int(text or "0", 16)
    except ValueError:
        return 0
