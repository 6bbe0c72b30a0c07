"""Values that a policy keeps per page from tick to tick, whatever rows the pages have.

Stored where the heat table stores pages: per page of chunks in detail, else per chunk. Costs about
2 ns per row to read or to write, and about 50 ns per chunk on ticks where chunks came or went or
changed their detail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hmd.heat.geometry import CHUNK_PAGES
from hmd.machine.process_id import ProcessId

if TYPE_CHECKING:
    # Named only: policies import this module at start-up, and the view brings numba.
    from hmd.heat.page_view import PageView


class PageState:
    """One value per page, or ``columns`` values; pages that appear start with ``initial``."""

    def __init__(self, dtype: npt.DTypeLike, initial: int, columns: int | None = None) -> None:
        self._initial = initial
        self._each = () if columns is None else (columns,)
        self._values: npt.NDArray[Any] = np.empty((0, *self._each), dtype)
        self._version = -1
        self._processes: tuple[ProcessId, ...] = ()
        self._process = np.empty(0, np.int32)
        self._address = np.empty(0, np.uint64)
        self._detail = np.empty(0, np.int32)

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
        used, columns = chunks.used, chunks.columns
        details, before = len(columns.owner), len(self._values) - len(self._process)
        rows = details * CHUNK_PAGES + used
        values = np.full((rows, *self._each), self._initial, self._values.dtype)
        of_pages = values[: details * CHUNK_PAGES].reshape(-1, CHUNK_PAGES, *self._each)
        old_pages = self._values[:before].reshape(-1, CHUNK_PAGES, *self._each)
        slots = {one: slot for slot, one in enumerate(pages.processes)}
        order = np.argsort(self._process, kind="stable")
        ends = np.searchsorted(self._process[order], np.arange(len(self._processes) + 1))
        for slot, process in enumerate(self._processes):
            if process not in slots:
                continue
            old = order[ends[slot] : ends[slot + 1]]
            new = chunks.find(slots[process], self._address[old])
            old, new = old[new >= 0], new[new >= 0]
            was, now = self._detail[old], columns.detail[new]
            whole = self._values[before + old]
            # The pages of a chunk begin as their chunk, and a chunk as its first page.
            split = (was < 0) & (now >= 0)
            of_pages[now[split]] = whole[split, None]
            joined = (was >= 0) & (now < 0)
            whole[joined] = old_pages[was[joined], 0]
            values[details * CHUNK_PAGES + new] = whole
            both = (was >= 0) & (now >= 0)
            of_pages[now[both]] = old_pages[was[both]]
        self._values, self._processes, self._version = values, pages.processes, chunks.version
        self._process = columns.process[:used].copy()
        self._address = columns.address[:used].copy()
        self._detail = columns.detail[:used].copy()
