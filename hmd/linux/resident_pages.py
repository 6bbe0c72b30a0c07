# SPDX-License-Identifier: MIT
"""The pages of a process that are in memory, and which of them other processes map too.

PAGEMAP_SCAN (Linux 6.7) finds resident pages without looking at memory that is only reserved.
Before it, every page of a part counts as possibly resident, and which blocks are huge is known from
kpageflags (CAP_SYS_ADMIN) or from smaps, which the caller has read.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.base.units import HUGE_PAGE_BYTES, HUGE_PAGE_PAGES, PAGE_BYTES
from hmd.linux.huge_pages import HugeSource, huge_by_flags
from hmd.linux.page_calls import PRESENT, PageIs, read_pagemap, scan_part
from hmd.linux.procfs import PROC, open_to_read

Addresses: TypeAlias = npt.NDArray[np.uint64]

PART_PAGES: Final = 16 * HUGE_PAGE_PAGES
"""Most pages of one part: about 2 ms of queries."""

_USER_ENDS: Final = (
    ((1 << 47) - PAGE_BYTES, (1 << 56) - PAGE_BYTES)
    if os.uname().machine == "x86_64"
    else (1 << 56,)
)
"""Ends of user addresses that lie within a block: with four and five levels of x86-64
(Documentation/arch/x86/x86_64/mm.rst). Other architectures end with a block."""
_NONE: Final = np.empty(0, np.uint64)

_FILE_OR_SHARED: Final = np.uint64(1 << 61)
_EXCLUSIVE: Final = np.uint64(1 << 56)


@dataclass(frozen=True, slots=True)
class ResidentPart:
    """Pages that may be resident up to ``until``, where the next part begins.

    ``pages`` are starts of base pages, ``huge`` of 2 MiB blocks that are one huge page; no other
    page before ``until`` is resident.
    """

    pages: Addresses
    huge: Addresses
    until: int


@dataclass(frozen=True, slots=True)
class ResidentRange:
    """Addresses of resident pages; ``huge``: huge entries map them."""

    start: int
    end: int
    huge: bool


def every_page(
    start: int, end: int, huge: Addresses = _NONE, max_pages: int = PART_PAGES
) -> ResidentPart:
    """Return a part of at most ``PART_PAGES`` in which all pages may be resident.

    ``start`` and ``end`` are multiples of 2 MiB; ``huge`` are the starts of huge pages, ascending.
    """
    max_blocks = max(1, min(max_pages, PART_PAGES) // HUGE_PAGE_PAGES)
    end = min(end, start + max_blocks * HUGE_PAGE_BYTES)
    blocks = np.arange(start, end, HUGE_PAGE_BYTES, dtype=np.uint64)
    begin, past = np.searchsorted(huge, np.array([start, end], np.uint64))
    whole = np.zeros(len(blocks), np.bool_)
    whole[(huge[begin:past] - np.uint64(start)) // np.uint64(HUGE_PAGE_BYTES)] = True
    offsets = np.arange(0, HUGE_PAGE_BYTES, PAGE_BYTES, dtype=np.uint64)
    pages = (blocks[~whole, None] + offsets).reshape(-1)
    return ResidentPart(pages, blocks[whole], end)


def resident_part(
    pid: int,
    span: tuple[int, int],
    source: HugeSource,
    huge: Addresses = _NONE,
    max_pages: int = PART_PAGES,
    proc: Path = PROC,
) -> ResidentPart | None:
    """Return the next resident pages of ``pid`` in a span of 2 MiB blocks; None after its exit.

    At most ``max_pages``, of which 512 are needed, and ``PART_PAGES``. ``source`` is what this
    kernel has (``huge_pages.huge_source``); ``huge`` are the huge pages as smaps has them, for the
    source that needs it.
    """
    start, end = span
    if source is HugeSource.SMAPS:
        return every_page(start, end, huge, max_pages)
    if source is HugeSource.FLAGS:
        part = every_page(start, end, max_pages=max_pages)
        blocks = np.arange(start, part.until, HUGE_PAGE_BYTES, dtype=np.uint64)
        found = huge_by_flags(pid, blocks, proc)
        return part if found is None else every_page(start, part.until, found)
    fd = open_to_read(proc / str(pid) / "pagemap")
    if fd is None:
        return None
    try:
        return _scanned(fd, start, end, min(max_pages, PART_PAGES))
    except OSError as error:
        if error.errno == errno.ESRCH:
            return None
        raise
    finally:
        os.close(fd)


def resident_ranges(
    pid: int, start: int, end: int, max_pages: int, proc: Path = PROC
) -> Iterator[ResidentRange]:
    """Yield the ranges of resident pages from ``start`` to ``end``, for a kernel with the ioctl.

    None has more than ``max_pages``, of which 512 are needed. A range without pages says how far
    the walk is, at least once every ``page_calls.WINDOW_BYTES``. Ends early where the process
    exits.
    """
    fd = open_to_read(proc / str(pid) / "pagemap")
    if fd is None:
        return
    try:
        while start < end:
            part = scan_part(fd, start, end, PageIs.PRESENT, max_pages)
            stop = part.walked_to
            if stop < end:
                stop = max(stop // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES, start + PAGE_BYTES)
            rows = zip(part.start.tolist(), part.end.tolist(), part.huge.tolist(), strict=True)
            for first, last, huge in rows:
                if first < stop:
                    yield ResidentRange(first, min(last, stop), huge)
            yield ResidentRange(stop, stop, False)
            start = stop
    except OSError as error:
        if error.errno != errno.ESRCH:
            raise
    finally:
        os.close(fd)


def _scanned(fd: int, start: int, end: int, max_pages: int) -> ResidentPart:
    # The last block of the address space is not whole.
    end, whole_end = min(end, next(top for top in _USER_ENDS if start < top)), end
    while True:
        found = scan_part(fd, start, end, PageIs.PRESENT, max_pages)
        if len(found.start) or found.walked_to >= end:
            break
        start = found.walked_to
    # The walk may stop within a block, which the next part then has whole. It has passed one: a
    # block has fewer pages and ranges than a walk.
    stop = found.walked_to // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    until = stop if found.walked_to < end else whole_end
    first, last = found.start, np.minimum(found.end, np.uint64(until))
    kept = first < last
    first, last, huge = first[kept], last[kept], found.huge[kept]
    return ResidentPart(
        _steps(first[~huge], last[~huge], PAGE_BYTES),
        _steps(first[huge], last[huge], HUGE_PAGE_BYTES),
        until,
    )


def _steps(first: Addresses, last: Addresses, size: int) -> Addresses:
    """Return the starts of the pages of ``size`` bytes in ranges."""
    # A range of huge entries may begin or end within a block where a mapping does.
    low, high = first // np.uint64(size), -(-last.astype(np.int64) // size)
    count = high - low.astype(np.int64)
    begin = np.repeat(low.astype(np.int64) - (np.cumsum(count) - count), count)
    return ((begin + np.arange(count.sum())) * size).astype(np.uint64)


class PageSharing(IntEnum):
    """Who maps a page."""

    ALONE = 0
    """One process only, or it is not known."""
    FILE = 1
    """Several processes; it is a page of a file or of shared memory."""
    FORKED = 2
    """Several processes; it is private memory that forks have in common."""


def page_sharing(
    pid: int, addresses: npt.NDArray[np.uint64], proc: Path = PROC
) -> npt.NDArray[np.uint8]:
    """Return who maps each page, as ``PageSharing``; shape as ``addresses``, which are ascending.

    A child of fork(2) has its parent's private pages until one of them writes, and move_pages(2)
    without MPOL_MF_MOVE_ALL moves no page that several processes map; bit 56 of pagemap shows it
    without CAP_SYS_ADMIN. ALONE for all where pagemap is not readable.
    """
    codes = np.zeros(len(addresses), np.uint8)
    entry = read_pagemap(pid, addresses // np.uint64(PAGE_BYTES), proc)
    if entry is not None:
        several = ((entry & PRESENT) != 0) & ((entry & _EXCLUSIVE) == 0)
        of_file = (entry & _FILE_OR_SHARED) != 0
        codes[several] = np.where(of_file[several], PageSharing.FILE, PageSharing.FORKED)
    return codes


def present_pages(pid: int, start: int, end: int, proc: Path = PROC) -> Addresses:
    """Return the starts of the pages of a range that page tables have, all if that is not known."""
    pages = np.arange(start // PAGE_BYTES, -(-end // PAGE_BYTES), dtype=np.uint64)
    entry = read_pagemap(pid, pages, proc)
    if entry is not None:
        pages = pages[(entry & PRESENT) != 0]
    return pages * np.uint64(PAGE_BYTES)
