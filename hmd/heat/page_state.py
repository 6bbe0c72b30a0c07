# SPDX-License-Identifier: MIT
"""Values that a policy keeps per page from tick to tick, whatever rows the pages have.

Stored where the heat table stores pages: per page of chunks with page slots, else per chunk. Costs
about 2 ns per row to read or to write, 1 µs per chunk whose page slot changed, and about 50 ns per
chunk of the table on ticks where some went.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hmd.heat.settings import CHUNK_PAGES
from hmd.linux.process_table import ProcessTable
from hmd.linux.procfs import ProcessId

if TYPE_CHECKING:
    from hmd.heat.chunks import Chunks
    from hmd.heat.view import PageView


class PageState:
    """One value per page; pages that appear start with ``initial``."""

    def __init__(self, dtype: npt.DTypeLike, initial: int) -> None:
        self._initial = initial
        self._values: npt.NDArray[Any] = np.empty(0, dtype)
        # The table as it was: its processes, the process and address of each chunk, and the chunk
        # of each page slot.
        self._version = self._order = -1
        self._processes: tuple[ProcessId, ...] = ()
        self._process = np.empty(0, np.int32)
        self._address = np.empty(0, np.uint64)
        self._owner = np.empty(0, np.int32)

    def read(self, pages: PageView) -> npt.NDArray[Any]:
        """Return a copy of the values by the rows of a view, ``(n,)``."""
        stored, index = self.in_place(pages)
        values: npt.NDArray[Any] = stored[index]
        return values

    def write(self, pages: PageView, values: npt.NDArray[Any]) -> None:
        """Store new values, shaped as :meth:`read` returns them."""
        stored, index = self.in_place(pages)
        stored[index] = values

    def in_place(self, pages: PageView) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Return the stored values themselves, and where among them each row of a view is.

        What is written there is stored; the array is valid until the next call.
        """
        self._update(pages)
        return self._values, pages.storage_index

    def _update(self, pages: PageView) -> None:
        """Bring the stored values to where the table has the pages now."""
        chunks = pages.chunks
        if chunks.version == self._version:
            return
        if chunks.order == self._order and chunks.page_slots == len(self._owner):
            self._add_chunks(chunks)
            self._move_to_slots(chunks)
        else:
            self._find_chunks(pages)
        self._processes, self._version, self._order = pages.processes, chunks.version, chunks.order
        self._owner = chunks.columns.owner.copy()

    def _add_chunks(self, chunks: Chunks) -> None:
        """Have values for the chunks that came since; the others have their rows as before."""
        used, before = chunks.used, len(self._process)
        if used > before:
            initial = np.full(used - before, self._initial, self._values.dtype)
            self._values = np.concatenate([self._values, initial])
            self._process = chunks.columns.process[:used].copy()
            self._address = chunks.columns.address[:used].copy()

    def _move_to_slots(self, chunks: Chunks) -> None:
        """Move values of chunks whose page slot has changed."""
        owner, page_slot = chunks.columns.owner, chunks.columns.page_slot
        of_pages, of_chunks = _split(self._values, len(owner))
        changed = np.flatnonzero(self._owner != owner)
        lost, gained = self._owner[changed], owner[changed]
        kept = of_pages[changed[lost >= 0]]
        of_pages[changed] = self._initial
        lost = lost[lost >= 0]
        now = page_slot[lost]
        # The pages of a chunk begin as their chunk, and a chunk as its first page.
        of_chunks[lost[now < 0]] = kept[now < 0, 0]
        of_pages[changed[gained >= 0]] = of_chunks[gained[gained >= 0], None]
        of_pages[now[now >= 0]] = kept[now >= 0]

    def _find_chunks(self, pages: PageView) -> None:
        chunks = pages.chunks
        used, columns = chunks.used, chunks.columns
        rows = chunks.page_slots * CHUNK_PAGES + used
        values = np.full(rows, self._initial, self._values.dtype)
        of_pages, of_chunks = _split(values, chunks.page_slots)
        old_pages, old_chunks = _split(self._values, len(self._owner))
        old_slot = np.full(len(self._process), -1, np.int64)
        owned = np.flatnonzero(self._owner >= 0)
        old_slot[self._owner[owned]] = owned
        slots = ProcessTable(pages.processes).slots_of(self._processes).tolist()
        order = np.argsort(self._process, kind="stable")
        ends = np.searchsorted(self._process[order], np.arange(len(self._processes) + 1))
        for slot, current in enumerate(slots):
            if current < 0:
                continue
            old = order[ends[slot] : ends[slot + 1]]
            new = chunks.find(current, self._address[old])
            old, new = old[new >= 0], new[new >= 0]
            was, now = old_slot[old], columns.page_slot[new]
            values_of_chunks = old_chunks[old]
            split = (was < 0) & (now >= 0)
            of_pages[now[split]] = values_of_chunks[split, None]
            joined = (was >= 0) & (now < 0)
            values_of_chunks[joined] = old_pages[was[joined], 0]
            of_chunks[new] = values_of_chunks
            both = (was >= 0) & (now >= 0)
            of_pages[now[both]] = old_pages[was[both]]
        self._values = values
        self._process = columns.process[:used].copy()
        self._address = columns.address[:used].copy()


def _split(values: npt.NDArray[Any], slots: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the values of page slots, ``(slots, 512)``, and those of chunks."""
    pages = slots * CHUNK_PAGES
    return values[:pages].reshape(-1, CHUNK_PAGES), values[pages:]
