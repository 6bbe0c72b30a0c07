# SPDX-License-Identifier: MIT
"""Plans that move a whole process, or ranges of it, to one node.

They come slice by slice of address space, so that a process of any size takes little memory here,
progress can be shown, and the caller can stop. Costs one query per resident page (0.2 µs); before
Linux 6.7 also a read of pagemap in mappings that have pages.
"""

from __future__ import annotations

import errno
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.base.units import HUGE_PAGE_BYTES, HUGE_PAGE_PAGES, PAGE_BYTES
from hmd.linux.huge_pages import HugeSource, Span, huge_pages_in, huge_source
from hmd.linux.mappings import Mappings
from hmd.linux.page_calls import query_nodes
from hmd.linux.procfs import PROC, ProcessId, read_bytes
from hmd.linux.resident_pages import present_pages, resident_ranges
from hmd.migrate.status import PROCESS_WIDE, MoveStatus, status_of_pages
from hmd.policy.plan import Plan

SLICE_BYTES: Final = 256 << 20
SLICE_PAGES: Final = SLICE_BYTES // PAGE_BYTES
EMPTY_BYTES: Final = 256 << 30
"""Address space without pages after which a slice ends, empty or not."""
_HUGE_PARTS: Final = 4096
"""Ranges of huge pages to remember: a slice of 256 MiB has fewer."""
_WITH_PAGES: Final = r"^([0-9a-f]{{1,16}}) [^\n]*? N{}="
_NO_BLOCKS: Final = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class PlanSlice:
    """The plan of ``span_bytes`` of address space, which have ``resident_pages``.

    ``refusal`` is why the process could not be queried: GONE, PERMISSION or INVALID.
    """

    span_bytes: int
    resident_pages: int
    plan: Plan
    refusal: MoveStatus | None = None


