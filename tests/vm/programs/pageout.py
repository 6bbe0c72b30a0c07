# SPDX-License-Identifier: MIT
"""Page out a child's pages to zram and read them back; print the result as JSON.

Arguments: the modules to load, in their order.
"""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np

from hmd.linux.page_calls import query_nodes
from hmd.linux.procfs import identify
from hmd.migrate.pageout import Pageout
from hmd.policy.plan import Plan
from hmd.policy.planning import OUT

PAGES = 1024
CHILD = """
import ctypes, mmap, sys
own = mmap.mmap(-1, 1024 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
own.madvise(mmap.MADV_NOHUGEPAGE)
for page in range(1024):
    own[page * 4096 : page * 4096 + 8] = page.to_bytes(8, "little")
print(ctypes.addressof(ctypes.c_char.from_buffer(own)), flush=True)
sys.stdin.readline()
print(all(own[p * 4096 : p * 4096 + 8] == p.to_bytes(8, "little") for p in range(1024)), flush=True)
sys.stdin.readline()
"""


def make_swap(modules: list[str]) -> None:
    """Make a compressed disk in memory the guest's swap."""
    for module in modules:
        subprocess.run(["busybox", "insmod", module], check=True)
    Path("/sys/block/zram0/disksize").write_text(str(64 << 20))
    subprocess.run(["busybox", "mkswap", "/dev/zram0"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["busybox", "swapon", "/dev/zram0"], check=True)


def swapped_kib(pid: int) -> int:
    """Return how much of a process is in swap."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmSwap:"))


def main() -> None:
    """Send a child's pages out, look, and let the child look at them again."""
    make_swap(sys.argv[1:])
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin
        assert child.stdout
        start = int(child.stdout.readline())
        process = identify(child.pid)
        assert process
        address = np.uint64(start) + np.arange(PAGES, dtype=np.uint64) * np.uint64(mmap.PAGESIZE)
        plan = Plan(
            (process,),
            np.zeros(PAGES, np.int32),
            address,
            np.ones(PAGES, np.uint32),
            query_nodes(child.pid, address),
            np.full(PAGES, OUT, np.int16),
            np.zeros(PAGES, np.float32),
            np.zeros(PAGES, np.int32),
        )
        sent = Pageout().apply(plan, PAGES // 2 * mmap.PAGESIZE, 0.0)
        found = {
            "tried": int(sent.tried.sum()),
            "out_bytes": sent.out_bytes,
            "swapped_kib": swapped_kib(child.pid),
            "resident": int((query_nodes(child.pid, address) >= 0).sum()),
        }
        print("", file=child.stdin, flush=True)
        found["intact"] = child.stdout.readline().strip() == "True"
        found["back"] = int((query_nodes(child.pid, address) >= 0).sum())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
