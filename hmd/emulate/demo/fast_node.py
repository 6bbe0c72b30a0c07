"""Leaving a program so much memory of the fast node and no more.

The rest is set aside as 2 MiB huge pages (hugetlbpage.rst, the per-node nr_hugepages): memory
that nobody maps, that the kernel neither swaps nor hands out, and that no process has to hold;
and what is less than such a page as a file in a tmpfs bound to the node.
"""

from __future__ import annotations

import re
from pathlib import Path

from hmd.emulate.boot import Machine
from hmd.errors import HmdError
from hmd.machine.reserves import reserve_bytes

HUGE_PAGE_BYTES = 2 << 20
# khugepaged raises this to keep whole 2 MiB blocks free (set_recommended_min_free_kbytes): 40 MiB
# of the fast node, more than the hot set itself.
MIN_FREE_KBYTES = 8192
NEAR_BYTES = 128 << 10
MAX_TRIES = 20
_REST = Path("/run/hmd-aside/rest")
_RESIZE = "truncate -s 0 {file} && {{ [ {bytes} = 0 ] || fallocate -l {bytes} {file}; }}; sleep 0.3"
_COUNT = "/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages"


def free_bytes(machine: Machine, node: int) -> int:
    """Return MemFree of a node of the guest."""
    text = machine.run(["cat", f"/sys/devices/system/node/node{node}/meminfo"], check=True).stdout
    found = re.search(r"MemFree:\s+(\d+) kB", text)
    if found is None:
        raise HmdError(f"the guest's node {node} has no MemFree line in its meminfo")
    return int(found[1]) << 10


def prepare(machine: Machine, node: int) -> None:
    """Make the kernel keep little back, and hide little in lists of free pages by CPU."""
    settings = [f"vm.min_free_kbytes={MIN_FREE_KBYTES}", "vm.percpu_pagelist_high_fraction=1000"]
    machine.run(["sysctl", "-qw", *settings], check=True)
    mount = f"mount -t tmpfs -o mpol=bind:{node} tmpfs {_REST.parent}"
    machine.run(["sh", "-c", f"mkdir -p {_REST.parent} && {mount}"], check=True)


def release(machine: Machine, node: int) -> None:
    """Give back what ``leave`` has set aside."""
    machine.run(["rm", "-f", str(_REST)], check=True)
    _set_huge_pages(machine, node, 0)


def leave(machine: Machine, node: int, wanted_bytes: int, *, drop_caches: bool = True) -> int:
    """Set aside all of a node but ``wanted_bytes`` for a program; returns what is left for it.

    What the kernel keeps back is left on top: a program does not get it. Files that the page
    cache holds on the node are forgotten first, unless there are none.
    """
    release(machine, node)
    if drop_caches:
        machine.run(["sh", "-c", "echo 3 > /proc/sys/vm/drop_caches"], check=True)
    text = machine.run(["cat", "/proc/zoneinfo"], check=True).stdout
    kept = reserve_bytes(text.encode())[node]
    spare = free_bytes(machine, node) - kept - wanted_bytes
    _set_huge_pages(machine, node, max(0, spare // HUGE_PAGE_BYTES - 1))
    # Setting memory aside makes the kernel give other memory back, some of it later.
    aside = 0
    for _ in range(MAX_TRIES):
        left = free_bytes(machine, node) - kept
        if abs(left - wanted_bytes) <= NEAR_BYTES:
            return left
        aside = max(0, aside + left - wanted_bytes)
        machine.run(["sh", "-c", _RESIZE.format(bytes=aside, file=_REST)], check=True)
    raise HmdError(
        f"node {node} of the guest has {left >> 10} KiB free where {wanted_bytes >> 10} are wanted"
    )


def _set_huge_pages(machine: Machine, node: int, pages: int) -> None:
    place = _COUNT.format(node=node)
    machine.run(["sh", "-c", f"echo {pages} > {place}"], check=True)
