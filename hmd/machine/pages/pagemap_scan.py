"""Ranges of a process's pages by category: the ioctl PAGEMAP_SCAN.

Linux 6.7, CAP_SYS_PTRACE for others' processes (Documentation/admin-guide/mm/pagemap.rst). The
kernel walks page tables and skips empty ones, so that terabytes of reserved address space cost
nothing.
"""

from __future__ import annotations

import fcntl
import struct
from dataclasses import dataclass
from enum import IntFlag
from typing import Final

import numpy as np
import numpy.typing as npt

# include/uapi/linux/fs.h: _IOWR('f', 16, struct pm_scan_arg)
_PAGEMAP_SCAN = 0xC0606610
_ARGUMENT = struct.Struct("<12Q")
_REGION = np.dtype([("start", "<u8"), ("end", "<u8"), ("categories", "<u8")])
_REGIONS = 512
WINDOW_BYTES: Final = 64 << 30
"""Most address space of one call, so that page tables which hold little bound its time: at most
32,768 tables of 512 entries."""


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


def scan_part(fd: int, start: int, end: int, category: PageIs, most_pages: int = 0) -> ScannedPart:
    """Return the first ranges within ``start`` to ``end`` whose pages are all of a category.

    ``fd`` is /proc/PID/pagemap. At most 512 ranges, ``most_pages`` pages (0: any number) and
    ``WINDOW_BYTES`` of address space. OSError: ENOTTY before Linux 6.7, ESRCH after exit.
    """
    regions = np.zeros(_REGIONS, _REGION)
    end = min(end, start + WINDOW_BYTES)
    argument = bytearray(
        _ARGUMENT.pack(
            _ARGUMENT.size, 0, start, end, 0,
            regions.ctypes.data, _REGIONS, most_pages, 0, category, 0, category | PageIs.HUGE,
        )
    )  # fmt: skip
    count = fcntl.ioctl(fd, _PAGEMAP_SCAN, argument)
    part = regions[:count]
    walked_to: int = _ARGUMENT.unpack(argument)[4]
    huge = (part["categories"] & np.uint64(PageIs.HUGE)) != 0
    # No progress would be a call without end; the kernel makes some in every call.
    return ScannedPart(part["start"], part["end"], huge, walked_to if walked_to > start else end)


def scan(fd: int, start: int, end: int, category: PageIs) -> npt.NDArray[np.uint64]:
    """Return all ranges within ``start`` to ``end`` whose pages are all of a category.

    Shape ``(n, 2)``: first address, and the one after the last. Raises as ``scan_part``.
    """
    found: list[npt.NDArray[np.uint64]] = []
    while start < end:
        part = scan_part(fd, start, end, category)
        found.append(np.stack([part.start, part.end], axis=1))
        start = part.walked_to
    return np.concatenate(found) if found else np.empty((0, 2), np.uint64)
