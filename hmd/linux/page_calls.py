# SPDX-License-Identifier: MIT
"""Calls on another process's pages: move_pages(2), process_madvise(2), PAGEMAP_SCAN, pagemap.

They return the kernel's status of each row, errors as negative errno, and raise for no exited
process; :mod:`hmd.migrate.engine` interprets errno. For the kernel pid 0 is the caller; callers
here pass real pids. PAGEMAP_SCAN and the entries of pagemap:
Documentation/admin-guide/mm/pagemap.rst.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntFlag
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hmd._native import ffi, lib
from hmd.linux.procfs import PROC, ProcessId, identify, open_to_read, unless_absent

UNTOUCHED = -(2**31)
"""Status of an entry that the kernel never wrote: no node and no errno has this value."""

RANGES_MOST: Final = 1024
"""Ranges per call (UIO_MAXIOV)."""

_OF_RANGE: Final = (-errno.ENOMEM, -errno.EINVAL, -errno.EBADF)
"""Errors of one range: no longer mapped, locked or device memory, a file without permission."""

# include/uapi/linux/fs.h: _IOWR('f', 16, struct pm_scan_arg)
_PAGEMAP_SCAN = 0xC0606610

PRESENT: Final = np.uint64(1 << 63)
FRAME: Final = np.uint64((1 << 55) - 1)
"""Bits of a pagemap entry: the page is in memory, and its page frame (0: hidden from this user)."""

_ENTRY_BYTES: Final = 8
_GAP_PAGES: Final = 64
"""Pages between two that are read with them, rather than by a call of their own."""

_ARGUMENT = struct.Struct("<12Q")
_REGION = np.dtype([("start", "<u8"), ("end", "<u8"), ("categories", "<u8")])
_REGIONS = 512

WINDOW_BYTES: Final = 64 << 30
"""Most address space of one call, so that page tables which hold little bound its time: at most
32,768 tables of 512 entries."""


class MoveFlags(IntFlag):
    """Flags of a move (linux/mempolicy.h)."""

    MOVE = 1 << 1
    """Pages that only this process maps (MPOL_MF_MOVE)."""
    MOVE_ALL = 1 << 2
    """Shared pages too (MPOL_MF_MOVE_ALL); needs CAP_SYS_NICE."""


def c_array(column: npt.NDArray[Any]) -> Any:
    """Return a pointer to the rows of a contiguous column, as functions of hmd/native take it."""
    return ffi.from_buffer(f"{column.dtype.name}_t[]", column)


def checked(result: int) -> int:
    """Return a result of hmd/native; raises OSError for a -errno."""
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


def query_nodes(pid: int, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.int16]:
    """Return the node of each page, or its -errno; shape as ``addresses``, nothing is moved.

    -ENOENT is a page that is not present, -EFAULT the zero page or an unmapped address. An error
    of the whole query is in every row without a status: -ESRCH, -EPERM (CAP_SYS_PTRACE), -EINVAL (a
    kernel thread or a process that is exiting). About 0.2 µs per page.
    """
    addresses = np.ascontiguousarray(addresses, np.uint64)
    # 0 is node 0: rows that the kernel does not write must not start as zeros.
    nodes = np.full(len(addresses), np.iinfo(np.int16).min, np.int16)
    result = int(lib.hmd_query_nodes(pid, len(nodes), c_array(addresses), c_array(nodes)))
    if result < 0:
        nodes[nodes == np.iinfo(np.int16).min] = result
    return nodes


def probe_own_page() -> int:
    """Return the node of a page of this process, or the -errno of a call that seccomp refuses."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    page[0] = 1
    held = ctypes.c_char.from_buffer(page)
    node = int(query_nodes(os.getpid(), np.array([ctypes.addressof(held)], np.uint64))[0])
    del held
    page.close()
    return node


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
    arrays = c_array(addresses), c_array(nodes), c_array(status)
    return int(lib.hmd_move_pages(pid, len(addresses), *arrays, int(flags))), status


def page_out(
    process: ProcessId,
    start: npt.NDArray[np.uint64],
    size_bytes: npt.NDArray[np.uint64],
    proc: Path = PROC,
) -> int:
    """Reclaim at most ``RANGES_MOST`` ranges by MADV_PAGEOUT; columns of shape ``(n,)``.

    Anonymous pages go to swap or zram, file pages to their file; the kernel skips pages that other
    processes map too, and pages without a place to go. Needs Linux 5.10, CAP_SYS_NICE and
    PTRACE_MODE_READ. Returns the bytes of the accepted ranges, or -errno of the whole call: ESRCH
    (the process has exited, or its pid was reused), EPERM, ENOSYS.
    """
    return _advise(lib.hmd_page_out, process, start, size_bytes, proc)


def page_in(
    process: ProcessId,
    start: npt.NDArray[np.uint64],
    size_bytes: npt.NDArray[np.uint64],
    proc: Path = PROC,
) -> int:
    """Begin to read ranges from swap (MADV_WILLNEED); otherwise as ``page_out``."""
    return _advise(lib.hmd_page_in, process, start, size_bytes, proc)


