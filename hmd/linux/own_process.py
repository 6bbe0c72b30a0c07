# SPDX-License-Identifier: MIT
"""What hmd sets for itself and for programs that it starts: memory, descriptors, addresses."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from hmd._native import lib
from hmd.linux.page_calls import c_array, checked

MAPPED_BYTES: Final = 16 << 20
"""Allocations of so many bytes or more are mappings of their own, given back when they are freed:
the largest that glibc takes is 32 MiB."""

KEPT_BYTES: Final = 32 << 20
"""The most that is free at the end of the heap and not given back."""

RESERVED: Final = 512
"""Descriptors that pidfds leave to files, sockets and perf events."""

SELF_MAPS: Final = Path("/proc/self/maps")

# llvmlite's wheels link LLVM into one library; distributions have it in its own.
_LIBRARIES: Final = ("libllvmlite", "libLLVM")


def unmap_resident(start: int, end: int) -> None:
    """Unmap the resident pages of a range of this process's addresses (madvise(2), MADV_DONTNEED).

    Pages of files are read again where they are needed again; what was written to private memory is
    lost. Raises OSError: EINVAL where the range is not aligned or locked, ENOMEM where not mapped.
    """
    checked(int(lib.hmd_unmap_resident(start, end - start)))


def keep_freed_memory() -> bool:
    """Have the heap keep up to ``KEPT_BYTES`` that are free; returns whether the C library does.

    A tick allocates the same arrays as the tick before. By default glibc gives them back to the
    kernel in between, which is a page fault per 4 KiB in the next tick: half of the time of a
    decision about 100,000 pages (mallopt(3), M_TRIM_THRESHOLD and M_MMAP_THRESHOLD).
    """
    return bool(lib.hmd_keep_freed(MAPPED_BYTES, KEPT_BYTES))


def raise_descriptor_limit() -> None:
    """Raise the soft limit, 1,024 in shells, to the hard one, for a pidfd per process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def max_pidfds() -> int:
    """Return how many pidfds this process may hold and still open other files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(limit - RESERVED, limit // 2)


def bind_memory(nodes: Sequence[int]) -> None:
    """Allocate from these nodes only, also in children (set_mempolicy(2)). Raises OSError."""
    wanted = np.array(nodes, np.int32)
    checked(int(lib.hmd_bind_memory(len(wanted), c_array(wanted))))


def fix_addresses() -> None:
    """Switch address randomisation off (personality(2)) for programs that this process executes.

    Set-user-ID programs keep it. Raises OSError: EPERM where a seccomp filter of a container
    forbids it.
    """
    checked(int(lib.hmd_fix_addresses()))


def compiler_code(maps: Path = SELF_MAPS) -> list[tuple[int, int]]:
    """Return the addresses of LLVM's code in this process, start and end (proc_pid_maps(5))."""
    found = []
    for line in maps.read_text().splitlines():
        words = line.split(maxsplit=5)
        if len(words) < 6 or words[1] != "r-xp":
            continue
        if Path(words[5]).name.startswith(_LIBRARIES):
            start, end = (int(word, 16) for word in words[0].split("-"))
            found.append((start, end))
    return found


def release_compiler() -> int:
    """Unmap LLVM's code, some 50 MiB, until it runs again; return the bytes unmapped."""
    released = 0
    for start, end in compiler_code():
        with contextlib.suppress(OSError):  # code that is locked in memory stays
            unmap_resident(start, end)
            released += end - start
    return released
