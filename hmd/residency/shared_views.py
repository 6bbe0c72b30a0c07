"""The mappings of files that several processes may map, by process and address.

A view is one such mapping, with a number. Bounded: a process has at most ``PROCESS_MOST`` views,
its largest mappings, and all processes together have ``VIEWS_MOST``. Other mappings are treated as
if no other process had them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.machine.pages.shared_ranges import PROCESS_MOST, FileKey, SharedRange, range_bytes
from hmd.machine.process_id import ProcessId
from hmd.units import PAGE_BYTES

VIEWS_MOST: Final = 1 << 15

_PAGE_BITS: Final = 44
"""Bits of a page number: user addresses have at most 56."""


@dataclass(frozen=True, slots=True)
class SharedView:
    """A mapping: its number, what it maps, and the number of the file."""

    number: int
    range: SharedRange
    file: int


@dataclass(frozen=True, slots=True)
class ViewColumns:
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


class SharedViews:
    """The views of processes."""

    def __init__(self) -> None:
        self._views: dict[ProcessId, tuple[SharedView, ...]] = {}
        self._files: dict[FileKey, int] = {}
        self._users: Counter[FileKey] = Counter()
        self._free_views, self._free_files = list(range(VIEWS_MOST, 0, -1)), list[int]()

    def __len__(self) -> int:
        """Return the number of views."""
        return VIEWS_MOST - len(self._free_views)

    @property
    def shared(self) -> bool:
        """Whether a file has several views."""
        return len(self._users) < len(self)

    def of(self, process: ProcessId) -> tuple[SharedView, ...]:
        """Return the views of a process in order of address."""
        return self._views.get(process, ())

    def within(self, process: ProcessId, start: int, end: int) -> tuple[SharedView, ...]:
        """Return the views of a process that have addresses from ``start`` to ``end``."""
        views = self._views.get(process)
        if not views:
            return ()
        first = bisect_right(views, start, key=lambda view: view.range.end)
        last = bisect_right(views, end - 1, key=lambda view: view.range.start)
        return views[first:last]

    def take(self, process: ProcessId, ranges: Iterable[SharedRange]) -> tuple[list[int], bool]:
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

    def keep(self, processes: Iterable[ProcessId]) -> list[int]:
        """Forget all other processes; return their views."""
        gone = []
        for process in self._views.keys() - set(processes):
            for view in self._views.pop(process):
                self._drop(view)
                gone.append(view.number)
        return gone

    def columns(self, processes: Sequence[ProcessId]) -> ViewColumns:
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
        row_of = np.full(VIEWS_MOST + 1, -1, np.int32)
        row_of[[view.number for _, view in rows]] = np.arange(len(rows))
        return ViewColumns(
            page_keys(process, start),
            page_keys(process, end),
            np.array([view.file for _, view in rows], np.int32),
            offset // np.uint64(PAGE_BYTES),
            row_of,
        )

    def _made(self, one: SharedRange) -> SharedView:
        file = self._files.get(one.file)
        if file is None:
            file = self._free_files.pop() if self._free_files else len(self._files)
            self._files[one.file] = file
        self._users[one.file] += 1
        return SharedView(self._free_views.pop(), one, file)

    def _drop(self, view: SharedView) -> None:
        self._free_views.append(view.number)
        self._users[view.range.file] -= 1
        if not self._users[view.range.file]:
            del self._users[view.range.file]
            self._free_files.append(self._files.pop(view.range.file))
