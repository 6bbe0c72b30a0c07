# SPDX-License-Identifier: MIT
"""How much of a node's memory moves can use: reserves, page cache, pools of huge pages.

Reserves (/proc/zoneinfo, proc(5)): reclaim begins at the low watermark of a zone, and a low zone
keeps a reserve for allocations that need it (lowmem_reserve_ratio in
Documentation/admin-guide/sysctl/vm.rst). A move to a node with no more than that free fails with
ENOMEM, after the kernel has tried to reclaim. Reading the file takes milliseconds on large
machines.

Page cache: move_pages(2) allocates on its target node as any allocation does: at the low watermark
it wakes kswapd, below the minimum it reclaims itself, and it never kills a process
(__GFP_THISNODE, alloc_migration_target in mm/migrate.c, Linux 6.12).

Huge pages of hugetlbfs (Linux 6.12): a page of 2 MiB moves whole, to a free page of the target
node's pool or to a new one. A page of 1 GiB moves only to a free page of that pool; without one the
call fails with ENOMEM, as on a full node (alloc_hugetlb_folio_nodemask, mm/hugetlb.c).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path

from hmd.base.errors import Diagnostic, Severity
from hmd.base.units import GIB, HUGE_PAGE_BYTES, KIB, MIB, PAGE_BYTES
from hmd.linux.procfs import PROC, read_bytes, read_int

REFRESH_S = 30.0

_LINE = re.compile(
    rb"^Node (?P<node>\d+), zone|"
    rb"^ +(?P<mark>low|high) +(?P<free>\d+)$|"
    rb"^ +managed +(?P<managed>\d+)$|"
    rb"^ +protection: \((?P<protection>[\d, ]+)\)$",
    re.MULTILINE,
)

_POOL = re.compile(r"node(\d+)/hugepages/hugepages-(\d+)kB", re.ASCII)

_ROW = re.compile(rb"^Node \d+ (\S+):\s*(\d+)(?: kB)?$", re.MULTILINE)


class Watermark(StrEnum):
    """Free memory of a zone below which kswapd begins to reclaim, and at which it stops."""

    LOW = "low"
    HIGH = "high"


class Reserves:
    """The reserves of all nodes, at most ``REFRESH_S`` old."""

    def __init__(self, proc: Path = PROC) -> None:
        self._path = proc / "zoneinfo"
        self._read_s = float("-inf")
        self._bytes: Mapping[int, int] = {}

    def at(self, now_s: float) -> Mapping[int, int]:
        """Return bytes by node id; empty where there is no /proc/zoneinfo."""
        if now_s - self._read_s >= REFRESH_S:
            self._read_s = now_s
            self._bytes = reserve_bytes(read_bytes(self._path) or b"")
        return self._bytes


def reserve_bytes(zoneinfo: bytes, mark: Watermark = Watermark.LOW) -> dict[int, int]:
    """Return the reserve of each node in the text of /proc/zoneinfo, in bytes, from ``mark`` up."""
    pages: defaultdict[int, int] = defaultdict(int)
    node = free = managed = 0
    for line in _LINE.finditer(zoneinfo):
        if line["node"]:
            node, free, managed = int(line["node"]), 0, 0
        elif line["mark"]:
            if line["mark"] == mark.encode():
                free = int(line["free"])
        elif line["managed"]:
            managed = int(line["managed"])
        else:
            # The largest protection is that against programs' pages, which any zone can hold.
            protection = max(int(field) for field in line["protection"].split(b","))
            pages[node] += min(managed, free + protection)
    return {node: count * PAGE_BYTES for node, count in pages.items()}


def hugetlb_finding(sysfs: Path) -> Diagnostic:
    """Return whether the nodes' hugetlbfs pages can move."""
    name = "hugetlbfs pages"
    pools = [pool for pool in _pools(sysfs) if pool[1]]
    if not pools:
        return Diagnostic(name, Severity.OK, "none")
    counts: dict[int, int] = {}
    for size, pages, _ in pools:
        counts[size] = counts.get(size, 0) + pages
    state = ", ".join(f"{pages} of {_printed(size)}" for size, pages in sorted(counts.items()))
    fixed = [size for size, pages, free in pools if size > HUGE_PAGE_BYTES and pages > free]
    if fixed:
        gigantic = _printed(min(fixed))
        return Diagnostic(
            name,
            Severity.WARN,
            state,
            f"a page of {gigantic} moves only to a free one of the target node's pool; hmd tries "
            "it again after a delay, which costs a failed call",
            "set `keep: [/anon_hugepage, /dev/hugepages]` for the targets, or keep free pages of "
            f"{gigantic} on each node",
        )
    return Diagnostic(name, Severity.OK, f"{state}; each moves whole")


def _pools(sysfs: Path) -> Iterator[tuple[int, int, int]]:
    """Yield bytes per page, pages and free pages of each node's pools."""
    folder = sysfs / "devices/system/node"
    for path in sorted(folder.glob("node*/hugepages/hugepages-*kB")):
        found = _POOL.fullmatch(str(path.relative_to(folder)))
        if found:
            pages = read_int(path / "nr_hugepages") or 0
            yield int(found[2]) * KIB, pages, read_int(path / "free_hugepages") or 0


def _printed(size: int) -> str:
    return f"{size // GIB} GiB" if size >= GIB else f"{size / MIB:g} MiB"


def parse_meminfo(text: bytes) -> dict[str, int]:
    """Return the rows of /sys/devices/system/node/nodeN/meminfo, in KiB or in huge pages."""
    return {name.decode(): int(value) for name, value in _ROW.findall(text)}


def reclaimable_bytes(kib: Mapping[str, int]) -> int:
    """Return the reclaimable page cache of a node, from what ``parse_meminfo`` returned.

    What no process maps and needs no write-back: the inactive part, and at least half, as
    MemAvailable assumes too (proc_meminfo(5)). Rather too little: Mapped includes shared memory.
    """
    inactive = kib.get("Inactive(file)", 0)
    busy = sum(kib.get(name, 0) for name in ("Mapped", "Dirty", "Writeback"))
    clean = max(0, inactive + kib.get("Active(file)", 0) - busy)
    return max(min(inactive, clean), clean // 2) << 10
