"""Chunks of 2 MiB as columns that grow by doubling, and the index that finds them.

Rows are dense: the last chunk takes the row of one that is removed. A row number is therefore
valid only until chunks are added or removed.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from hmd.heat.chunk_columns import ChunkColumns, ChunkIndex
from hmd.heat.sample_counting import find_chunks, rebuild_index

_LEAST_CHUNKS = 64


class Chunks:
    """The chunks of all processes: ``columns`` up to row ``used``, and their ``index``."""

    def __init__(self) -> None:
        self.used = 0
        self.columns = ChunkColumns.blank(_LEAST_CHUNKS)
        self._rebuild()

    @property
    def nbytes(self) -> int:
        """Bytes of all columns and of the index."""
        return sum(array.nbytes for array in (*self.columns, *self.index))

    def find(self, process: int, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
        """Return the row of each address's chunk, -1 where there is none."""
        found = np.empty(len(addresses), np.int32)
        find_chunks(process, addresses, self.index, found)
        return found

    def add(self, process: int, addresses: npt.NDArray[np.uint64]) -> None:
        """Add chunks at these starts, which must be new and distinct."""
        end = self.used + len(addresses)
        while end > len(self.columns.process):
            self._resize(2 * len(self.columns.process))
        self.columns.process[self.used : end] = process
        self.columns.address[self.used : end] = addresses
        self.used = end
        self._rebuild()

    def grow(self) -> None:
        """Double the capacity."""
        self._resize(2 * len(self.columns.process))
        self._rebuild()

    def remove(self, rows: npt.NDArray[np.integer]) -> None:
        """Remove these chunks; the last ones take their rows."""
        stays = np.ones(self.used, np.bool_)
        stays[rows] = False
        left = int(np.count_nonzero(stays))
        holes = np.flatnonzero(~stays[:left])
        movers = left + np.flatnonzero(stays[left:])
        blank = ChunkColumns.blank(1)
        for column, empty in zip(_arrays(self.columns), _arrays(blank), strict=True):
            column[holes] = column[movers]
            column[left : self.used] = empty
        self.used = left
        if left < len(self.columns.process) // 4:
            self._resize(max(_LEAST_CHUNKS, len(self.columns.process) // 2))
        self._rebuild()

    def renumber(self, slots: npt.NDArray[np.int32]) -> None:
        """Give process ``p`` the slot ``slots[p]``; chunks of slot -1 are removed."""
        process = self.columns.process[: self.used]
        process[:] = slots[process] if len(slots) else -1
        self.remove(np.flatnonzero(process < 0))

    def _resize(self, capacity: int) -> None:
        larger = ChunkColumns.blank(capacity)
        for column, new in zip(_arrays(self.columns), _arrays(larger), strict=True):
            new[: self.used] = column[: self.used]
        self.columns = larger

    def _rebuild(self) -> None:
        # At most half full, for every number of chunks up to the capacity.
        size = 2 * (1 << (len(self.columns.process) - 1).bit_length())
        self.index = ChunkIndex(np.empty(size, np.int64), np.empty(size, np.int32))
        process, address = self.columns.process[: self.used], self.columns.address[: self.used]
        rebuild_index(process, address, self.index)


def _arrays(columns: ChunkColumns) -> tuple[npt.NDArray[Any], ...]:
    """Return the columns as arrays of any type."""
    return cast(tuple[npt.NDArray[Any], ...], columns)
