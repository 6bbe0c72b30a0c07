"""Asking the kernel to reclaim pages of another process: process_madvise(2), MADV_PAGEOUT.

Takes a process and ranges, gives how many bytes were asked for. Anonymous pages go to swap or
zram, those of files to their file; the kernel leaves alone what other processes map too, and what
it has nowhere to put. Costs what writing the pages costs. Needs Linux 5.10, CAP_SYS_NICE, and
leave to read the process (ptrace(2), PTRACE_MODE_READ).
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
"""Ranges that one call takes."""

_OF_RANGE: Final = (-errno.ENOMEM, -errno.EINVAL, -errno.EBADF)
"""Answers about a range: not mapped any more, locked or device memory, a file that is not ours."""


def page_out(
    process: ProcessId,
    start: npt.NDArray[np.uint64],
    size_bytes: npt.NDArray[np.uint64],
    proc: Path = PROC,
) -> int:
    """Ask for ranges to be reclaimed, ``RANGES_MOST`` of them at most; columns of shape ``(n,)``.

    Returns how many bytes were asked for; ranges that the kernel refuses are left out. Or
    -errno of the whole: ESRCH (the process is gone, or its pid another's), EPERM, ENOSYS.
    """
    start = np.ascontiguousarray(start, np.uint64)
    size_bytes = np.ascontiguousarray(size_bytes, np.uint64)
    try:
        handle = os.pidfd_open(process.pid)
    except OSError as error:
        return -(error.errno or errno.ESRCH)
    try:
        # Whoever the handle means is still the one, or the pid was taken before it was opened.
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
        # The range at which the kernel stopped, if it did, is passed over.
        at = int(np.searchsorted(end, before + done, side="right")) + 1
    return asked
