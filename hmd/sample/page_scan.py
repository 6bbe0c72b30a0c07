# SPDX-License-Identifier: MIT
"""Sampling by scans for used pages: each read checks some of the memory.

Takes a source of one bit per page (``PageBits``: idle page tracking, soft-dirty bits); each used
page is a row. The sampler checks all resident pages of the tracked processes in turn, or all mapped
ones before Linux 6.7 (PAGEMAP_SCAN). After all of them, a scan is complete and mappings are read
again. Scans alternate in direction, so that a page's mean time between two checks does not depend
on its address.

A read checks at most ``PageBits.max_pages / period`` pages, so the cost is proportional to
1/period. A row represents one access: a bit shows that a page was used, not how often.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.linux.huge_pages import HugeSource, huge_source
from hmd.linux.mappings import MappingKind, covering_mappings
from hmd.linux.process_table import ProcessTable
from hmd.linux.procfs import PROC, ProcessId, alive
from hmd.linux.resident_pages import pagemap_entries, resident_ranges
from hmd.sample.access_batch import AccessBatch, Kind
from hmd.sample.periods import RecordTime, clamp
from hmd.sample.sampler import CAPABILITIES, SamplerName, SamplerStats

PERIODS: Final = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128)
PRESENT: Final = np.uint64(1 << 63)
"""Bit of a pagemap entry (Documentation/admin-guide/mm/pagemap.rst)."""

_PIECE_PAGES: Final = 1 << 13
_SPAN_BYTES: Final = 1 << 30
_PAGES_PER_SPAN: Final = 16
"""A read walks one span of addresses, which may have no pages, for so many pages that it checks."""
_ENTRY_BYTES: Final = 8

T = TypeVar("T")


class PageBits:
    """Bits of the kernel that show which pages were used.

    A read checks ``max_pages`` at period 1. ``counts_first_check``: ``start_process`` resets the
    bits of all pages; otherwise a page's first check is ignored.
    """

    name: SamplerName
    detail: str
    kind: Kind
    max_pages: int
    counts_first_check = False

    def start_process(self, pid: int) -> None:
        """Prepare a process for its first scan."""

    def find_used(self, entries: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return which pages were used since their last check, and reset their bits.

        ``entries`` are the pagemap entries of consecutive pages.
        """
        raise NotImplementedError

    def end_scan(self, pid: int) -> None:
        """End a scan of all pages of a process."""

    def close(self) -> None:
        """Free descriptors. Called once."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive pages of a process, or none: how far the scan is; ``last``: it is complete."""

    process: ProcessId
    page: int
    pages: int
    last: bool = False


