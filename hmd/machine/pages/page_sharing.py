"""Which pages of a process other processes map too: bit 56 of pagemap entries.

A child of fork(2) has its parent's private pages until one of them writes (copy on write), and
move_pages(2) without MPOL_MF_MOVE_ALL moves no page that several processes map. Pagemap shows the
bit without CAP_SYS_ADMIN (Documentation/admin-guide/mm/pagemap.rst). Costs about 55 ns per page,
and 2 µs per run of pages.
"""

from __future__ import annotations

import os
from enum import IntEnum
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.machine.process_id import PROC
from hmd.machine.procfs import absent, open_to_read
from hmd.units import PAGE_BYTES

_ENTRY_BYTES: Final = 8
_PRESENT: Final = np.uint64(1 << 63)
_FILE_OR_SHARED: Final = np.uint64(1 << 61)
_EXCLUSIVE: Final = np.uint64(1 << 56)
_GAP_PAGES: Final = 64
"""Pages between two that are read with them, rather than by a call of their own."""


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

    ALONE for all where pagemap is not readable.
    """
    codes = np.zeros(len(addresses), np.uint8)
    if not len(addresses):
        return codes
    fd = open_to_read(proc / str(pid) / "pagemap")
    if fd is None:
        return codes
    try:
        entry = _entries(fd, addresses // np.uint64(PAGE_BYTES))
    except OSError as error:
        if absent(error):
            return codes
        raise
    finally:
        os.close(fd)
    several = ((entry & _PRESENT) != 0) & ((entry & _EXCLUSIVE) == 0)
    of_file = (entry & _FILE_OR_SHARED) != 0
    codes[several] = np.where(of_file[several], PageSharing.FILE, PageSharing.FORKED)
    return codes


def _entries(fd: int, pages: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the entry of each page by its number, 0 beyond the end of the file."""
    entry = np.zeros(len(pages), np.uint64)
    cuts = np.flatnonzero(np.diff(pages) > _GAP_PAGES) + 1
    for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(pages)], strict=True):
        first, last = int(pages[begin]), int(pages[end - 1])
        data = os.pread(fd, (last - first + 1) * _ENTRY_BYTES, first * _ENTRY_BYTES)
        known = np.frombuffer(data[: len(data) // _ENTRY_BYTES * _ENTRY_BYTES], np.uint64)
        at = (pages[begin:end] - np.uint64(first)).astype(np.intp)
        inside = at < len(known)
        entry[begin:end][inside] = known[at[inside]]
    return entry
