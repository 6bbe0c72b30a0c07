"""Which of several mappings of a file counts each of its pages.

A page is counted where the first process has it in its page table: only there can it be found and
moved. Stored by 2 MiB of a file (units): about 20 bytes for each, and 1 KiB for those that have
pages of their own, of which there is a bounded number. Of another unit, one mapping counts all.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.heat.chunk_columns import ChunkIndex
from hmd.heat.chunk_index import find_chunks, insert_chunks
from hmd.heat.geometry import CHUNK_BYTES, CHUNK_PAGES
from hmd.units import PAGE_BYTES

Offsets = npt.NDArray[np.uint64]
Views = npt.NDArray[np.uint16]

VIEWS_END: Final = 0xFFFF
"""Numbers of mappings are below it, and from 1 on: 0 is none."""
DETAILS_MOST: Final = 1 << 16
"""Units with pages of their own, where it is not known how much memory there is: 128 GiB of dense
shared memory in 64 MiB."""

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


class PageClaims:
    """The mapping that counts each page of files; mappings are numbers (``VIEWS_END``).

    Offsets are those of pages, in bytes from the start of the file.
    """

    def __init__(self, details_most: int = DETAILS_MOST) -> None:
        self._details_most = details_most
        self._used = 0
        self._units = _Units.blank(_LEAST_UNITS)
        self._pages = np.zeros((0, CHUNK_PAGES), np.uint16)
        self._free: list[int] = []
        self._index_units()

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return self._pages.nbytes + sum(c.nbytes for c in (*self._units, *self._index))

    def counting(self, file: int, offsets: Offsets) -> Views:
        """Return the mapping that counts each page, 0 where none does; shape as ``offsets``."""
        row = self._find(file, offsets)
        units = self._units
        detail, page = units.detail[row], _page_of(offsets)
        if not len(self._pages):
            return np.where(row >= 0, units.sole[row], np.uint16(0))
        found = np.where(detail >= 0, self._pages[detail, page], units.sole[row])
        return np.where(row >= 0, found, np.uint16(0)).astype(np.uint16)

    def counted_elsewhere(self, view: int, file: int, offsets: Offsets) -> npt.NDArray[np.bool_]:
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

    def all_own(self, view: int, file: int, span: tuple[int, int]) -> bool:
        """Return whether no other mapping counts pages of a part of a file."""
        sole = self._units.sole[self._known(file, *_units_of(span))]
        return bool(((sole == view) | (sole == 0)).all())

    def claim(self, view: int, file: int, span: tuple[int, int], offsets: Offsets) -> None:
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
            self._claim_in(rows[at : at + _BLOCK], view, span, offsets)

    def release(self, views: list[int]) -> None:
        """Forget what some mappings counted."""
        if not views:
            return
        gone = np.zeros(VIEWS_END + 1, np.bool_)
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

    def _claim_in(
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