class PageScanSampler:
    """A ``Sampler`` over one bit per page; owns the bits."""

    pair_period = None
    outside_cpu_s = 0.0  # all work is done in the time of this process or of the programs
    record_time = RecordTime()

    def __init__(self, bits: PageBits, period: int | None = None, proc: Path = PROC) -> None:
        self.name = bits.name
        self.detail = bits.detail
        self.capabilities = CAPABILITIES[bits.name]
        self.periods: tuple[int, ...] = PERIODS
        self.stats = SamplerStats()
        self._bits = bits
        self._proc = proc
        self._period = PERIODS[0]
        self.set_period(period or PERIODS[0])
        self._table = ProcessTable()
        self._started: set[ProcessId] = set()
        self._unchecked: set[ProcessId] = set()
        self._source = huge_source(proc)
        self._scan: Iterator[_Piece] | None = None
        self._remainder: _Piece | None = None  # of the piece that the last read has cut
        self._backwards = True  # direction of the last scan, so that the first one is forwards
        self._closed = False

    @property
    def period(self) -> int:
        """Divisor of the most pages that a read checks."""
        return self._period

    def set_period(self, period: int) -> int:
        """Set the period, clamped to the bounds of ``PERIODS``; returns it."""
        self._period = clamp(period, PERIODS)
        return self._period

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Scan these processes; earlier accesses of a new one do not count."""
        if self._closed:
            return
        self._table = ProcessTable(processes)
        for process in set(processes) - self._started:
            self._bits.start_process(process.pid)
            if not self._bits.counts_first_check:
                self._unchecked.add(process)
        self._started = set(processes)
        self._unchecked &= self._started

    def read(self) -> AccessBatch:
        """Check the next pages."""
        if self._closed:
            return AccessBatch.empty()
        pieces = self._next_pieces(max(1, self._bits.max_pages // self._period))
        found = [(self._table.slot_of(piece.process), self._check(piece)) for piece in pieces]
        count = sum(len(pages) for _, pages in found)
        self.stats.samples += count
        self.stats.wakeups += count > 0
        if not count:
            return AccessBatch.empty()
        return AccessBatch.of(
            np.concatenate([pages for _, pages in found]) * np.uint64(PAGE_BYTES),
            np.repeat([i for i, _ in found], [len(pages) for _, pages in found]),
            kind=self._bits.kind,
            time_ns=time.monotonic_ns(),
        )

    def _next_pieces(self, pages: int) -> list[_Piece]:
        """Return the next pieces with this many pages in total, or the rest of the scan."""
        if self._scan is None:
            self._backwards = not self._backwards
            self._scan = self._scan_pieces()
        pieces: list[_Piece] = []
        spans = max(1, pages // _PAGES_PER_SPAN)
        while pages > 0 and spans > 0:
            piece, self._remainder = self._remainder or next(self._scan, None), None
            if piece is None:
                self._scan = None
                break
            if piece.process not in self._started:
                continue
            if piece.pages > pages:
                piece, self._remainder = self._cut(piece, pages)
            pieces.append(piece)
            pages -= piece.pages
            spans -= not piece.pages
        return pieces

    def _cut(self, piece: _Piece, pages: int) -> tuple[_Piece, _Piece]:
        """Return this many pages of a piece, in the direction of the scan, and the rest."""
        low = pages if not self._backwards else piece.pages - pages
        lower = replace(piece, pages=low)
        upper = replace(piece, page=piece.page + low, pages=piece.pages - low)
        return (upper, lower) if self._backwards else (lower, upper)

    def _scan_pieces(self) -> Iterator[_Piece]:
        """Yield the pieces of a scan as they are asked for: mappings may have terabytes."""
        for process in self._table.processes:
            mappings = covering_mappings(process.pid, self._proc)
            if mappings is None:
                continue
            # A mapping without any access permission is reserved address space.
            memory = (mappings.kind != MappingKind.SPECIAL) & (mappings.access != 0)
            starts, ends = mappings.start[memory].tolist(), mappings.end[memory].tolist()
            for start, end in self._directed(list(zip(starts, ends, strict=True))):
                for span in self._directed(range(start, end, _SPAN_BYTES)):
                    yield from self._span(process, span, min(span + _SPAN_BYTES, end))
            yield _Piece(process, 0, 0, last=True)

    def _span(self, process: ProcessId, start: int, end: int) -> Iterator[_Piece]:
        """Yield the pieces of one span of addresses, of resident pages where the kernel says."""
        ranges = [(start, end)]
        if self._source is HugeSource.SCAN:
            found = resident_ranges(process.pid, start, end, _PIECE_PAGES, self._proc)
            ranges = [(part.start, part.end) for part in found if part.start < part.end]
        for first, last in self._directed(ranges):
            page, past = first // PAGE_BYTES, last // PAGE_BYTES
            for begin in self._directed(range(page, past, _PIECE_PAGES)):
                yield _Piece(process, begin, min(_PIECE_PAGES, past - begin))
        yield _Piece(process, start // PAGE_BYTES, 0)

    def _directed(self, items: Sequence[T]) -> Iterator[T]:
        """Return items in the direction of the scan."""
        return reversed(items) if self._backwards else iter(items)

    def _check(self, piece: _Piece) -> npt.NDArray[np.uint64]:
        """Return the numbers of the pages that were used."""
        process = piece.process
        if piece.last:
            self._bits.end_scan(process.pid)
            self._unchecked.discard(process)
        if not piece.pages:
            return np.empty(0, np.uint64)
        entries = pagemap_entries(process.pid, piece.page, piece.pages, self._proc)
        if entries is None or not alive(process, self._proc):
            return np.empty(0, np.uint64)
        used = np.flatnonzero(self._bits.find_used(entries)).astype(np.uint64)
        counts = process not in self._unchecked
        return used + np.uint64(piece.page) if counts else np.empty(0, np.uint64)

    def close(self) -> None:
        """Stop, and free all resources."""
        if not self._closed:
            self._closed = True
            self._bits.close()
