"""Sampling by scans for used pages: each read checks some of the memory.

Takes a source of one bit per page (``PageBits``: idle page tracking, soft-dirty bits); each used
page is a row. The sampler checks all resident pages of the tracked processes in turn, or all mapped
ones before Linux 6.7 (PAGEMAP_SCAN). After all of them, a scan is complete and mappings are read
again. Scans alternate in direction, so that a page's mean time between two checks does not depend
on its address.

A read checks at most ``PageBits.pages_most / period`` pages, so the cost is proportional to
1/period. A row represents one access: a bit shows that a page was used, not how often.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from hmd.machine.pages.huge_pages import HugeSource, huge_source
from hmd.machine.pages.mappings import MappingKind
from hmd.machine.pages.maps_pieces import covering_mappings
from hmd.machine.pages.resident_pages import resident_ranges
from hmd.machine.process_id import PROC, ProcessId, alive
from hmd.machine.procfs import absent, open_to_read
from hmd.sample.access_batch import AccessBatch, Kind
from hmd.sample.capabilities import Capabilities
from hmd.sample.period_control import clamp
from hmd.sample.record_cost import RecordTime
from hmd.sample.sampler import SamplerStats
from hmd.units import PAGE_BYTES

LADDER = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128)
PRESENT = np.uint64(1 << 63)
"""Bit of a pagemap entry (Documentation/admin-guide/mm/pagemap.rst)."""

T = TypeVar("T")

_PIECE_PAGES: Final = 1 << 13
_SPAN_BYTES: Final = 1 << 30
# As many pages a read checks for each span of addresses that it walks, which may have none.
_SPAN_PAGES: Final = 16
_ENTRY_BYTES = 8


class PageBits(Protocol):
    """Bits of the kernel that show which pages were used."""

    name: str
    detail: str
    capabilities: Capabilities
    kind: Kind
    pages_most: int
    """Pages that a read checks at period 1."""
    first_counts: bool
    """Whether ``begin`` resets the bits of all pages; otherwise a page's first check is ignored."""

    def begin(self, pid: int) -> None:
        """Prepare a process for its first scan."""
        ...

    def used(self, entries: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return which pages were used since their last check, and reset their bits.

        ``entries`` are the pagemap entries of consecutive pages.
        """
        ...

    def round_over(self, pid: int) -> None:
        """End a scan of all pages of a process."""
        ...

    def close(self) -> None:
        """Free descriptors. Called once."""
        ...


@dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive pages of a process, or none: how far the scan is; ``last``: it is complete."""

    process: ProcessId
    page: int
    pages: int
    last: bool = False


class PageScanSampler:
    """A ``Sampler`` over one bit per page; owns the bits."""

    def __init__(self, bits: PageBits, period: int | None = None, proc: Path = PROC) -> None:
        self.name = bits.name
        self.detail = bits.detail
        self.capabilities = bits.capabilities
        self.ladder: tuple[int, ...] = LADDER
        self.stats = SamplerStats()
        self._bits = bits
        self._proc = proc
        self._period = LADDER[0]
        self.set_period(period or LADDER[0])
        self._processes: tuple[ProcessId, ...] = ()
        self._known: set[ProcessId] = set()
        self._unasked: set[ProcessId] = set()
        self._source = huge_source(proc)
        self._scan: Iterator[_Piece] | None = None
        self._rest: _Piece | None = None  # of the piece that the last read has cut
        self._backwards = True  # direction of the last scan, so that the first one is forwards
        self._closed = False

    @property
    def period(self) -> int:
        """Divisor of the most pages that a read checks."""
        return self._period

    @property
    def pair_period(self) -> None:
        """None: there is no second counter."""
        return

    @property
    def outside_cpu_s(self) -> float:
        """0: all work is done in the time of this process or of the programs."""
        return 0.0

    @property
    def record_time(self) -> RecordTime:
        """All 0: no records are taken on the programs' CPUs."""
        return RecordTime()

    def set_period(self, period: int) -> int:
        """Set the period, clamped to the ladder's bounds; returns it."""
        self._period = clamp(period, LADDER)
        return self._period

    def track(self, processes: Sequence[ProcessId]) -> None:
        """Scan these processes; earlier accesses of a new one do not count."""
        if self._closed:
            return
        self._processes = tuple(processes)
        for process in set(processes) - self._known:
            self._bits.begin(process.pid)
            if not self._bits.first_counts:
                self._unasked.add(process)
        self._known = set(processes)
        self._unasked &= self._known

    def read(self) -> AccessBatch:
        """Check the next pages."""
        if self._closed:
            return AccessBatch.empty()
        index = {process: i for i, process in enumerate(self._processes)}
        pieces = self._next(max(1, self._bits.pages_most // self._period))
        found = [(index[piece.process], self._look(piece)) for piece in pieces]
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

    def _next(self, pages: int) -> list[_Piece]:
        """Return the next pieces with this many pages in total, or the rest of the scan."""
        if self._scan is None:
            self._backwards = not self._backwards
            self._scan = self._round()
        pieces: list[_Piece] = []
        spans = max(1, pages // _SPAN_PAGES)
        while pages > 0 and spans > 0:
            piece, self._rest = self._rest or next(self._scan, None), None
            if piece is None:
                self._scan = None
                break
            if piece.process not in self._known:
                continue
            if piece.pages > pages:
                piece, self._rest = self._cut(piece, pages)
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

    def _round(self) -> Iterator[_Piece]:
        """Yield the pieces of a scan as they are asked for: mappings may have terabytes."""
        for process in self._processes:
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

    def _look(self, piece: _Piece) -> npt.NDArray[np.uint64]:
        """Return the numbers of the pages that were used."""
        process = piece.process
        if piece.last:
            self._bits.round_over(process.pid)
            self._unasked.discard(process)
        if not piece.pages:
            return np.empty(0, np.uint64)
        entries = _entries(process.pid, piece.page, piece.pages, self._proc)
        if entries is None or not alive(process, self._proc):
            return np.empty(0, np.uint64)
        used = np.flatnonzero(self._bits.used(entries)).astype(np.uint64)
        counts = process not in self._unasked
        return used + np.uint64(piece.page) if counts else np.empty(0, np.uint64)

    def close(self) -> None:
        """Stop, and free all resources."""
        if not self._closed:
            self._closed = True
            self._bits.close()


def _entries(pid: int, page: int, pages: int, proc: Path) -> npt.NDArray[np.uint64] | None:
    """Return the pagemap entries of consecutive pages; None if the process has exited."""
    fd = open_to_read(proc / str(pid) / "pagemap")
    if fd is None:
        return None
    try:
        data = os.pread(fd, pages * _ENTRY_BYTES, page * _ENTRY_BYTES)
    except OSError as error:
        if absent(error):
            return None
        raise
    finally:
        os.close(fd)
    return np.frombuffer(data, np.uint64, len(data) // _ENTRY_BYTES)
