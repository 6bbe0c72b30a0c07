"""Where pages are, and moving them: the typed front of move_pages(2).

Takes a pid and addresses, gives what the kernel answered, row by row, with errors as negative
errno: nothing here raises for a process that has gone, and nothing interprets. The move_pages
engine in ``hmd.migrate`` does. A query costs about 0.2 µs a page; a move costs a drain of every
CPU's LRU caches a call, and a page copy a page.

pid 0 means the caller to the kernel; callers here pass real pids.
"""

from __future__ import annotations

from enum import IntFlag

import numpy as np
import numpy.typing as npt

from hmd._native import ffi, lib

UNTOUCHED = -(2**31)
"""Status of an entry that the kernel never wrote: no node and no errno has this value."""


class MoveFlags(IntFlag):
    """Flags of a move (linux/mempolicy.h)."""

    MOVE = 1 << 1
    """Pages that only this process maps (MPOL_MF_MOVE)."""
    MOVE_ALL = 1 << 2
    """Shared pages too (MPOL_MF_MOVE_ALL); needs CAP_SYS_NICE."""


def query_nodes(pid: int, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.int16]:
    """Return the node of each page, or its -errno; shape as ``addresses``, nothing is moved.

    -ENOENT is a page that is not present, -EFAULT the zero page or an unmapped address. An error
    of the whole query stands in every row that it left open: -ESRCH no such process, -EPERM not
    ours to ask (CAP_SYS_PTRACE), -EINVAL a kernel thread or a process that is exiting.
    """
    addresses = np.ascontiguousarray(addresses, np.uint64)
    # 0 is node 0, so that rows which the kernel leaves open must not start as zeros.
    nodes = np.full(len(addresses), np.iinfo(np.int16).min, np.int16)
    result = int(
        lib.hmd_query_nodes(
            pid,
            len(addresses),
            ffi.from_buffer("uint64_t[]", addresses),
            ffi.from_buffer("int16_t[]", nodes, require_writable=True),
        )
    )
    if result < 0:
        nodes[nodes == np.iinfo(np.int16).min] = result
    return nodes


def move_pages(
    pid: int,
    addresses: npt.NDArray[np.uint64],
    nodes: npt.NDArray[np.int32],
    flags: MoveFlags = MoveFlags.MOVE,
) -> tuple[int, npt.NDArray[np.int32]]:
    """Ask for each page to be moved to its node; both columns have shape ``(n,)``.

    Returns what the call returned and a status per row. The first is 0, or -errno, or the count
    of pages that were not migrated or not attempted. A status is the page's node (0 is node 0),
    a -errno of the page, or ``UNTOUCHED``: the kernel stops at the first run of pages that it
    cannot migrate whole, and says nothing of that run and of all that follows (mm/migrate.c,
    a49bd4d71637 "mm, numa: rework do_pages_move"). -errno of the call: EPERM (CAP_SYS_PTRACE, for
    MOVE_ALL CAP_SYS_NICE), ESRCH, EINVAL (kernel thread, exiting process), ENODEV (node without
    memory), EACCES (node outside the process's cpuset), ENOMEM (node is full).
    """
    if len(addresses) != len(nodes):
        raise ValueError(f"{len(addresses)} addresses, but {len(nodes)} nodes")
    addresses = np.ascontiguousarray(addresses, np.uint64)
    nodes = np.ascontiguousarray(nodes, np.int32)
    status = np.full(len(addresses), UNTOUCHED, np.int32)
    result = lib.hmd_move_pages(
        pid,
        len(addresses),
        ffi.from_buffer("uint64_t[]", addresses),
        ffi.from_buffer("int32_t[]", nodes),
        ffi.from_buffer("int32_t[]", status, require_writable=True),
        int(flags),
    )
    return int(result), status
