# SPDX-License-Identifier: MIT
"""A real process that touches memory when a test says so."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from hmd.linux.procfs import ProcessId

PROGRAM = """
import mmap, sys, threading, ctypes, os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
kept = []
def touch(pages):
    area = mmap.mmap(-1, pages * 4096)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    kept.append(area)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for page in range(pages):
        area[page * 4096] = 1
    return start
def reserve(pages):
    area = mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    kept.append(area)
    area[pages // 2 * 4096] = 1
    return ctypes.addressof(ctypes.c_char.from_buffer(area))
for line in sys.stdin:
    verb, pages = line.split()
    if verb == "touch":
        start = touch(int(pages))
    elif verb == "reserve":
        start = reserve(int(pages))
    elif verb == "thread":
        found = []
        thread = threading.Thread(target=lambda: found.append(touch(int(pages))))
        thread.start()
        thread.join()
        start = found[0]
    print(start, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Toucher:
    """A running program; ``touch`` maps fresh pages, touches each once, and says where.

    ``verb`` thread does so in a thread, and reserve (MAP_NORESERVE) touches one page alone.
    """

    process: ProcessId
    popen: subprocess.Popen[str]

    def touch(self, pages: int, verb: str = "touch") -> range:
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.write(f"{verb} {pages}\n")
        self.popen.stdin.flush()
        start = int(self.popen.stdout.readline())
        return range(start, start + pages * 4096, 4096)

    def end(self) -> None:
        """Let the program exit, and wait for it."""
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        self.popen.wait()
