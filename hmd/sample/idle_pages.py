# SPDX-License-Identifier: MIT
"""Used pages, by idle page tracking: exact per page, if the kernel has it.

A page that is marked idle in /sys/kernel/mm/page_idle/bitmap loses the mark on an access
(Documentation/admin-guide/mm/idle_page_tracking.rst, CONFIG_IDLE_PAGE_TRACKING, which Debian's
kernels lack). The bitmap is by page frame, which pagemap shows to CAP_SYS_ADMIN only. Huge pages
are marked by their first page. Checking a page costs the kernel a walk of its mappings, about 1 µs,
and a system call per run of 64 frames.

Each read checks some of the resident pages of the tracked processes, in turn (all mapped ones
before Linux 6.7). Each used page is a row that represents one access: the mark shows that a page
was used, not how often, nor by a load or a store. Mappings are read again for each scan of all
pages. Scans alternate in direction, so that a page's mean time between two checks does not depend
on its address.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from hmd.base.errors import MissingError, NotPermittedError, os_error
from hmd.base.units import PAGE_BYTES
from hmd.linux.checks import Capability, read_privileges
from hmd.linux.huge_pages import HugeSource, huge_source
from hmd.linux.mappings import MappingKind, covering_mappings
from hmd.linux.page_calls import FRAME, PRESENT, read_pagemap
from hmd.linux.process_table import ProcessTable
from hmd.linux.procfs import PROC, SYSFS, ProcessId, alive
from hmd.linux.resident_pages import resident_ranges
from hmd.sample.access_batch import AccessBatch
from hmd.sample.periods import RecordTime, clamp
from hmd.sample.sampler import CAPABILITIES, DEFAULTS, SamplerStats, SampleSettings

BITMAP: Final = "kernel/mm/page_idle/bitmap"
MAX_PAGES: Final = 1 << 15
"""Pages that a read checks at period 1."""
PERIODS: Final = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128)

_WORD_BYTES: Final = 8
_PIECE_PAGES: Final = 1 << 13
_SPAN_BYTES: Final = 1 << 30
_PAGES_PER_SPAN: Final = 16
"""A read walks one span of addresses, which may have no pages, for so many pages that it checks."""

T = TypeVar("T")
Words = npt.NDArray[np.uint64]


class KernelBitmap:
    """The kernel's bitmap: a bit per page frame, 64 per word, set while the page is idle."""

    def __init__(self, path: Path) -> None:
        """Open it; OSError where that fails."""
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def read(self, word: int, count: int) -> Words:
        """Return ``count`` words from ``word`` on; none past the last frame."""
        return np.frombuffer(os.pread(self._fd, count * _WORD_BYTES, word * _WORD_BYTES), np.uint64)

    def mark(self, word: int, words: Words) -> None:
        """Mark the pages whose bits are set as idle; others stay as they are."""
        os.pwrite(self._fd, words.tobytes(), word * _WORD_BYTES)

    def close(self) -> None:
        """Close it; marks stay until the pages are used."""
        os.close(self._fd)


