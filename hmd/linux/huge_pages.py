# SPDX-License-Identifier: MIT
"""Huge pages of a process: blocks that are huge now, and larger pages that cannot move.

A block is ``HUGE_PAGE_BYTES``, 2 MiB with base pages of 4 KiB; larger are hugetlbfs's gigantic
pages: 1 GiB then, 16 GiB with base pages of 64 KiB.

Which blocks are huge depends on fragmentation, khugepaged and splits, so the kernel is asked. The
first source that answers is used: PAGEMAP_SCAN (Linux 6.7, CAP_SYS_PTRACE; about 1 µs per block),
pagemap with kpageflags (CAP_SYS_ADMIN; about 3 µs per block), and smaps, which has one sum per
mapping and so identifies only mappings that are huge throughout.

For a gigantic page without a free one in the node's pool, move_pages(2) fails with ENOMEM as it
does on a full node (:mod:`hmd.linux.node_memory`). The two differ in the size of the page, in
/proc/PID/numa_maps. That walks the process's page tables, so it is read only where the node has
none free and the process has such pages (HugetlbPages in /proc/PID/status).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.base.units import HUGE_PAGE_BYTES, KIB, PAGE_BYTES
from hmd.linux.mappings import MappingKind, Mappings, read_mapping_details, read_mappings
from hmd.linux.page_calls import FRAME, PRESENT, PageIs, read_pagemap, scan
from hmd.linux.procfs import PROC, SYSFS, ProcessId, absent, open_to_read, read_bytes, read_int

# Documentation/admin-guide/mm/pagemap.rst
_COMPOUND_HEAD = 1 << 15
_COMPOUND_TAIL = 1 << 16
_BLOCK_PAGES = HUGE_PAGE_BYTES // PAGE_BYTES
# Address space that kpageflags is asked for: a million blocks of 3 µs.
_FLAGS_BYTES = 2 << 40

Addresses: TypeAlias = npt.NDArray[np.uint64]
Spans: TypeAlias = npt.NDArray[np.uint64]
"""Start and end (exclusive) of ranges of addresses, shape ``(n, 2)``."""

_POOL: Final = re.compile(r"hugepages-(\d+)kB", re.ASCII)
_PAGE_SIZE: Final = re.compile(rb"^([0-9a-f]+) .*\bkernelpagesize_kB=([0-9]+)$", re.MULTILINE)

_HUGETLB: Final = re.compile(rb"^HugetlbPages:\s+([0-9]+) kB$", re.MULTILINE)


class HugeSource(StrEnum):
    """The source of the addresses."""

    SCAN = "PAGEMAP_SCAN"
    FLAGS = "kpageflags"
    SMAPS = "smaps"


@dataclass(frozen=True, slots=True)
class HugePages:
    """Addresses of blocks that are one huge page each, ascending, shape ``(n,)``."""

    address: npt.NDArray[np.uint64]
    source: HugeSource


def huge_source(proc: Path = PROC) -> HugeSource:
    """Return the best source that answers for the calling process."""
    try:
        fd = os.open(proc / "self" / "pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return HugeSource.SMAPS
    try:
        scan(fd, 0, PAGE_BYTES, PageIs.HUGE)
    except OSError:
        return HugeSource.FLAGS if os.access(proc / "kpageflags", os.R_OK) else HugeSource.SMAPS
    finally:
        os.close(fd)
    return HugeSource.SCAN


def read_huge_pages(pid: int, mappings: Mappings, proc: Path = PROC) -> HugePages | None:
    """Return the huge pages in the ``mappings`` of ``pid``; None where it may not be read."""
    spans = candidate_spans(mappings)
    if not len(spans):
        return HugePages(np.empty(0, np.uint64), HugeSource.SCAN)
    for ask in (_from_scan, _from_flags, _from_smaps):
        found = ask(pid, spans, proc)
        if found is not None:
            return found
    return None


def candidate_spans(mappings: Mappings) -> Spans:
    """Return the parts of mappings in whole blocks that may have huge pages.

    Start and end of each, shape ``(n, 2)``. Memory without access, which is only reserved, is left
    out; a span of terabytes is one row.
    """
    may = (mappings.huge_eligible | (mappings.kind == MappingKind.HUGETLB)) & mappings.accessible
    first = _up(mappings.start[may])
    last = mappings.end[may] & ~np.uint64(HUGE_PAGE_BYTES - 1)
    whole = (first < last) & (first >= mappings.start[may])
    return np.stack([first[whole], last[whole]], axis=1)


def _up(addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Round up to a block; at the top of the address space that wraps to 0."""
    return (addresses + np.uint64(HUGE_PAGE_BYTES - 1)) & ~np.uint64(HUGE_PAGE_BYTES - 1)


def _from_scan(pid: int, spans: Spans, proc: Path) -> HugePages | None:
    """Query PAGEMAP_SCAN for ranges that huge entries map."""
    fd = open_to_read(proc / str(pid) / "pagemap")
    if fd is None:
        return None
    try:
        found = [_scan(fd, start, end) for start, end in spans.tolist()]
    except OSError:
        return None  # ENOTTY before Linux 6.7, ESRCH after exit
    finally:
        os.close(fd)
    return HugePages(np.concatenate(found), HugeSource.SCAN)


def _scan(fd: int, start: int, end: int) -> npt.NDArray[np.uint64]:
    ranges = scan(fd, start, end, PageIs.HUGE).tolist()
    found = [_blocks_within(first, last) for first, last in ranges]
    return np.concatenate(found) if found else np.empty(0, np.uint64)


