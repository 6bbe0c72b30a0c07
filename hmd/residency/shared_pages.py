"""Pages that several processes map are counted, and moved, once.

Takes processes' mappings of files and the pages that the sweep finds in them. A page counts where
the first process has it in its page table (:mod:`hmd.residency.page_claims`); samples of others are
folded to there before they are counted. When that process exits or unmaps the page, its heat is
lost, and the next one that is swept or sampled there counts it.

A sample costs about 0.1 µs while processes share files, else nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hmd.heat.geometry import CHUNK_BYTES, CHUNK_PAGES
from hmd.machine.pages.resident_pages import ResidentPart
from hmd.machine.pages.shared_ranges import SharedRange
from hmd.machine.process_id import ProcessId
from hmd.residency.page_claims import DETAILS_MOST, PageClaims
from hmd.residency.shared_views import SharedView, SharedViews, ViewColumns, of_page_keys, page_keys
from hmd.sample.access_batch import AccessBatch
from hmd.units import PAGE_BYTES

Addresses = npt.NDArray[np.uint64]

_AHEAD_UNITS = 1 << 15


class SharedPages:
    """Which process counts each page that several may map."""

    def __init__(self, units: int = DETAILS_MOST) -> None:
        """Count pages one by one in so many 2 MiB of files."""
        self._views, self._claims = SharedViews(), PageClaims(units)
        self._processes: tuple[ProcessId, ...] = ()
        self._columns: ViewColumns | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of what is known of pages."""
        return self._claims.nbytes

    def keep(self, processes: tuple[ProcessId, ...]) -> None:
        """Forget other processes: what they counted counts nowhere until it is found."""
        if processes is self._processes:
            return
        self._claims.release(self._views.keep(processes))
        self._processes, self._columns = processes, None

    def shares(self, process: ProcessId) -> bool:
        """Return whether a process has mappings of files."""
        return bool(self._views.of(process))

    def covers(self, process: ProcessId, start: int, end: int) -> bool:
        """Return whether one mapping of a file has all addresses from ``start`` to ``end``."""
        views = self._views.within(process, start, end)
        return any(v.range.start <= start and end <= v.range.end for v in views)

    def take(self, process: ProcessId, ranges: Iterable[SharedRange]) -> None:
        """Set the mappings of files of a process."""
        gone, changed = self._views.take(process, ranges)
        self._claims.release(gone)
        if changed:
            self._columns = None

    def ahead(self, process: ProcessId, start: int, end: int) -> int:
        """Return the chunk to continue a sweep at: others count all pages up to there.

        ``start`` and the result are starts of chunks, or the ``end``.
        """
        views = self._views.within(process, start, start + 1)
        if not views:
            return start
        view, limit = views[0], min(end, start + _AHEAD_UNITS * CHUNK_BYTES)
        limit = min(limit, view.range.end)
        first = _offset(view, start) // CHUNK_BYTES * CHUNK_BYTES
        units = np.arange(first, _offset(view, limit), CHUNK_BYTES, dtype=np.uint64)
        elsewhere = self._claims.counted_elsewhere(view.number, view.file, units)
        count = len(units) if elsewhere.all() else int(np.argmin(elsewhere))
        reached = min(view.range.start + first + count * CHUNK_BYTES - view.range.offset, limit)
        return end if reached >= end else max(start, reached // CHUNK_BYTES * CHUNK_BYTES)

    def own(self, process: ProcessId, start: int, part: ResidentPart) -> ResidentPart:
        """Return the pages of a part, from ``start``, that no other process counts.

        A huge page of which others count some is returned as the others of its pages.
        """
        views = self._views.within(process, start, part.until)
        if not views:
            return part
        pages, huge = part.pages, part.huge
        for view in views:
            if self._claims.all_own(view.number, view.file, _part_of(view, (start, part.until))):
                continue
            torn = huge[self._counted_by_others(view, _every_page(huge)).reshape(-1, CHUNK_PAGES)
                        .any(axis=1)]  # fmt: skip
            if len(torn):
                huge = huge[~np.isin(huge, torn)]
                pages = np.sort(np.concatenate([pages, _every_page(torn)]))
            pages = pages[~self._counted_by_others(view, pages)]
        return ResidentPart(pages, huge, part.until)

    def claim(self, process: ProcessId, span: tuple[int, int], part: ResidentPart) -> None:
        """Note that a process has the pages of a part, and no others of a span of addresses."""
        views = self._views.within(process, *span)
        if not views:
            return
        pages = part.pages
        if len(part.huge):
            pages = np.sort(np.concatenate([pages, _every_page(part.huge)]))
        for view in views:
            start, end = np.uint64(view.range.start), np.uint64(view.range.end)
            inside = pages[(pages >= start) & (pages < end)]
            offsets = inside - start + np.uint64(view.range.offset)
            self._claims.claim(view.number, view.file, _part_of(view, span), offsets)

    def fold(self, batch: AccessBatch) -> AccessBatch:
        """Return samples as if each page were accessed by the process that counts it.

        ``batch`` indexes the processes of ``keep``.
        """
        if not len(batch) or not self._views.shared:
            return batch
        if self._columns is None:
            self._columns = self._views.columns(self._processes)
        columns = self._columns
        key = page_keys(batch.process, batch.address)
        row = np.searchsorted(columns.first, key, side="right") - 1
        some = np.flatnonzero((row >= 0) & (key < columns.last[row]))
        if not len(some):
            return batch
        row = row[some]
        page = key[some] - columns.first[row] + columns.file_page[row]
        counting = self._counting(columns.file[row], page * np.uint64(PAGE_BYTES))
        to = columns.row[counting]
        other = (to >= 0) & (to != row)
        if not other.any():
            return batch
        some, to, page = some[other], to[other], page[other]
        moved = columns.first[to] + (page - columns.file_page[to])
        process, address = batch.process.copy(), batch.address.copy()
        process[some], start = of_page_keys(moved)
        address[some] = start + address[some] % np.uint64(PAGE_BYTES)
        return replace(batch, process=process, address=address)

    def _counting(self, file: npt.NDArray[np.int32], offsets: Addresses) -> npt.NDArray[np.uint16]:
        """Return the view that counts each page, file by file."""
        if (file == file[0]).all():
            return self._claims.counting(int(file[0]), offsets)
        found = np.zeros(len(file), np.uint16)
        order = np.argsort(file, kind="stable")
        cuts = np.flatnonzero(np.diff(file[order])) + 1
        for rows in np.split(order, cuts):
            found[rows] = self._claims.counting(int(file[rows[0]]), offsets[rows])
        return found

    def _counted_by_others(self, view: SharedView, pages: Addresses) -> npt.NDArray[np.bool_]:
        """Return which of some addresses are pages of a view that other views count."""
        start, end = np.uint64(view.range.start), np.uint64(view.range.end)
        inside = (pages >= start) & (pages < end)
        offsets = pages[inside] - start + np.uint64(view.range.offset)
        counting = self._claims.counting(view.file, offsets)
        found = np.zeros(len(pages), np.bool_)
        found[inside] = (counting != 0) & (counting != view.number)
        return found


def _offset(view: SharedView, address: int) -> int:
    return address - view.range.start + view.range.offset


def _part_of(view: SharedView, span: tuple[int, int]) -> tuple[int, int]:
    """Return the part of its file that a view has in a span of addresses."""
    start, end = max(span[0], view.range.start), min(span[1], view.range.end)
    return _offset(view, start), _offset(view, end)


def _every_page(huge: Addresses) -> Addresses:
    """Return the 512 pages of each huge page."""
    steps = np.arange(CHUNK_PAGES, dtype=np.uint64) * np.uint64(PAGE_BYTES)
    return (huge[:, None] + steps).reshape(-1)
