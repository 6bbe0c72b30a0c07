"""The system call move_pages(2), as a query of nodes and as a move.

Takes a pid and addresses and returns the kernel's status of each row, errors as negative errno.
Nothing here raises for an exited process or interprets an errno: the move_pages engine in
``hmd.migrate`` does. A query costs about 0.2 µs per page. A move costs a drain of every CPU's LRU
caches per call, and a copy per page.

For the kernel pid 0 is the caller; callers here pass real pids.
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
    of the whole query is in every row without a status: -ESRCH no such process, -EPERM no
    permission (CAP_SYS_PTRACE), -EINVAL a kernel thread or a process that is exiting.
    """
    addresses = np.ascontiguousarray(addresses, np.uint64)
    # 0 is node 0: rows that the kernel does not write must not start as zeros.
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
    """Move each page to its node; both columns have shape ``(n,)``.

    Returns the result of the call and a status per row. The first is 0, or -errno, or the count
    of pages that were not migrated or not attempted. A status is the page's node (0 is node 0),
    a -errno of the page, or ``UNTOUCHED``: the kernel stops at the first run of pages that it
    cannot migrate whole, and writes no status for that run and for all later rows (mm/migrate.c,
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
