"""How much of a process lies on each node, as the kernel counts it.

Takes /proc/PID/numa_maps (numa(7)), gives bytes per node. Costs a walk of the process's page
tables (milliseconds a gigabyte) with its mmap lock held for reading: for status, not for a tick.
"""

from __future__ import annotations

import re
from pathlib import Path

from hmd.machine.process_id import PAGE_BYTES, PROC
from hmd.machine.procfs import read_bytes

_NODE = re.compile(rb" N(\d{1,4})=(\d{1,15})(?= |$)")
_PAGE_KIB = re.compile(rb" kernelpagesize_kB=(\d{1,9})")


def read_resident_bytes(pid: int, proc: Path = PROC) -> dict[int, int] | None:
    """Return the resident bytes of ``pid`` by node; None where it is gone or may not be read.

    Also None where the kernel has no numa_maps (no CONFIG_NUMA). Pages that several processes
    share count in each of them.
    """
    data = read_bytes(proc / str(pid) / "numa_maps")
    return None if data is None else parse_numa_maps(data)


def parse_numa_maps(data: bytes) -> dict[int, int]:
    """Return bytes by node; lines and words that are not understood are skipped.

    Counts are in pages of the mapping: 4 KiB also where they are huge transparently, 2 MiB or
    1 GiB in hugetlb mappings (kernelpagesize_kB).
    """
    totals: dict[int, int] = {}
    for line in data.split(b"\n"):
        # Blanks in file names are printed as \040, so that no name can pass for a count.
        counts = _NODE.findall(line)
        if not counts:
            continue
        size = _PAGE_KIB.search(line)
        page_bytes = int(size.group(1)) << 10 if size else PAGE_BYTES
        for node, pages in counts:
            totals[int(node)] = totals.get(int(node), 0) + int(pages) * page_bytes
    return totals
