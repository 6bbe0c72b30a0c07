"""Reclaim of another process's pages: process_madvise(2) with MADV_PAGEOUT.

Takes a process and ranges, returns the bytes of the ranges that the kernel accepted. Anonymous
pages go to swap or zram, file pages to their file; the kernel skips pages that other processes map
too, and pages without a place to go. Costs the write-back of the pages. Needs Linux 5.10,
CAP_SYS_NICE, and permission to read the process (ptrace(2), PTRACE_MODE_READ).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd._native import ffi, lib
from hmd.machine.process_id import PROC, ProcessId, identify

RANGES_MOST: Final = 1024
"""Ranges per call (UIO_MAXIOV)."""

_OF_RANGE: Final = (-errno.ENOMEM, -errno.EINVAL, -errno.EBADF)
"""Errors of one range: no longer mapped, locked or device memory, a file without permission."""


def page_out(
    process: ProcessId,
    start: npt.NDArray[np.uint64],
    size_bytes: npt.NDArray[np.uint64],
    proc: Path = PROC,
) -> int:
    """Reclaim at most ``RANGES_MOST`` ranges; columns of shape ``(n,)``.

    Returns the bytes of the accepted ranges, or -errno of the whole call: ESRCH (the process has
    exited, or its pid was reused), EPERM, ENOSYS.
    """
    start = np.ascontiguousarray(start, np.uint64)
    size_bytes = np.ascontiguousarray(size_bytes, np.uint64)
    try:
        handle = os.pidfd_open(process.pid)
    except OSError as error:
        return -(error.errno or errno.ESRCH)
    try:
        # If the pid was reused before the pidfd was opened, the start time shows it.
        if identify(process.pid, proc) != process:
            return -errno.ESRCH
        return _advise(handle, start, size_bytes)
    finally:
        os.close(handle)


def _advise(handle: int, start: npt.NDArray[np.uint64], size_bytes: npt.NDArray[np.uint64]) -> int:
    end = np.cumsum(size_bytes, dtype=np.int64)
    at, asked = 0, 0
    while at < len(start):
        answer = int(
            lib.hmd_page_out(
                handle,
                len(start) - at,
                ffi.from_buffer("uint64_t[]", start[at:]),
                ffi.from_buffer("uint64_t[]", size_bytes[at:]),
            )
        )
        if answer < 0 and answer not in _OF_RANGE:
            return answer
        done = max(answer, 0)
        asked += done
        before = int(end[at - 1]) if at else 0
        # Skip the range at which the kernel stopped, if it did.
        at = int(np.searchsorted(end, before + done, side="right")) + 1
    return asked
