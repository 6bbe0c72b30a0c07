"""Memory of this process: pages of its mappings, madvise(2), and its heap, mallopt(3)."""

from __future__ import annotations

import os
from typing import Final

from hmd._native import lib

MAPPED_BYTES: Final = 16 << 20
"""Allocations of so many bytes or more are mappings of their own, given back when they are freed:
the largest that glibc takes is 32 MiB."""

KEPT_BYTES: Final = 32 << 20
"""The most that is free at the end of the heap and not given back."""


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
