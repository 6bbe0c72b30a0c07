# SPDX-License-Identifier: MIT
"""Pages of files that several processes map are counted, and moved, once.

A page belongs to the first process that the sweep finds to have it in its page table: only there
can it be found and moved. Samples of others are attributed to its owner before they are counted,
0.1 µs each. When the owner exits or unmaps the page, its heat is lost, and the next process that is
swept there owns it.

Owners are stored by 2 MiB of a file (units): about 20 bytes for each, and 1 KiB for those that have
owners by page, of which there is a bounded number; all pages of another unit have one owner. A
process has at most ``PROCESS_MOST`` mappings, its largest, and all together have ``MAX_MAPPINGS``;
others are treated as if no other process had them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.heat.chunks import ChunkIndex, find_chunks, insert_chunks
from hmd.heat.settings import CHUNK_BYTES, CHUNK_PAGES
from hmd.linux.mappings import PROCESS_MOST, FileKey, SharedRange, range_bytes
from hmd.linux.procfs import ProcessId
from hmd.linux.resident_pages import ResidentPart
from hmd.sample.access_batch import AccessBatch

Addresses = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.uint64]
Views = npt.NDArray[np.uint16]

NUMBERS_END: Final = 0xFFFF
"""Numbers of mappings are below it, and from 1 on: 0 is none."""
MAX_PAGE_UNITS: Final = 1 << 16
"""Units with pages of their own by default: 128 GiB of dense shared memory in 64 MiB."""

MAX_MAPPINGS: Final = 1 << 15

_PAGE_BITS: Final = 44
"""Bits of a page number: user addresses have at most 56."""
_AHEAD_UNITS: Final = 1 << 15
_MIXED: Final = np.uint16(0xFFFF)
_LEAST_UNITS: Final = 64
_BLOCK: Final = 1024


class _Units(NamedTuple):
    """Columns by unit.

    ``file`` and ``offset`` (its first byte) say which it is. ``sole`` is the mapping that counts
    all its counted pages, ``_MIXED`` where several do. ``full``: all its pages are counted.
    ``detail`` is its row of pages, -1 where it has none.
    """

    file: npt.NDArray[np.int32]
    offset: npt.NDArray[np.uint64]
    sole: npt.NDArray[np.uint16]
    full: npt.NDArray[np.bool_]
    detail: npt.NDArray[np.int32]

    @classmethod
    def blank(cls, count: int) -> _Units:
        """Return units that nothing counts."""
        return cls(
            np.zeros(count, np.int32),
            np.zeros(count, np.uint64),
            np.zeros(count, np.uint16),
            np.zeros(count, np.bool_),
            np.full(count, -1, np.int32),
        )

    @property
    def columns(self) -> tuple[npt.NDArray[np.generic], ...]:
        """All columns."""
        return tuple(self)


class SharedPageOwners:
    """The mapping (a number) that owns each page of files; offsets are those of pages, in bytes."""

    def __init__(self, max_page_units: int = MAX_PAGE_UNITS) -> None:
        self._details_most = max_page_units
        self._used = 0
        self._units = _Units.blank(_LEAST_UNITS)
        self._pages = np.zeros((0, CHUNK_PAGES), np.uint16)
        self._free: list[int] = []
        self._index_units()

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return self._pages.nbytes + sum(c.nbytes for c in (*self._units, *self._index))

    def find_owners(self, file: int, offsets: Offsets) -> Views:
        """Return the mapping that counts each page, 0 where none does; shape as ``offsets``."""
        row = self._find(file, offsets)
        units = self._units
        detail, page = units.detail[row], _page_of(offsets)
        if not len(self._pages):
            return np.where(row >= 0, units.sole[row], np.uint16(0))
        found = np.where(detail >= 0, self._pages[detail, page], units.sole[row])
        return np.where(row >= 0, found, np.uint16(0)).astype(np.uint16)

    def owned_elsewhere(self, view: int, file: int, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """Return of which units other mappings count all pages; ``offsets`` are of units."""
        row = self._find(file, offsets)
        units = self._units
        sole = units.sole[row]
        found: npt.NDArray[np.bool_] = (row >= 0) & units.full[row] & (sole != view)
        mixed = np.flatnonzero(found & (sole == _MIXED))
        for begin in range(0, len(mixed), _BLOCK):
            some = mixed[begin : begin + _BLOCK]
            own = (self._pages[units.detail[row[some]]] == view).any(axis=1)
            found[some[own]] = False
        return found

    def owns_all(self, view: int, file: int, span: tuple[int, int]) -> bool:
        """Return whether no other mapping counts pages of a part of a file."""
        sole = self._units.sole[self._known(file, *_units_of(span))]
        return bool(((sole == view) | (sole == 0)).all())

    def set_owner(self, view: int, file: int, span: tuple[int, int], offsets: Offsets) -> None:
        """Note which pages of a part of a file a mapping has; ``span`` are its first and last byte.

        Those that none counts are counted there from now on; others that were are not any more.
        ``offsets`` are ascending.
        """
        if len(offsets):
            starts = np.unique(offsets // np.uint64(CHUNK_BYTES)) * np.uint64(CHUNK_BYTES)
            self._add(file, starts[self._find(file, starts) < 0])
        rows = self._known(file, *_units_of(span))
        units = self._units
        rows = rows[np.argsort(units.offset[rows])]
        starts = units.offset[rows]
        pages = np.searchsorted(offsets, starts + np.uint64(CHUNK_BYTES))
        pages -= np.searchsorted(offsets, starts)
        full, sole = units.full[rows], units.sole[rows]
        # Units that stay as they are cost nothing: all pages are there, or are others'.
        same = full & np.where(sole == view, pages == CHUNK_PAGES, sole != _MIXED)
        rows = rows[~same]
        for at in range(0, len(rows), _BLOCK):
            self._set_owner_in(rows[at : at + _BLOCK], view, span, offsets)

    def release(self, views: list[int]) -> None:
        """Forget what some mappings counted."""
        if not views:
            return
        gone = np.zeros(NUMBERS_END + 1, np.bool_)
        gone[views] = True
        units, used = self._units, self._used
        units.sole[:used][gone[units.sole[:used]]] = 0
        rows = np.flatnonzero((units.sole[:used] == _MIXED) | (units.sole[:used] == 0))
        units.full[rows[units.sole[rows] == 0]] = False
        rows = rows[units.detail[rows] >= 0]
        for begin in range(0, len(rows), _BLOCK):
            some = rows[begin : begin + _BLOCK]
            pages = self._pages[units.detail[some]]
            pages[gone[pages]] = 0
            self._set_pages(some, pages)
        self._compact()

    def _set_owner_in(
        self, rows: npt.NDArray[np.intp], view: int, span: tuple[int, int], offsets: Offsets
    ) -> None:
        """Note a mapping's pages of some units, which come in order of offset."""
        units = self._units
        starts = units.offset[rows]
        at = np.searchsorted(starts, offsets, side="right") - 1
        inside = (at >= 0) & (offsets < starts[at] + np.uint64(CHUNK_BYTES))
        found = np.zeros((len(rows), CHUNK_PAGES), np.bool_)
        found[at[inside], _page_of(offsets[inside])] = True
        detailed = units.detail[rows] >= 0
        whole, any_found = rows[~detailed], found[~detailed].any(axis=1)
        units.sole[whole[any_found & (units.sole[whole] == 0)]] = view
        covered = (units.offset[whole] >= span[0]) & (
            units.offset[whole] + np.uint64(CHUNK_BYTES) <= span[1]
        )
        units.sole[whole[~any_found & covered & (units.sole[whole] == view)]] = 0
        units.full[whole] = units.sole[whole] != 0
        rows, found = rows[detailed], found[detailed]
        if not len(rows):
            return
        pages = self._pages[units.detail[rows]]
        place = units.offset[rows, None] + np.arange(CHUNK_PAGES, dtype=np.uint64) * np.uint64(
            PAGE_BYTES
        )
        asked = (place >= np.uint64(span[0])) & (place < np.uint64(span[1]))
        pages[asked & ~found & (pages == view)] = 0
        pages[found & (pages == 0)] = view
        self._set_pages(rows, pages)

    def _set_pages(self, rows: npt.NDArray[np.intp], pages: Views) -> None:
        units = self._units
        self._pages[units.detail[rows]] = pages
        highest = pages.max(axis=1)
        lowest = np.where(pages == 0, highest[:, None], pages).min(axis=1)
        units.sole[rows] = np.where(highest == lowest, highest, _MIXED)
        units.full[rows] = (pages != 0).all(axis=1)

    def _find(self, file: int, offsets: Offsets) -> npt.NDArray[np.int32]:
        found = np.empty(len(offsets), np.int32)
        find_chunks(file, offsets, self._index, found)
        return found

    def _known(self, file: int, first: int, last: int) -> npt.NDArray[np.intp]:
        """Return the units of a part of a file that are known."""
        if (last - first) // CHUNK_BYTES <= _BLOCK:
            starts = np.arange(first, last, CHUNK_BYTES, dtype=np.uint64)
            row = self._find(file, starts).astype(np.intp)
            return row[row >= 0]
        units, used = self._units, self._used
        offset = units.offset[:used]
        return np.flatnonzero(
            (units.file[:used] == file) & (offset >= np.uint64(first)) & (offset < np.uint64(last))
        )

    def _add(self, file: int, starts: Offsets) -> None:
        """Add units that are not known, with pages of their own as far as there is room."""
        begin, end = self._used, self._used + len(starts)
        if begin == end:
            return
        if end > len(self._units.file):
            self._resize(max(2 * len(self._units.file), end))
        units = self._units
        units.file[begin:end], units.offset[begin:end] = file, starts
        if len(self._free) < len(starts) and len(self._pages) < self._details_most:
            rows = len(self._pages)
            more = min(max(2 * rows, rows + len(starts)), self._details_most) - rows
            self._pages = np.concatenate([self._pages, np.zeros((more, CHUNK_PAGES), np.uint16)])
            self._free.extend(range(rows, rows + more))
        some = min(len(self._free), len(starts))
        if some:
            units.detail[begin : begin + some] = self._free[-some:]
            del self._free[-some:]
        self._used = end
        insert_chunks(begin, end, units.file, units.offset, self._index)

    def _compact(self) -> None:
        """Remove the units of which nothing is counted."""
        units, used = self._units, self._used
        kept = np.flatnonzero(units.sole[:used] != 0)
        if len(kept) == used:
            return
        detail = units.detail[:used][units.sole[:used] == 0]
        self._free.extend(detail[detail >= 0].tolist())
        for column, empty in zip(units.columns, _Units.blank(used).columns, strict=True):
            column[: len(kept)] = column[kept]
            column[len(kept) : used] = empty[len(kept) :]
        self._used = len(kept)
        if self._used == 0:
            self._pages, self._free = self._pages[:0].copy(), []
        if self._used < len(units.file) // 4:
            self._resize(max(_LEAST_UNITS, len(units.file) // 2))
        else:
            self._index_units()

    def _resize(self, capacity: int) -> None:
        new = _Units.blank(capacity)
        for column, larger in zip(self._units.columns, new.columns, strict=True):
            larger[: self._used] = column[: self._used]
        self._units = new
        self._index_units()

    def _index_units(self) -> None:
        # At most half full, for every number of units up to the capacity.
        size = 2 * (1 << (len(self._units.file) - 1).bit_length())
        self._index = ChunkIndex.empty(size)
        if self._used:  # else there are no kernels to load
            insert_chunks(0, self._used, self._units.file, self._units.offset, self._index)


def _page_of(offsets: Offsets) -> npt.NDArray[np.intp]:
    """Return the number of each page in its unit."""
    return (offsets % np.uint64(CHUNK_BYTES) // np.uint64(PAGE_BYTES)).astype(np.intp)


def _units_of(span: tuple[int, int]) -> tuple[int, int]:
    """Return a part of a file, rounded to units outwards."""
    begin, end = span
    return begin // CHUNK_BYTES * CHUNK_BYTES, -(-end // CHUNK_BYTES) * CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class SharedMapping:
    """A mapping: its number, what it maps, and the number of the file."""

    number: int
    range: SharedRange
    file: int


@dataclass(frozen=True, slots=True)
class MappingColumns:
    """Views of files that have several, in order of process and address; shape ``(n,)``.

    ``first`` and ``last`` are process and page in one number, of the first page and of the one
    after the last; ``file_page`` is the page of the file that ``first`` is. ``row``, by number of
    view, is -1 for views that are not here.
    """

    first: npt.NDArray[np.uint64]
    last: npt.NDArray[np.uint64]
    file: npt.NDArray[np.int32]
    file_page: npt.NDArray[np.uint64]
    row: npt.NDArray[np.int32]


def page_keys(
    process: npt.NDArray[np.int32], address: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Return process and page in one number each."""
    page = address // np.uint64(PAGE_BYTES)
    return (process.astype(np.uint64) << np.uint64(_PAGE_BITS)) | page


def of_page_keys(
    keys: npt.NDArray[np.uint64],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint64]]:
    """Return process and address of what ``page_keys`` returned."""
    address = (keys & np.uint64((1 << _PAGE_BITS) - 1)) * np.uint64(PAGE_BYTES)
    return (keys >> np.uint64(_PAGE_BITS)).astype(np.int32), address


class SharedMappings:
    """The views of processes."""

    def __init__(self) -> None:
        self._views: dict[ProcessId, tuple[SharedMapping, ...]] = {}
        self._files: dict[FileKey, int] = {}
        self._users: Counter[FileKey] = Counter()
        self._free_views, self._free_files = list(range(MAX_MAPPINGS, 0, -1)), list[int]()

    def __len__(self) -> int:
        return MAX_MAPPINGS - len(self._free_views)

    @property
    def shared(self) -> bool:
        """Whether a file has several views."""
        return len(self._users) < len(self)

    def of(self, process: ProcessId) -> tuple[SharedMapping, ...]:
        """Return the views of a process in order of address."""
        return self._views.get(process, ())

    def within(self, process: ProcessId, start: int, end: int) -> tuple[SharedMapping, ...]:
        """Return the views of a process that have addresses from ``start`` to ``end``."""
        views = self._views.get(process)
        if not views:
            return ()
        first = bisect_right(views, start, key=lambda view: view.range.end)
        last = bisect_right(views, end - 1, key=lambda view: view.range.start)
        return views[first:last]

    def set_ranges(
        self, process: ProcessId, ranges: Iterable[SharedRange]
    ) -> tuple[list[int], bool]:
        """Set what a process maps; return the views that are gone, and whether any changed."""
        now = {one.start: one for one in nlargest(PROCESS_MOST, ranges, key=range_bytes)}
        before = {view.range.start: view for view in self.of(process)}
        kept = {start: view for start, view in before.items() if now.get(start) == view.range}
        gone = [view for start, view in before.items() if start not in kept]
        for view in gone:
            self._drop(view)
        new = [one for start, one in now.items() if start not in kept]
        for one in new:
            if self._free_views:
                kept[one.start] = self._made(one)
        if kept:
            self._views[process] = tuple(kept[start] for start in sorted(kept))
        else:
            self._views.pop(process, None)
        return [view.number for view in gone], bool(gone or new)

    def retain_processes(self, processes: Iterable[ProcessId]) -> list[int]:
        """Forget all other processes; return their views."""
        gone = []
        for process in self._views.keys() - set(processes):
            for view in self._views.pop(process):
                self._drop(view)
                gone.append(view.number)
        return gone

    def columns(self, processes: Sequence[ProcessId]) -> MappingColumns:
        """Return the views of files that have several, processes as their place in a sequence."""
        rows = [
            (slot, view)
            for slot, process in enumerate(processes)
            for view in self._views.get(process, ())
            if self._users[view.range.file] > 1
        ]
        process = np.array([slot for slot, _ in rows], np.int32)
        start, end, offset = (
            np.array([getattr(view.range, name) for _, view in rows], np.uint64)
            for name in ("start", "end", "offset")
        )
        row_of = np.full(MAX_MAPPINGS + 1, -1, np.int32)
        row_of[[view.number for _, view in rows]] = np.arange(len(rows))
        return MappingColumns(
            page_keys(process, start),
            page_keys(process, end),
            np.array([view.file for _, view in rows], np.int32),
            offset // np.uint64(PAGE_BYTES),
            row_of,
        )

    def _made(self, one: SharedRange) -> SharedMapping:
        file = self._files.get(one.file)
        if file is None:
            file = self._free_files.pop() if self._free_files else len(self._files)
            self._files[one.file] = file
        self._users[one.file] += 1
        return SharedMapping(self._free_views.pop(), one, file)

    def _drop(self, view: SharedMapping) -> None:
        self._free_views.append(view.number)
        self._users[view.range.file] -= 1
        if not self._users[view.range.file]:
            del self._users[view.range.file]
            self._free_files.append(self._files.pop(view.range.file))


class SharedPages:
    """Which process counts each page that several may map."""

    def __init__(self, units: int = MAX_PAGE_UNITS) -> None:
        """Count pages one by one in so many 2 MiB of files."""
        self._views, self._page_owners = SharedMappings(), SharedPageOwners(units)
        self._processes: tuple[ProcessId, ...] = ()
        self._columns: MappingColumns | None = None

    def retain_processes(self, processes: tuple[ProcessId, ...]) -> None:
        """Forget other processes: what they counted counts nowhere until it is found."""
        if processes is self._processes:
            return
        self._page_owners.release(self._views.retain_processes(processes))
        self._processes, self._columns = processes, None

    def shares(self, process: ProcessId) -> bool:
        """Return whether a process has mappings of files."""
        return bool(self._views.of(process))

    def covers(self, process: ProcessId, start: int, end: int) -> bool:
        """Return whether one mapping of a file has all addresses from ``start`` to ``end``."""
        views = self._views.within(process, start, end)
        return any(v.range.start <= start and end <= v.range.end for v in views)

    def set_mappings(self, process: ProcessId, ranges: Iterable[SharedRange]) -> None:
        """Set the mappings of files of a process."""
        gone, changed = self._views.set_ranges(process, ranges)
        self._page_owners.release(gone)
        if changed:
            self._columns = None

    def skip_owned_elsewhere(self, process: ProcessId, start: int, end: int) -> int:
        """Return the chunk, or ``end``, to continue a sweep at: others count all pages before."""
        views = self._views.within(process, start, start + 1)
        if not views:
            return start
        view, limit = views[0], min(end, start + _AHEAD_UNITS * CHUNK_BYTES)
        limit = min(limit, view.range.end)
        first = _offset(view, start) // CHUNK_BYTES * CHUNK_BYTES
        units = np.arange(first, _offset(view, limit), CHUNK_BYTES, dtype=np.uint64)
        elsewhere = self._page_owners.owned_elsewhere(view.number, view.file, units)
        count = len(units) if elsewhere.all() else int(np.argmin(elsewhere))
        reached = min(view.range.start + first + count * CHUNK_BYTES - view.range.offset, limit)
        return end if reached >= end else max(start, reached // CHUNK_BYTES * CHUNK_BYTES)

    def select_owned(self, process: ProcessId, start: int, part: ResidentPart) -> ResidentPart:
        """Return the pages of a part, from ``start``, that no other process counts.

        A huge page of which others count some is returned as the others of its pages.
        """
        views = self._views.within(process, start, part.until)
        if not views:
            return part
        pages, huge = part.pages, part.huge
        for view in views:
            if self._page_owners.owns_all(
                view.number, view.file, _part_of(view, (start, part.until))
            ):
                continue
            torn = huge[self._counted_by_others(view, _every_page(huge)).reshape(-1, CHUNK_PAGES)
                        .any(axis=1)]  # fmt: skip
            if len(torn):
                huge = huge[~np.isin(huge, torn)]
                pages = np.sort(np.concatenate([pages, _every_page(torn)]))
            pages = pages[~self._counted_by_others(view, pages)]
        return ResidentPart(pages, huge, part.until)

    def record_owned(self, process: ProcessId, span: tuple[int, int], part: ResidentPart) -> None:
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
            self._page_owners.set_owner(view.number, view.file, _part_of(view, span), offsets)

    def attribute_to_owner(self, batch: AccessBatch) -> AccessBatch:
        """Return samples as if each page were accessed by the process that counts it."""
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
        counting = self._find_owners(columns.file[row], page * np.uint64(PAGE_BYTES))
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

    def _find_owners(
        self, file: npt.NDArray[np.int32], offsets: Addresses
    ) -> npt.NDArray[np.uint16]:
        """Return the view that counts each page, file by file."""
        if (file == file[0]).all():
            return self._page_owners.find_owners(int(file[0]), offsets)
        found = np.zeros(len(file), np.uint16)
        order = np.argsort(file, kind="stable")
        cuts = np.flatnonzero(np.diff(file[order])) + 1
        for rows in np.split(order, cuts):
            found[rows] = self._page_owners.find_owners(int(file[rows[0]]), offsets[rows])
        return found

    def _counted_by_others(self, view: SharedMapping, pages: Addresses) -> npt.NDArray[np.bool_]:
        """Return which of some addresses are pages of a view that other views count."""
        start, end = np.uint64(view.range.start), np.uint64(view.range.end)
        inside = (pages >= start) & (pages < end)
        offsets = pages[inside] - start + np.uint64(view.range.offset)
        counting = self._page_owners.find_owners(view.file, offsets)
        found = np.zeros(len(pages), np.bool_)
        found[inside] = (counting != 0) & (counting != view.number)
        return found


def _offset(view: SharedMapping, address: int) -> int:
    return address - view.range.start + view.range.offset


def _part_of(view: SharedMapping, span: tuple[int, int]) -> tuple[int, int]:
    """Return the part of its file that a view has in a span of addresses."""
    start, end = max(span[0], view.range.start), min(span[1], view.range.end)
    return _offset(view, start), _offset(view, end)


def _every_page(huge: Addresses) -> Addresses:
    """Return the 512 pages of each huge page."""
    steps = np.arange(CHUNK_PAGES, dtype=np.uint64) * np.uint64(PAGE_BYTES)
    return (huge[:, None] + steps).reshape(-1)
