"""The free memory of each node that the kernel reserves, from /proc/zoneinfo (proc(5)).

Programs cannot use all free memory: reclaim begins at the low watermark of a zone, and a low zone
keeps a reserve for allocations that need it (lowmem_reserve_ratio in
Documentation/admin-guide/sysctl/vm.rst). A move to a node with no more than that free fails with
ENOMEM, after the kernel has tried to reclaim.

The file lists every CPU in every zone, so that reading it takes milliseconds on large machines. The
watermarks rarely change, and are read again at intervals.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from hmd.machine.process_id import PROC
from hmd.machine.procfs import read_bytes
from hmd.units import PAGE_BYTES

REFRESH_S = 30.0

_LINE = re.compile(
    rb"^Node (?P<node>\d+), zone|"
    rb"^ +(?P<mark>low|high) +(?P<free>\d+)$|"
    rb"^ +managed +(?P<managed>\d+)$|"
    rb"^ +protection: \((?P<protection>[\d, ]+)\)$",
    re.MULTILINE,
)


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
