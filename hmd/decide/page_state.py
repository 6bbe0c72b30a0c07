"""What a policy keeps of its own for each page, in step with the heat table's rows.

The table's rows move when chunks come and go; a chunk is known by its process and address. Costs
a sort of the chunks' addresses a tick, where they have changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from hmd.heat.geometry import CHUNK_BYTES, CHUNK_PAGES
from hmd.machine.process_id import ProcessId

if TYPE_CHECKING:
    from hmd.heat.heat_table import HeatTable

# Of chunk numbers: user addresses have at most 56 bits.
_NUMBER_BITS: Final = 35


class Aligned:
    """One column of shape ``(chunks, 512)``; pages that come start with ``initial``."""

    def __init__(self, dtype: npt.DTypeLike, initial: int) -> None:
        self._initial = initial
        self._values: npt.NDArray[Any] = np.empty((0, CHUNK_PAGES), dtype)
        self._processes: tuple[ProcessId, ...] = ()
        self._process = np.empty(0, np.int32)
        self._address = np.empty(0, np.uint64)

    def of(self, heat: HeatTable) -> npt.NDArray[Any]:
        """Return the column by the rows of the table now; what is written to it is kept."""
        used, columns = heat.chunks.used, heat.chunks.columns
        process, address = columns.process[:used], columns.address[:used]
        same = (
            heat.processes == self._processes
            and np.array_equal(process, self._process)
            and np.array_equal(address, self._address)
        )
        if not same:
            self._follow(heat.processes, process, address)
        return self._values

    def _follow(
        self,
        processes: tuple[ProcessId, ...],
        process: npt.NDArray[np.int32],
        address: npt.NDArray[np.uint64],
    ) -> None:
        slots = {one: slot for slot, one in enumerate(processes)}
        moved = np.array([slots.get(one, -1) for one in self._processes], np.int64)
        known = _keys(moved[self._process] if len(moved) else self._process, self._address)
        order = np.argsort(known)
        wanted = _keys(process, address)
        at = np.minimum(np.searchsorted(known[order], wanted), max(len(known) - 1, 0))
        values = np.full((len(process), CHUNK_PAGES), self._initial, self._values.dtype)
        if len(known):
            old = order[at]
            found = known[old] == wanted
            values[found] = self._values[old[found]]
        self._values, self._processes = values, processes
        self._process, self._address = process.copy(), address.copy()


def _keys(
    process: npt.NDArray[np.integer], address: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]:
    """Return a number for each chunk that is its own; below 0 for those of no process."""
    number = (address // np.uint64(CHUNK_BYTES)).astype(np.int64)
    return process.astype(np.int64) << _NUMBER_BITS | number
