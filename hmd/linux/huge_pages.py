# SPDX-License-Identifier: MIT
"""Huge pages of a process: blocks that are huge now, and larger pages that cannot move.

A block is ``HUGE_PAGE_BYTES``, 2 MiB with base pages of 4 KiB; larger are hugetlbfs's gigantic
pages: 1 GiB then, 16 GiB with base pages of 64 KiB.

Which blocks are huge depends on fragmentation, khugepaged and splits, so the kernel is asked. The
first source that answers is used: PAGEMAP_SCAN (Linux 6.7, CAP_SYS_PTRACE; about 1 µs per block),
pagemap with kpageflags (CAP_SYS_ADMIN; about 3 µs per block), and smaps, which has one sum per
mapping and so identifies only mappings that are huge throughout.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.base.units import HUGE_PAGE_BYTES, KIB, PAGE_BYTES
from hmd.linux.mappings import MappingKind, Mappings, read_mapping_details, read_mappings
from hmd.linux.page_calls import FRAME, PRESENT, PageIs, read_pagemap, scan
from hmd.linux.procfs import (
    PROC,
    SYSFS,
    ProcessId,
    open_to_read,
    read_bytes,
    read_int,
    unless_absent,
)

# Documentation/admin-guide/mm/pagemap.rst
_COMPOUND_HEAD = 1 << 15
_COMPOUND_TAIL = 1 << 16
_BLOCK_PAGES = HUGE_PAGE_BYTES // PAGE_BYTES
# Address space that kpageflags is asked for: a million blocks of 3 µs.
_FLAGS_BYTES = 2 << 40

Addresses: TypeAlias = npt.NDArray[np.uint64]
Span: TypeAlias = tuple[int, int]
"""Start and end (exclusive) of addresses."""
_NO_BLOCKS: Final = np.empty(0, np.uint64)

_POOL: Final = re.compile(r"hugepages-(\d+)kB", re.ASCII)
_PAGE_SIZE: Final = re.compile(rb"^([0-9a-f]+) .*\bkernelpagesize_kB=([0-9]+)$", re.MULTILINE)

_HUGETLB: Final = re.compile(rb"^HugetlbPages:\s+([0-9]+) kB$", re.MULTILINE)


class HugeSource(StrEnum):
    """The source of the addresses."""

    SCAN = "PAGEMAP_SCAN"
    FLAGS = "kpageflags"
    SMAPS = "smaps"


def huge_source(proc: Path = PROC) -> HugeSource:
    """Return the best source that answers for the calling process."""
    fd = open_to_read(proc / "self" / "pagemap")
    if fd is None:
        return HugeSource.SMAPS
    try:
        scan(fd, 0, PAGE_BYTES, PageIs.HUGE)
        return HugeSource.SCAN
    except OSError:
        present = np.array([np.ones(1).ctypes.data], np.uint64)
        flags = huge_by_flags(os.getpid(), present, proc)
        return HugeSource.SMAPS if flags is None else HugeSource.FLAGS
    finally:
        os.close(fd)


def huge_pages_in(pid: int, spans: Sequence[Span], proc: Path = PROC) -> Addresses:
    """Return the huge pages in ranges of addresses, by kpageflags or smaps, ascending."""
    found = None
    if sum(end - start for start, end in spans) <= _FLAGS_BYTES:
        blocks = [_blocks_within(start, end) for start, end in spans]
        found = huge_by_flags(pid, np.concatenate([_NO_BLOCKS, *blocks]), proc)
    if found is None:
        details = read_mapping_details(pid, proc)
        found = _NO_BLOCKS if details is None else huge_throughout(details)
    return found


def _blocks_within(start: int, end: int) -> Addresses:
    """Return the aligned blocks that lie whole within ``start`` to ``end``."""
    numbers = np.arange(-(-start // HUGE_PAGE_BYTES), end // HUGE_PAGE_BYTES, dtype=np.uint64)
    return numbers * np.uint64(HUGE_PAGE_BYTES)


def huge_by_flags(pid: int, blocks: Addresses, proc: Path = PROC) -> Addresses | None:
    """Return which blocks are huge; None where frames are hidden, or the process has exited."""
    entry = read_pagemap(pid, blocks // np.uint64(PAGE_BYTES), proc)
    if entry is None:
        return None
    present = (entry & PRESENT) != 0
    frame = entry & FRAME
    if not frame[present].all():
        return None
    aligned = np.flatnonzero(present & (frame % np.uint64(_BLOCK_PAGES) == 0))
    with unless_absent(), (proc / "kpageflags").open("rb", buffering=0) as flags:
        huge = [_is_compound(flags.fileno(), number) for number in frame[aligned].tolist()]
        return blocks[aligned[np.array(huge, np.bool_)]]
    return None


def _is_compound(kpageflags: int, frame: int) -> bool:
    """Return whether one page has all frames of a block."""
    first, last = (
        int.from_bytes(os.pread(kpageflags, 8, 8 * number), "little")
        for number in (frame, frame + _BLOCK_PAGES - 1)
    )
    return bool(first & _COMPOUND_HEAD and last & _COMPOUND_TAIL)


def huge_throughout(details: Mappings) -> Addresses:
    """Return the blocks of the mappings that are huge throughout by their sums in smaps."""
    block = np.uint64(HUGE_PAGE_BYTES)
    first = details.start // block + (details.start % block != 0)
    whole = (details.end // block).astype(np.int64) - first.astype(np.int64)
    huge = (details.kind == MappingKind.HUGETLB) | (details.huge_bytes >= whole * HUGE_PAGE_BYTES)
    rows = np.flatnonzero((whole > 0) & huge)
    spans = zip(details.start[rows].tolist(), details.end[rows].tolist(), strict=True)
    return np.concatenate([_NO_BLOCKS, *(_blocks_within(start, end) for start, end in spans)])


class GiganticPages:
    """Says which pages of a process are gigantic and find none free on a node.

    For these, move_pages(2) fails with ENOMEM as on a full node (:mod:`hmd.linux.node_memory`); the
    size of the page is in /proc/PID/numa_maps. That walks the process's page tables, so it is read
    only where the node has none free and the process has such pages (HugetlbPages in
    /proc/PID/status).
    """

    def __init__(self, proc: Path = PROC, sysfs: Path = SYSFS) -> None:
        self._proc, self._nodes = proc, sysfs / "devices/system/node"

    def __call__(
        self, process: ProcessId, addresses: npt.NDArray[np.uint64], node: int
    ) -> npt.NDArray[np.bool_]:
        """Return a mask of the shape of the addresses."""
        lacking = np.zeros(len(addresses), np.bool_)
        if not self._count("node*", "nr_hugepages") or self._count(f"node{node}", "free_hugepages"):
            return lacking
        folder = self._proc / str(process.pid)
        found = _HUGETLB.search(read_bytes(folder / "status") or b"")
        if found is None or int(found[1]) * KIB <= HUGE_PAGE_BYTES:
            return lacking
        rows = _PAGE_SIZE.findall(read_bytes(folder / "numa_maps") or b"")
        gigantic = [int(start, 16) for start, kib in rows if int(kib) * KIB > HUGE_PAGE_BYTES]
        starts = np.array(gigantic, np.uint64)
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