class ProcessPlans:
    """The plans that move a process's pages to ``to_node``, all of them or those on ``from_node``.

    ``ranges`` are the addresses to include, all addresses if empty; a huge page that a range cuts
    stays where it is. ``movable`` marks the mappings to include, shape ``(mappings,)``; the default
    is ``mappings.movable``. ``span_bytes`` of address space are covered.
    """

    def __init__(
        self,
        process: ProcessId,
        mappings: Mappings,
        to_node: int,
        *,
        from_node: int | None = None,
        ranges: Sequence[Span] = (),
        movable: npt.NDArray[np.bool_] | None = None,
        proc: Path = PROC,
        query: Callable[[int, npt.NDArray[np.uint64]], npt.NDArray[np.int16]] = query_nodes,
    ) -> None:
        chosen = mappings.movable if movable is None else movable
        self._process, self._proc = process, proc
        self._scans = huge_source(proc) is HugeSource.SCAN
        numa_maps = None if self._scans else read_bytes(proc / str(process.pid) / "numa_maps")
        self.spans = _spans(mappings, chosen, ranges, numa_maps, from_node)
        self.span_bytes = sum(end - start for start, end in self.spans)
        self._huge: deque[npt.NDArray[np.uint64]] = deque(maxlen=_HUGE_PARTS)
        if self.spans and not self._scans:
            self._huge.append(huge_pages_in(process.pid, self.spans, proc))
        self._to_node = to_node
        self._from_node = from_node
        self._query = query

    def slices(self) -> Iterator[PlanSlice]:
        """Query one slice after the other, each of as many mappings as fit, as it is asked for."""
        spans: list[Span] = []
        length = passed = 0
        for at, end, covered in self._scanned() if self._scans else self._pieces():
            empty = covered - (end - at) - passed - length
            if spans and (length + end - at > SLICE_BYTES or empty >= EMPTY_BYTES):
                yield self._slice(spans, covered - (end - at) - passed)
                spans, length, passed = [], 0, covered - (end - at)
            elif empty >= EMPTY_BYTES:
                yield self._slice([], empty)
                passed = covered - (end - at)
            if at < end:
                spans.append((at, end))
                length += end - at
        if self.span_bytes > passed:
            yield self._slice(spans, self.span_bytes - passed)

    def _pieces(self) -> Iterator[tuple[int, int, int]]:
        """Yield the spans in pieces that cut no huge page, with the bytes covered so far."""
        covered = 0
        for start, end in self.spans:
            first = start // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
            for at in range(first, end, SLICE_BYTES):
                low, high = max(start, at), min(end, at + SLICE_BYTES)
                covered += high - low
                yield low, high, covered

    def _scanned(self) -> Iterator[tuple[int, int, int]]:
        """Yield the parts of the spans that have pages, as ``_pieces``, and empty ones between."""
        if not self.spans:
            return
        starts = [start for start, _ in self.spans]
        before = list(accumulate((end - start for start, end in self.spans), initial=0))
        top = self.spans[-1][1]
        for found in resident_ranges(self._process.pid, starts[0], top, SLICE_PAGES, self._proc):
            row = max(bisect_right(starts, found.start) - 1, 0)
            if found.huge:
                blocks = np.arange(found.start, found.end, HUGE_PAGE_BYTES, dtype=np.uint64)
                self._huge.append(blocks)
            if found.start == found.end:
                start, end = self.spans[row]
                yield found.end, found.end, before[row] + min(max(found.end, start), end) - start
            while row < len(starts) and starts[row] < found.end:
                start, end = self.spans[row]
                low, high = max(start, found.start), min(end, found.end)
                if low < high:
                    yield low, high, before[row] + high - start
                row += 1

    def _slice(self, spans: Sequence[Span], span_bytes: int) -> PlanSlice:
        pid = self._process.pid
        if self._scans:
            pieces = [np.arange(*span, PAGE_BYTES, dtype=np.uint64) for span in spans]
        else:  # reserved address space has no pages, and may have terabytes
            pieces = [present_pages(pid, *span, self._proc) for span in spans]
        address = np.concatenate([_NO_BLOCKS, *pieces])
        node = self._query(pid, address)
        node[node == -errno.ENOSYS] = -errno.EPERM  # of the whole call, as of seccomp profiles
        answers = {
            MoveStatus(code) for code in np.unique(status_of_pages(node, self._to_node)).tolist()
        }
        refusal = next(iter(answers & PROCESS_WIDE), None)
        moves = (node >= 0) & (node != self._to_node)
        if self._from_node is not None:
            moves &= node == self._from_node
        resident = int((node >= 0).sum())
        address, node = address[moves], node[moves]
        pages = self._pages(address, spans)
        rows = pages > 0
        count = int(rows.sum())
        return PlanSlice(
            span_bytes,
            resident,
            Plan(
                processes=(self._process,),
                process=np.zeros(count, np.int32),
                address=address[rows],
                pages=pages[rows],
                from_node=node[rows],
                to_node=np.full(count, self._to_node, np.int16),
                heat=np.zeros(count, np.float32),
                phase=np.zeros(count, np.int32),
            ),
            refusal,
        )

    def _pages(
        self, address: npt.NDArray[np.uint64], spans: Sequence[Span]
    ) -> npt.NDArray[np.uint32]:
        """Return the size of each row: 512 where a huge page begins, 0 for its other pages."""
        if not spans:
            return np.empty(0, np.uint32)
        start, end = np.array(spans, np.uint64).T
        of = np.searchsorted(start, address, "right") - 1
        block = address & np.uint64(~(HUGE_PAGE_BYTES - 1) & (2**64 - 1))
        whole = (block >= start[of]) & (block + np.uint64(HUGE_PAGE_BYTES) <= end[of])
        huge = np.isin(block, np.concatenate([_NO_BLOCKS, *self._huge]))
        pages = np.ones(len(address), np.uint32)
        pages[huge] = 0
        pages[huge & whole & (address == block)] = HUGE_PAGE_PAGES
        return pages


def _spans(
    mappings: Mappings,
    movable: npt.NDArray[np.bool_],
    ranges: Sequence[Span],
    numa_maps: bytes | None,
    from_node: int | None,
) -> list[Span]:
    """Return the parts of movable mappings that lie in the ranges and may have pages."""
    chosen = movable.copy()
    if numa_maps is not None:
        # Leave out address space that is reserved but never accessed (terabytes, in some runtimes).
        pattern = _WITH_PAGES.format(r"\d{1,4}" if from_node is None else from_node)
        starts = {int(s, 16) for s in re.findall(pattern.encode(), numa_maps, re.MULTILINE)}
        chosen &= np.array([start in starts for start in mappings.start.tolist()], np.bool_)
    found = zip(mappings.start[chosen].tolist(), mappings.end[chosen].tolist(), strict=True)
    if not ranges:
        return list(found)
    return [
        (max(start, low), min(end, high))
        for start, end in found
        for low, high in _joined(ranges)
        if max(start, low) < min(end, high)
    ]


def _joined(ranges: Sequence[Span]) -> list[Span]:
    """Return ranges widened to whole pages, in order, without overlaps."""
    joined: list[Span] = []
    for low, high in sorted(ranges):
        start, end = low // PAGE_BYTES * PAGE_BYTES, -(-high // PAGE_BYTES) * PAGE_BYTES
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined
