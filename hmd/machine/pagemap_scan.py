"""Ranges of a process's pages by category: the ioctl PAGEMAP_SCAN.

Linux 6.7, CAP_SYS_PTRACE for others' processes (Documentation/admin-guide/mm/pagemap.rst). The
kernel walks page tables and skips empty ones, so that terabytes of reserved address space cost
nothing.
"""

from __future__ import annotations

import fcntl
import struct
from enum import IntFlag

import numpy as np
import numpy.typing as npt

# include/uapi/linux/fs.h: _IOWR('f', 16, struct pm_scan_arg)
_PAGEMAP_SCAN = 0xC0606610
_ARGUMENT = struct.Struct("<12Q")
_REGION = np.dtype([("start", "<u8"), ("end", "<u8"), ("categories", "<u8")])
_REGIONS = 512


class PageIs(IntFlag):
    """Categories (PAGE_IS_* of linux/fs.h)."""

    PRESENT = 1 << 3
    HUGE = 1 << 6


def scan(fd: int, start: int, end: int, category: PageIs) -> npt.NDArray[np.uint64]:
    """Return the ranges within ``start`` to ``end`` whose pages are all of a category.

    ``fd`` is /proc/PID/pagemap. Shape ``(n, 2)``: first address, and the one after the last;
    neighbours may be two ranges. OSError: ENOTTY before Linux 6.7, ESRCH after exit.
    """
    regions = np.zeros(_REGIONS, _REGION)
    found: list[npt.NDArray[np.uint64]] = []
    while start < end:
        argument = bytearray(
            _ARGUMENT.pack(
                _ARGUMENT.size, 0, start, end, 0,
                regions.ctypes.data, _REGIONS, 0, 0, category, 0, category,
            )
        )  # fmt: skip
        count = fcntl.ioctl(fd, _PAGEMAP_SCAN, argument)
        part = regions[:count]
        found.append(np.stack([part["start"], part["end"]], axis=1))
        walked_to = _ARGUMENT.unpack(argument)[4]
        if walked_to <= start:
            break
        start = walked_to
    return np.concatenate(found) if found else np.empty((0, 2), np.uint64)
