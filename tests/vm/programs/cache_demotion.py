# SPDX-License-Identifier: MIT
"""Demotes unused page cache off node 0 on the real kernel; prints one JSON line.

Holds memory of its own on the node meanwhile, which is not used and has to stay.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import time
from pathlib import Path

import numpy as np

from hmd.base.units import PAGE_BYTES
from hmd.linux.damon import CacheWatch, Kdamonds
from hmd.linux.page_calls import move_pages, query_nodes
from hmd.linux.topology import read_node_use, read_topology
from hmd.migrate.cache_demotion import CacheDemotion, CacheSettings

OWN_BYTES = 1 << 20
LONGEST_S = 60.0


def own_pages() -> tuple[mmap.mmap, np.ndarray]:
    """Return anonymous memory on node 0, and the addresses of its pages."""
    area = mmap.mmap(-1, OWN_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area[:] = b"x" * OWN_BYTES
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    pages = start + np.arange(0, OWN_BYTES, PAGE_BYTES, dtype=np.uint64)
    move_pages(os.getpid(), pages, np.zeros(len(pages), np.int32))
    return area, pages


def main() -> None:
    _area, pages = own_pages()
    settings = CacheSettings(1.0, CacheWatch(0.5, 200 << 20, 1.0))
    before = read_node_use(0)
    own_before = int((query_nodes(os.getpid(), pages) == 0).sum())
    demotion = CacheDemotion(settings, read_topology())
    began_s, active = time.monotonic(), False
    try:
        while time.monotonic() < began_s + LONGEST_S:
            demotion.update()
            active = active or bool(demotion.active)
            if read_node_use(0).cache_bytes < before.cache_bytes / 8:
                break
            time.sleep(0.1)
        cpu_s = demotion.cpu_s
        demotion.update(paused=True)
        paused = not demotion.active
    finally:
        demotion.close()
    after = read_node_use(0)
    print(
        json.dumps(
            {
                "seconds": time.monotonic() - began_s,
                "active": active,
                "paused": paused,
                "cpu_s": cpu_s,
                "cache_before": before.cache_bytes,
                "cache_after": after.cache_bytes,
                "own_before": own_before,
                "own_after": int((query_nodes(os.getpid(), pages) == 0).sum()),
                "kdamonds": Kdamonds(Path("/sys")).count,
            }
        )
    )


if __name__ == "__main__":
    main()