def _blocks_within(start: int, end: int) -> npt.NDArray[np.uint64]:
    """Return the aligned blocks that lie whole within ``start`` to ``end``."""
    numbers = np.arange(-(-start // HUGE_PAGE_BYTES), end // HUGE_PAGE_BYTES, dtype=np.uint64)
    return numbers * np.uint64(HUGE_PAGE_BYTES)


def _from_flags(pid: int, spans: Spans, proc: Path) -> HugePages | None:
    """Ask kpageflags for every block; None for more blocks than that is worth."""
    if int((spans[:, 1] - spans[:, 0]).sum()) > _FLAGS_BYTES:
        return None
    blocks = np.concatenate([_blocks_within(start, end) for start, end in spans.tolist()])
    found = huge_by_flags(pid, blocks, proc)
    return None if found is None else HugePages(found, HugeSource.FLAGS)


def huge_by_flags(pid: int, blocks: Addresses, proc: Path = PROC) -> Addresses | None:
    """Return which blocks are huge: the compound pages by kpageflags, frames by pagemap.

    None where frame numbers are hidden (CAP_SYS_ADMIN), or the process has exited.
    """
    entry = read_pagemap(pid, blocks // np.uint64(PAGE_BYTES), proc)
    if entry is None:
        return None
    present = (entry & PRESENT) != 0
    frame = entry & FRAME
    if not frame[present].all():
        return None
    aligned = np.flatnonzero(present & (frame % np.uint64(_BLOCK_PAGES) == 0))
    try:
        with (proc / "kpageflags").open("rb", buffering=0) as flags:
            huge = [_is_compound(flags.fileno(), number) for number in frame[aligned].tolist()]
    except OSError as error:
        if absent(error):
            return None
        raise
    return blocks[aligned[np.array(huge, np.bool_)]]


def _is_compound(kpageflags: int, frame: int) -> bool:
    """Return whether one page has all frames of a block."""
    first, last = (
        int.from_bytes(os.pread(kpageflags, 8, 8 * number), "little")
        for number in (frame, frame + _BLOCK_PAGES - 1)
    )
    return bool(first & _COMPOUND_HEAD and last & _COMPOUND_TAIL)


def _from_smaps(pid: int, spans: Spans, proc: Path) -> HugePages | None:
    """Return the blocks of mappings whose smaps sum shows that every aligned block is huge."""
    details = read_mapping_details(pid, proc)
    if details is None:
        return None
    found = huge_throughout(details)
    row = np.searchsorted(spans[:, 0], found, side="right") - 1
    inside = (row >= 0) & (found < spans[row, 1])
    return HugePages(found[inside], HugeSource.SMAPS)


def huge_throughout(details: Mappings) -> npt.NDArray[np.uint64]:
    """Return the blocks of the mappings that are huge throughout by their sums in smaps."""
    found = []
    for start, end, kind, huge_bytes in zip(
        details.start.tolist(),
        details.end.tolist(),
        details.kind.tolist(),
        details.huge_bytes.tolist(),
        strict=True,
    ):
        first = -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        whole = end // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES - first
        if whole > 0 and (kind == MappingKind.HUGETLB or huge_bytes >= whole):
            found.append(_blocks_within(start, end))
    return np.concatenate(found) if found else np.empty(0, np.uint64)


class GiganticPages:
    """Says which pages of a process are gigantic and find none free on a node."""

    def __init__(self, proc: Path = PROC, sysfs: Path = SYSFS) -> None:
        self._proc, self._nodes = proc, sysfs / "devices/system/node"

    def __call__(
        self, process: ProcessId, addresses: npt.NDArray[np.uint64], node: int
    ) -> npt.NDArray[np.bool_]:
        """Return a mask of the shape of the addresses."""
        lacking = np.zeros(len(addresses), np.bool_)
        if not self._count("node*", "nr_hugepages") or self._count(f"node{node}", "free_hugepages"):
            return lacking
        if not self._has_hugetlb(process.pid):
            return lacking
        starts = self._mapping_starts(process.pid)
        mappings = read_mappings(process.pid, self._proc) if len(starts) else None
        if mappings is None or not len(mappings):
            return lacking
        row = np.searchsorted(mappings.start, addresses, side="right").astype(np.intp) - 1
        inside = (row >= 0) & (addresses < mappings.end[row])
        lacking[inside] = np.isin(mappings.start[row[inside]], starts)
        return lacking

    def _count(self, nodes: str, counter: str) -> int:
        """Add up a counter of the nodes' pools of gigantic pages."""
        pools = self._nodes.glob(f"{nodes}/hugepages/hugepages-*kB")
        sizes = ((pool, _POOL.fullmatch(pool.name)) for pool in pools)
        return sum(
            read_int(pool / counter) or 0
            for pool, size in sizes
            if size and int(size[1]) * KIB > HUGE_PAGE_BYTES
        )

    def _has_hugetlb(self, pid: int) -> bool:
        """Return whether a process has more hugetlbfs memory than one huge page."""
        found = _HUGETLB.search(read_bytes(self._proc / str(pid) / "status") or b"")
        return found is not None and int(found[1]) * KIB > HUGE_PAGE_BYTES

    def _mapping_starts(self, pid: int) -> npt.NDArray[np.uint64]:
        """Return the starts of the mappings that have such pages, ascending."""
        text = read_bytes(self._proc / str(pid) / "numa_maps") or b""
        found = _PAGE_SIZE.findall(text)
        starts = [int(start, 16) for start, kib in found if int(kib) * KIB > HUGE_PAGE_BYTES]
        return np.array(starts, np.uint64)
