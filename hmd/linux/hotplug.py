# SPDX-License-Identifier: MIT
"""Memory hotplug: nodes that gain or lose memory, and the physical addresses of a node.

A check is a small read of sysfs (10 µs). Addresses follow from the memory blocks:
/sys/devices/system/node/nodeN/memoryM is the block of block_size_bytes bytes at M times that size
(Documentation/admin-guide/mm/memory-hotplug.rst; CONFIG_MEMORY_HOTPLUG). That costs the listing of
one directory, with an entry per 128 MiB to 2 GiB.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from hmd.linux.procfs import SYSFS, read_text
from hmd.linux.topology import memory_nodes

CHECKS_AFTER_CHANGE: Final = 3
"""Checks after a change: a node is listed before its memory and its tier are known."""

_BLOCK_BYTES = "devices/system/memory/block_size_bytes"


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


def physical_ranges(node: int, sysfs: Path = SYSFS) -> tuple[tuple[int, int], ...]:
    """Return start and end (exclusive) of a node's ranges of addresses, ascending.

    () for a node that does not exist, and where the kernel lists no blocks.
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