_Advise = Callable[[int, int, Any, Any], int]


def _advise(
    advise: _Advise,
    process: ProcessId,
    start: npt.NDArray[np.uint64],
    size_bytes: npt.NDArray[np.uint64],
    proc: Path,
) -> int:
    start = np.ascontiguousarray(start, np.uint64)
    size_bytes = np.ascontiguousarray(size_bytes, np.uint64)
    end = np.cumsum(size_bytes, dtype=np.int64)
    at, asked = 0, 0
    try:
        handle = os.pidfd_open(process.pid)
    except OSError as error:
        return -(error.errno or errno.ESRCH)
    try:
        # If the pid was reused before the pidfd was opened, the start time shows it.
        if identify(process.pid, proc) != process:
            return -errno.ESRCH
        while at < len(start):
            arrays = c_array(start[at:]), c_array(size_bytes[at:])
            answer = advise(handle, len(start) - at, *arrays)
            if answer < 0 and answer not in _OF_RANGE:
                return answer
            done = max(answer, 0)
            asked += done
            before = int(end[at - 1]) if at else 0
            # Skip the range at which the kernel stopped, if it did.
            at = int(np.searchsorted(end, before + done, side="right")) + 1
        return asked
    finally:
        os.close(handle)


class PageIs(IntFlag):
    """Categories (PAGE_IS_* of linux/fs.h)."""

    PRESENT = 1 << 3
    HUGE = 1 << 6


@dataclass(frozen=True, slots=True)
class ScannedPart:
    """Ranges of pages of a category, and how far the kernel has walked.

    ``start``, ``end`` (exclusive) and ``huge`` (whether huge entries map it) have shape ``(n,)``;
    neighbours may be two ranges. ``walked_to`` is the address to continue at.
    """

    start: npt.NDArray[np.uint64]
    end: npt.NDArray[np.uint64]
    huge: npt.NDArray[np.bool_]
    walked_to: int


def scan_part(fd: int, start: int, end: int, category: PageIs, max_pages: int = 0) -> ScannedPart:
    """Return the first ranges within ``start`` to ``end`` whose pages are all of a category.

    ``fd`` is /proc/PID/pagemap. At most 512 ranges, ``max_pages`` pages (0: any number) and
    ``WINDOW_BYTES`` of address space. OSError: ENOTTY before Linux 6.7, ESRCH after exit.
    """
    regions = np.zeros(_REGIONS, _REGION)
    end = min(end, start + WINDOW_BYTES)
    argument = bytearray(
        _ARGUMENT.pack(
            _ARGUMENT.size, 0, start, end, 0,
            regions.ctypes.data, _REGIONS, max_pages, 0, category, 0, category | PageIs.HUGE,
        )
    )  # fmt: skip
    count = fcntl.ioctl(fd, _PAGEMAP_SCAN, argument)
    part = regions[:count]
    walked_to: int = _ARGUMENT.unpack(argument)[4]
    huge = (part["categories"] & np.uint64(PageIs.HUGE)) != 0
    # No progress would be a call without end; the kernel makes some in every call.
    return ScannedPart(part["start"], part["end"], huge, walked_to if walked_to > start else end)


def scan(fd: int, start: int, end: int, category: PageIs) -> npt.NDArray[np.uint64]:
    """Return all ranges (first address, end) with pages of a category; raises as ``scan_part``."""
    found: list[npt.NDArray[np.uint64]] = []
    while start < end:
        part = scan_part(fd, start, end, category)
        found.append(np.stack([part.start, part.end], axis=1))
        start = part.walked_to
    return np.concatenate(found) if found else np.empty((0, 2), np.uint64)


def read_pagemap(
    pid: int, pages: npt.NDArray[np.uint64], proc: Path = PROC
) -> npt.NDArray[np.uint64] | None:
    """Return the pagemap entry of each page by its number, which ascend; 0 beyond all addresses.

    None if the process has exited or may not be read. About 15 ns per page where nothing is mapped,
    and 2 µs per run of pages.
    """
    fd = open_to_read(proc / str(pid) / "pagemap")
    if fd is None:
        return None
    entry = np.zeros(len(pages), np.uint64)
    cuts = np.flatnonzero(np.diff(pages) > _GAP_PAGES) + 1
    edges = [0, *cuts.tolist(), len(pages)] if len(pages) else [0]
    try:
        with unless_absent():
            for begin, end in pairwise(edges):
                first, last = int(pages[begin]), int(pages[end - 1])
                data = os.pread(fd, (last - first + 1) * _ENTRY_BYTES, first * _ENTRY_BYTES)
                known = np.frombuffer(data, np.uint64, len(data) // _ENTRY_BYTES)
                at = (pages[begin:end] - np.uint64(first)).astype(np.intp)
                inside = at < len(known)
                entry[begin:end][inside] = known[at[inside]]
            return entry
        return None
    finally:
        os.close(fd)
