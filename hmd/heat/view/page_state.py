"""Values that a policy keeps per page from tick to tick, whatever rows the pages have.

Stored where the heat table stores pages: per page of chunks in detail, else per chunk. Costs about
2 ns per row to read or to write, 1 µs per chunk whose detail changed, and about 50 ns per chunk of
the table on ticks where some went.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hmd.heat.geometry import CHUNK_PAGES
from hmd.machine.process_id import ProcessId

if TYPE_CHECKING:
    # Named only: policies import this module at start-up, and the view brings numba.
    from hmd.heat.chunks import Chunks
    from hmd.heat.view.page_view import PageView


class PageState:
    """One value per page, or ``columns`` values; pages that appear start with ``initial``."""

    def __init__(self, dtype: npt.DTypeLike, initial: int, columns: int | None = None) -> None:
        self._initial = initial
        self._each = () if columns is None else (columns,)
        self._values: npt.NDArray[Any] = np.empty((0, *self._each), dtype)
        self._version = self._order = -1
        self._processes: tuple[ProcessId, ...] = ()
        self._process = np.empty(0, np.int32)
        self._address = np.empty(0, np.uint64)
        self._owner = np.empty(0, np.int32)

    def read(self, pages: PageView) -> npt.NDArray[Any]:
        """Return a copy of the values by the rows of a view, ``(n,)`` or ``(n, columns)``."""
        self._follow(pages)
        values: npt.NDArray[Any] = self._values[pages.number]
        return values

    def write(self, pages: PageView, values: npt.NDArray[Any]) -> None:
        """Keep new values, shaped as :meth:`read` returns them."""
        self._follow(pages)
        self._values[pages.number] = values

    def in_place(self, pages: PageView) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Return the kept values themselves, and where among them each row of a view is.

        Values that are written there are kept; the array is valid until the next call.
        """
        self._follow(pages)
        return self._values, pages.number

    def _follow(self, pages: PageView) -> None:
        """Bring the stored values to where the table has the pages now."""
        chunks = pages.chunks
        if chunks.version == self._version:
            return
        if chunks.order == self._order and len(chunks.columns.owner) == len(self._owner):
            self._add_chunks(chunks)
            self._change_details(chunks)
        else:
            self._find_again(pages)
        self._processes, self._version, self._order = pages.processes, chunks.version, chunks.order
        self._owner = chunks.columns.owner.copy()

    def _add_chunks(self, chunks: Chunks) -> None:
        """Have values for the chunks that came since; the others have their rows as before."""
        used, before = chunks.used, len(self._process)
        if used > before:
            initial = np.full((used - before, *self._each), self._initial, self._values.dtype)
            self._values = np.concatenate([self._values, initial])
            self._process = chunks.columns.process[:used].copy()
            self._address = chunks.columns.address[:used].copy()

    def _change_details(self, chunks: Chunks) -> None:
        """Follow the rows of pages that have another owner than before."""
        owner, detail = chunks.columns.owner, chunks.columns.detail
        of_pages, whole = self._split(self._values, len(owner))
        changed = np.flatnonzero(self._owner != owner)
        lost, gained = self._owner[changed], owner[changed]
        kept = of_pages[changed[lost >= 0]]
        of_pages[changed] = self._initial
        lost = lost[lost >= 0]
        now = detail[lost]
        # The pages of a chunk begin as their chunk, and a chunk as its first page.
        whole[lost[now < 0]] = kept[now < 0, 0]
        of_pages[changed[gained >= 0]] = whole[gained[gained >= 0], None]
        of_pages[now[now >= 0]] = kept[now >= 0]

    def _find_again(self, pages: PageView) -> None:
        """Find each chunk by its process and address."""
        chunks = pages.chunks
        used, columns = chunks.used, chunks.columns
        details = len(columns.owner)
        rows = details * CHUNK_PAGES + used
        values = np.full((rows, *self._each), self._initial, self._values.dtype)
        of_pages, of_wholes = self._split(values, details)
        old_pages, old_wholes = self._split(self._values, len(self._owner))
        detail = np.full(len(self._process), -1, np.int64)
        had = np.flatnonzero(self._owner >= 0)
        detail[self._owner[had]] = had
        slots = {one: slot for slot, one in enumerate(pages.processes)}
        order = np.argsort(self._process, kind="stable")
        ends = np.searchsorted(self._process[order], np.arange(len(self._processes) + 1))
        for slot, process in enumerate(self._processes):
            if process not in slots:
                continue
            old = order[ends[slot] : ends[slot + 1]]
            new = chunks.find(slots[process], self._address[old])
            old, new = old[new >= 0], new[new >= 0]
            was, now = detail[old], columns.detail[new]
            whole = old_wholes[old]
            split = (was < 0) & (now >= 0)
            of_pages[now[split]] = whole[split, None]
            joined = (was >= 0) & (now < 0)
            whole[joined] = old_pages[was[joined], 0]
            of_wholes[new] = whole
            both = (was >= 0) & (now >= 0)
            of_pages[now[both]] = old_pages[was[both]]
        self._values = values
        self._process = columns.process[:used].copy()
        self._address = columns.address[:used].copy()

    def _split(
        self, values: npt.NDArray[Any], details: int
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the values of rows of pages, ``(details, 512)``, and those of chunks."""
        pages = details * CHUNK_PAGES
        return values[:pages].reshape(-1, CHUNK_PAGES, *self._each), values[pages:]
