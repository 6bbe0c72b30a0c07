"""Page cache of a node that the kernel gives up for moves to the node.

Memory of a busy machine is full of page cache, and MemFree is small. move_pages(2) allocates on
its target node as any allocation for a program does: at the low watermark of a zone it wakes
kswapd, and below the minimum it reclaims itself; it never kills a process (__GFP_THISNODE,
alloc_migration_target in mm/migrate.c, Linux 6.12). Page cache goes first: without swap and without
demotion nothing else can; with demotion, pages of cache move to a slower node.

What counts as room is the cache that no process maps and that needs no write-back: the inactive
part of it, and at least half. The kernel's own estimate, MemAvailable in proc_meminfo(5), assumes
too that half can be freed. Active cache beyond that stays: it was read several times.
"""

from __future__ import annotations

import re

_FIELD = re.compile(
    rb" (Active\(file\)|Inactive\(file\)|Mapped|Dirty|Writeback):\s*(\d+) kB", re.ASCII
)


def reclaimable_bytes(meminfo: bytes) -> int:
    """Return the reclaimable page cache in the text of /sys/devices/system/node/nodeN/meminfo.

    0 where the text lacks the lists. Mapped includes shared memory, which is on no list of files,
    so that the result is rather too small.
    """
    kib = {name: int(value) for name, value in _FIELD.findall(meminfo)}
    inactive = kib.get(b"Inactive(file)", 0)
    busy = kib.get(b"Mapped", 0) + kib.get(b"Dirty", 0) + kib.get(b"Writeback", 0)
    clean = max(0, inactive + kib.get(b"Active(file)", 0) - busy)
    return max(min(inactive, clean), clean // 2) << 10
