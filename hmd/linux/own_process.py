# SPDX-License-Identifier: MIT
"""What hmd sets for itself and for programs that it starts: memory, descriptors, addresses.

- Heap: mallopt(3) keeps freed memory, so that a tick faults no pages again.
- Compiler: about 50 MiB of LLVM's code are touched when kernels are loaded, and then never run.
  madvise(2), MADV_DONTNEED, unmaps them; a file's pages that were never written come back by
  faults.
- Open files: hmd keeps a pidfd per process and a perf event per CPU, so that the soft limit of
  shells, 1,024, would be reached (RLIMIT_NOFILE, getrlimit(2)).
- Nodes that memory is allocated from: set_mempolicy(2). Address randomisation: personality(2).
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from hmd._native import ffi, lib

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
    """Unmap the resident pages of a range of this process's addresses (MADV_DONTNEED).

    Pages of files are read again where they are needed again; what was written to private
    memory is lost. Raises OSError: EINVAL where ``start`` is not the start of a page or
    the range is locked, ENOMEM where some of it is not mapped.
    """
    result = int(lib.hmd_unmap_resident(start, end - start))
    if result < 0:
        raise OSError(-result, os.strerror(-result))


def keep_freed_memory() -> bool:
    """Have the heap keep up to ``KEPT_BYTES`` that are free; returns whether the C library does.

    A tick allocates the same arrays as the tick before. By default glibc gives them back to the
    kernel in between, which is a page fault per 4 KiB in the next tick: half of the time of a
    decision about 100,000 pages (mallopt(3), M_TRIM_THRESHOLD and M_MMAP_THRESHOLD).
    """
    return bool(lib.hmd_keep_freed(MAPPED_BYTES, KEPT_BYTES))


def raise_descriptor_limit() -> None:
    """Raise the soft limit to the hard one, which needs no privilege."""
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
    """Make the calling thread and its children allocate from these nodes only.

    Raises OSError: EINVAL where one of them has no memory.
    """
    wanted = np.array(nodes, np.int32)
    result = int(lib.hmd_bind_memory(len(wanted), ffi.from_buffer("int32_t[]", wanted)))
    if result < 0:
        raise OSError(-result, os.strerror(-result))


def fix_addresses() -> None:
    """Switch address randomisation off for programs that the calling process executes.

    Set-user-ID programs keep it. Raises OSError: EPERM where a seccomp filter forbids it,
    as those of containers do.
    """
    result = int(lib.hmd_fix_addresses())
    if result < 0:
        raise OSError(-result, os.strerror(-result))


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
    """Unmap the compiler's code until it runs again; return the bytes that the kernel accepted."""
    released = 0
    for start, end in compiler_code():
        with contextlib.suppress(OSError):  # code that is locked in memory stays
            unmap_resident(start, end)
            released += end - start
    return released
