"""Physical addresses of a node's memory, from the memory blocks that sysfs lists.

/sys/devices/system/node/nodeN/memoryM is the block of block_size_bytes bytes at M times that size
(Documentation/admin-guide/mm/memory-hotplug.rst; CONFIG_MEMORY_HOTPLUG). Costs the listing of one
directory, with an entry per 128 MiB to 2 GiB.
"""

from __future__ import annotations

import os
from pathlib import Path

from hmd.machine.procfs import read_text

_BLOCK_BYTES = "devices/system/memory/block_size_bytes"


def physical_ranges(node: int, sysfs: Path = Path("/sys")) -> tuple[tuple[int, int], ...]:
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