def open_idle_pages(
    settings: SampleSettings = DEFAULTS, proc: Path = PROC, sysfs: Path = SYSFS
) -> IdlePageSampler:
    """Return a sampler of used pages; its period (1) divides the pages that a read checks.

    Raises MissingError where the kernel has no idle page tracking, NotPermittedError without
    CAP_SYS_ADMIN.
    """
    path = sysfs / BITMAP
    try:
        bitmap = KernelBitmap(path)
    except FileNotFoundError:
        raise MissingError(
            "this kernel has no idle page tracking: use one with CONFIG_IDLE_PAGE_TRACKING"
        ) from None
    except OSError as error:
        raise os_error(error, f"{path}: {error.strerror}: run hmd as root") from None
    if not read_privileges(proc).has(Capability.SYS_ADMIN):
        bitmap.close()
        raise NotPermittedError(
            "idle page tracking is by page frame; only CAP_SYS_ADMIN may look frames up: run hmd "
            "as root, or grant it in the unit"
        )
    return IdlePageSampler(bitmap, settings.period, proc)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive pages of a process, or none: how far the scan is; ``last``: it is complete."""

    process: ProcessId
    page: int
    pages: int
    last: bool = False


class IdlePageSampler:
    """A ``Sampler`` over the bitmap, which it owns; ``scans`` counts complete scans."""

    name = "idle"
    detail = "pages used, by idle page tracking"
    capabilities = CAPABILITIES["idle"]
    periods: tuple[int, ...] = PERIODS
    pair_period = None
    outside_cpu_s = 0.0  # all work is done in the time of this process
    record_time = RecordTime()

    def __init__(
        self,
        bitmap: KernelBitmap,
        period: int | None = None,
        proc: Path = PROC,
        max_pages: int = MAX_PAGES,
    ) -> None:
        self.stats = SamplerStats()
        self.scans = 0
        self._bitmap, self._proc, self._max_pages = bitmap, proc, max_pages
        self.period = clamp(period or PERIODS[0], PERIODS)
        self._table = ProcessTable()
        # Of these no scan is complete: what they used before they were tracked does not count.
        self._unchecked: set[ProcessId] = set()
        self._source = huge_source(proc)
        self._scan: Iterator[_Piece] | None = None
        self._remainder: _Piece | None = None  # of the piece that the last read has cut
        self._closed = False

    def set_period(self, period: int) -> int:
        """Set the period, clamped to the bounds of ``PERIODS``; returns it."""
        self.period = clamp(period, PERIODS)
        return self.period

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Scan these processes; earlier accesses of a new one do not count."""
        known = set(self._table.processes)
        self._table = ProcessTable(processes)
        self._unchecked = {p for p in processes if p not in known or p in self._unchecked}

    def read(self) -> AccessBatch:
        """Check the next pages."""
        if self._closed:
            return AccessBatch.empty()
        pieces = self._next_pieces(max(1, self._max_pages // self.period))
        found = [(self._table.slot_of(piece.process), self._check(piece)) for piece in pieces]
        count = sum(len(pages) for _, pages in found)
        self.stats.samples += count
        self.stats.wakeups += count > 0
        if not count:
            return AccessBatch.empty()
        return AccessBatch.of(
            np.concatenate([pages for _, pages in found]) * np.uint64(PAGE_BYTES),
            np.repeat([i for i, _ in found], [len(pages) for _, pages in found]),
            time_ns=time.monotonic_ns(),
        )

    def find_used(self, entries: Words) -> npt.NDArray[np.bool_]:
        """Return which pages, by their pagemap entries, have lost the mark; mark them again."""
        frame = np.where(entries & PRESENT, entries & FRAME, np.uint64(0))
        present = np.flatnonzero(frame)
        frame = frame[present]
        word, bit = frame >> np.uint64(6), np.uint64(1) << (frame & np.uint64(63))
        lost = (self._words(word) & bit) == 0
        self._mark(word[lost], bit[lost])
        # Pages that still have no mark do not accept one.
        marked = (self._words(word[lost]) & bit[lost]) != 0
        found = np.zeros(len(entries), np.bool_)
        found[present[lost][marked]] = True
        return found

    def close(self) -> None:
        """Stop, and free all resources."""
        if not self._closed:
            self._closed = True
            self._bitmap.close()

    @property
    def _backwards(self) -> bool:
        return self.scans % 2 == 1

    def _next_pieces(self, pages: int) -> list[_Piece]:
        """Return the next pieces with this many pages in total, or the rest of the scan."""
        self._scan = self._scan or self._scan_pieces()
        pieces: list[_Piece] = []
        spans = max(1, pages // _PAGES_PER_SPAN)
        while pages > 0 and spans > 0:
            piece, self._remainder = self._remainder or next(self._scan, None), None
            if piece is None:
                self._scan = None
                self.scans += 1
                break
            if piece.process not in self._table:
                continue
            if piece.pages > pages:
                piece, self._remainder = self._cut(piece, pages)
            pieces.append(piece)
            pages -= piece.pages
            spans -= not piece.pages
        return pieces

    def _cut(self, piece: _Piece, pages: int) -> tuple[_Piece, _Piece]:
        """Return this many pages of a piece, in the direction of the scan, and the rest."""
        low = piece.pages - pages if self._backwards else pages
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
        return reversed(items) if self._backwards else iter(items)

    def _check(self, piece: _Piece) -> Words:
        """Return the numbers of the pages that were used."""
        process, used = piece.process, np.empty(0, np.uint64)
        if piece.last:
            self._unchecked.discard(process)
        if not piece.pages:
            return used
        pages = np.arange(piece.page, piece.page + piece.pages, dtype=np.uint64)
        entries = read_pagemap(process.pid, pages, self._proc)
        if entries is not None and alive(process, self._proc):
            used = np.flatnonzero(self.find_used(entries)).astype(np.uint64)
        return used[:0] if process in self._unchecked else used + np.uint64(piece.page)

    def _words(self, word: Words) -> Words:
        """Return the bitmap's word at each index; shape as ``word``."""
        numbers, which = np.unique(word, return_inverse=True)
        found = np.zeros(len(numbers), np.uint64)
        for first, after in _runs(numbers):
            part = self._bitmap.read(int(numbers[first]), after - first)
            found[first : first + len(part)] = part
        return found[which]

    def _mark(self, word: Words, bit: Words) -> None:
        numbers, which = np.unique(word, return_inverse=True)
        bits = np.zeros(len(numbers), np.uint64)
        np.bitwise_or.at(bits, which, bit)
        for first, after in _runs(numbers):
            self._bitmap.mark(int(numbers[first]), bits[first:after])


def _runs(numbers: Words) -> list[tuple[int, int]]:
    """Return the ranges of rows with consecutive numbers; ``numbers`` ascend."""
    if not len(numbers):
        return []
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    return list(itertools.pairwise([0, *breaks.tolist(), len(numbers)]))
