"""The 2 MiB blocks of a process that are huge pages now.

Which blocks are huge depends on fragmentation, khugepaged and splits, so the kernel is asked. The
first source that answers is used: PAGEMAP_SCAN (Linux 6.7, CAP_SYS_PTRACE; about 1 µs per block),
pagemap with kpageflags (CAP_SYS_ADMIN; about 3 µs per block), and smaps, which has one sum per
mapping and so identifies only mappings that are huge throughout.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hmd.machine.mappings import MappingKind, Mappings, read_mapping_details
from hmd.machine.pagemap_scan import PageIs, scan
from hmd.machine.process_id import PROC
from hmd.machine.procfs import absent
from hmd.units import HUGE_PAGE_BYTES, PAGE_BYTES

# Documentation/admin-guide/mm/pagemap.rst
_PRESENT = 1 << 63
_PFN = (1 << 55) - 1
_COMPOUND_HEAD = 1 << 15
_COMPOUND_TAIL = 1 << 16
_BLOCK_PAGES = HUGE_PAGE_BYTES // PAGE_BYTES


class HugeSource(StrEnum):
    """The source of the addresses."""

    SCAN = "PAGEMAP_SCAN"
    FLAGS = "kpageflags"
    SMAPS = "smaps"


@dataclass(frozen=True, slots=True)
class HugePages:
    """Addresses of 2 MiB blocks that are one huge page each, ascending, shape ``(n,)``."""

    address: npt.NDArray[np.uint64]
    source: HugeSource


def read_huge_pages(pid: int, mappings: Mappings, proc: Path = PROC) -> HugePages | None:
    """Return the huge pages in the ``mappings`` of ``pid``; None where it may not be read."""
    blocks = candidate_blocks(mappings)
    if not len(blocks):
        return HugePages(blocks, HugeSource.SCAN)
    for ask in (_from_scan, _from_flags, _from_smaps):
        found = ask(pid, blocks, proc)
        if found is not None:
            return found
    return None


def candidate_blocks(mappings: Mappings) -> npt.NDArray[np.uint64]:
    """Return the aligned 2 MiB blocks that lie whole within mappings that may have huge pages."""
    may = mappings.huge_eligible | (mappings.kind == MappingKind.HUGETLB)
    spans = zip(mappings.start[may].tolist(), mappings.end[may].tolist(), strict=True)
    runs = [_blocks_within(start, end) for start, end in spans]
    return np.concatenate(runs) if runs else np.empty(0, np.uint64)


def _from_scan(pid: int, blocks: npt.NDArray[np.uint64], proc: Path) -> HugePages | None:
    """Query PAGEMAP_SCAN for ranges that huge entries map."""
    try:
        fd = os.open(proc / str(pid) / "pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if absent(error):
            return None
        raise
    try:
        found = [_scan(fd, first, last + HUGE_PAGE_BYTES) for first, last in _runs(blocks)]
    except OSError:
        return None  # ENOTTY before Linux 6.7, ESRCH after exit
    finally:
        os.close(fd)
    return HugePages(np.concatenate(found), HugeSource.SCAN)


def _runs(blocks: npt.NDArray[np.uint64]) -> list[tuple[int, int]]:
    """Return the first and last block of each run of adjacent blocks."""
    breaks = np.flatnonzero(np.diff(blocks) != HUGE_PAGE_BYTES)
    firsts = blocks[np.concatenate(([0], breaks + 1))]
    lasts = blocks[np.concatenate((breaks, [len(blocks) - 1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _scan(fd: int, start: int, end: int) -> npt.NDArray[np.uint64]:
    ranges = scan(fd, start, end, PageIs.HUGE).tolist()
    found = [_blocks_within(first, last) for first, last in ranges]
    return np.concatenate(found) if found else np.empty(0, np.uint64)


def _blocks_within(start: int, end: int) -> npt.NDArray[np.uint64]:
    """Return the aligned 2 MiB blocks that lie whole within ``start`` to ``end``."""
    numbers = np.arange(-(-start // HUGE_PAGE_BYTES), end // HUGE_PAGE_BYTES, dtype=np.uint64)
    return numbers * np.uint64(HUGE_PAGE_BYTES)


def _from_flags(pid: int, blocks: npt.NDArray[np.uint64], proc: Path) -> HugePages | None:
    """Read frame numbers from pagemap, and from kpageflags whether they are one compound page."""
    try:
        with (
            (proc / str(pid) / "pagemap").open("rb", buffering=0) as pagemap,
            (proc / "kpageflags").open("rb", buffering=0) as flags,
        ):
            huge = [_is_huge(int(block), pagemap.fileno(), flags.fileno()) for block in blocks]
    except OSError as error:
        if absent(error):
            return None
        raise
    if None in huge:
        return None
    return HugePages(blocks[np.array(huge, np.bool_)], HugeSource.FLAGS)


def _is_huge(block: int, pagemap: int, flags: int) -> bool | None:
    """Return whether a block is a huge page; None where frame numbers are hidden."""
    entry = _word(pagemap, block // PAGE_BYTES)
    if not entry & _PRESENT:
        return False
    frame = entry & _PFN
    if not frame:
        return None  # zeroed for those without CAP_SYS_ADMIN
    if frame % _BLOCK_PAGES:
        return False
    last = _word(flags, frame + _BLOCK_PAGES - 1)
    return bool(_word(flags, frame) & _COMPOUND_HEAD and last & _COMPOUND_TAIL)


def _word(fd: int, index: int) -> int:
    return int.from_bytes(os.pread(fd, 8, index * 8), "little")


def _from_smaps(pid: int, blocks: npt.NDArray[np.uint64], proc: Path) -> HugePages | None:
    """Return the blocks of mappings whose smaps sum shows that every aligned block is huge."""
    details = read_mapping_details(pid, proc)
    if details is None:
        return None
    huge = np.zeros(len(blocks), np.bool_)
    for start, end, kind, huge_bytes in zip(
        details.start, details.end, details.kind, details.huge_bytes, strict=True
    ):
        inside = (blocks >= start) & (blocks + np.uint64(HUGE_PAGE_BYTES) <= end)
        whole = int(inside.sum()) * HUGE_PAGE_BYTES
        if whole and (kind == MappingKind.HUGETLB or huge_bytes >= whole):
            huge |= inside
    return HugePages(blocks[huge], HugeSource.SMAPS)
