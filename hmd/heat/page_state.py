"""Values that a policy keeps per page from tick to tick, whatever rows the pages have.

Stored per chunk, and followed by the process and address of the chunk. Costs about 2 ns per page
to read or to write, and a sort of the chunks' addresses on ticks where chunks came or went.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from hmd.heat.geometry import CHUNK_BYTES, CHUNK_PAGES
from hmd.machine.process_id import ProcessId

if TYPE_CHECKING:
    # Named only: policies import this module at start-up, and the view brings numba.
    from hmd.heat.page_view import PageView

# Of chunk numbers: user addresses have at most 56 bits.
_NUMBER_BITS: Final = 35


class PageState:
    """One value per page; pages that appear start with ``initial``."""

    def __init__(self, dtype: npt.DTypeLike, initial: int) -> None:
        self._initial = initial
        self._values: npt.NDArray[Any] = np.empty((0, CHUNK_PAGES), dtype)
        self._processes: tuple[ProcessId, ...] = ()
        self._process = np.empty(0, np.int32)
        self._address = np.empty(0, np.uint64)

    def read(self, pages: PageView) -> npt.NDArray[Any]:
        """Return a copy of the values by the rows of a view, shape ``(n,)``."""
        self._follow(pages)
        values: npt.NDArray[Any] = self._values.reshape(-1)[pages.number]
        return values

    def write(self, pages: PageView, values: npt.NDArray[Any]) -> None:
        """Keep new values, shape ``(n,)``."""
        self._follow(pages)
        self._values.reshape(-1)[pages.number] = values

    def _follow(self, pages: PageView) -> None:
        """Bring the stored values to the chunks' current rows."""
        process, address = pages.chunks
        same = (
            pages.processes == self._processes
            and np.array_equal(process, self._process)
            and np.array_equal(address, self._address)
        )
        if same:
            return
        slots = {one: slot for slot, one in enumerate(pages.processes)}
        new_slot = np.array([slots.get(one, -1) for one in self._processes], np.int64)
        known = _keys(new_slot[self._process] if len(new_slot) else self._process, self._address)
        order = np.argsort(known)
        wanted = _keys(process, address)
        position = np.minimum(np.searchsorted(known[order], wanted), max(len(known) - 1, 0))
        values = np.full((len(process), CHUNK_PAGES), self._initial, self._values.dtype)
        if len(known):
            old = order[position]
            found = known[old] == wanted
            values[found] = self._values[old[found]]
        self._values, self._processes = values, pages.processes
        self._process, self._address = process.copy(), address.copy()


def _keys(
    process: npt.NDArray[np.integer], address: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]:
    """Return a number per chunk that no other has; below 0 for chunks of no process."""
    number = (address // np.uint64(CHUNK_BYTES)).astype(np.int64)
    return process.astype(np.int64) << _NUMBER_BITS | number
