"""Chunks of 2 MiB as columns that grow by doubling, the rows of their pages, and their index.

Rows of chunks are dense: the last chunk takes the row of one that is removed. Rows of pages are a
pool of bounded size: as long as some are free, every new chunk gets one. A chunk without pages of
its own is counted as a whole, in 50 bytes instead of 6 KiB. Row numbers are valid only until
``version`` changes; those of chunks until ``order`` does: not by more chunks, nor by their detail.
"""

from __future__ import annotations

from itertools import count
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.heat.chunk_columns import ChunkColumns, ChunkCounts, ChunkIndex
from hmd.heat.chunk_index import find_chunks, insert_chunks
from hmd.heat.geometry import ABSENT, CHUNK_PAGES, GROUPS
from hmd.heat.page_counts import summarise

_LEAST_CHUNKS = 64
_ASKING = 1024
# No two states of two tables have the same version.
_VERSIONS: Final = count(1)

Rows = npt.NDArray[np.integer]


class Chunks:
    """The chunks of all processes: ``columns`` up to row ``used``, and their ``index``.

    At most ``details_most`` of them have detail.
    """

    def __init__(self, details_most: int) -> None:
        self._details_most = max(details_most, 1)
        self.version = self.order = next(_VERSIONS)
        self.columns = ChunkColumns.blank(_LEAST_CHUNKS, self._details(_LEAST_CHUNKS))
        self.state = ChunkCounts(
            np.zeros(3, np.int64), np.empty(0, np.int32), np.zeros(_ASKING, np.int32)
        )
        self._free(np.arange(len(self.columns.owner)))
        self._rebuild()

    @property
    def used(self) -> int:
        """The number of chunks."""
        return int(self.state.counts[0])

    @property
    def details(self) -> int:
        """The number of chunks that have detail."""
        return len(self.columns.owner) - int(self.state.counts[1])

    @property
    def detail_rows(self) -> int:
        """The number of rows of pages, used and free."""
        return len(self.columns.owner)

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
        begin, end = self.used, self.used + len(addresses)
        if end > len(self.columns.process):
            self._resize(max(2 * len(self.columns.process), end))
        self.columns.process[begin:end] = process
        self.columns.address[begin:end] = addresses
        self.state.counts[0] = end
        insert_chunks(begin, end, self.columns.process, self.columns.address, self.index)
        self.attach(np.arange(begin, min(end, begin + int(self.state.counts[1]))))
        self.version = next(_VERSIONS)

    def renew(self) -> None:
        """Note that counting has added chunks."""
        self.version = next(_VERSIONS)

    def grow(self) -> None:
        """Double the capacity."""
        self._resize(2 * len(self.columns.process))

    def remove(self, rows: Rows) -> None:
        """Remove these chunks; the last ones take their rows."""
        if not len(rows):
            return
        columns, used = self.columns, self.used
        details = columns.detail[rows]
        self._free(details[details >= 0])
        stays = np.ones(used, np.bool_)
        stays[rows] = False
        left = int(np.count_nonzero(stays))
        holes = np.flatnonzero(~stays[:left])
        movers = left + np.flatnonzero(stays[left:])
        blank = ChunkColumns.blank(1, 1)
        for column, empty in zip(columns.of_chunks, blank.of_chunks, strict=True):
            column[holes] = column[movers]
            column[left:used] = empty
        moved = columns.detail[holes]
        columns.owner[moved[moved >= 0]] = holes[moved >= 0]
        self.state.counts[0], self.state.counts[2] = left, 0
        if left < len(columns.process) // 4:
            self._resize(max(_LEAST_CHUNKS, len(columns.process) // 2))
        else:
            self._rebuild()
        self.version = self.order = next(_VERSIONS)

    def renumber(self, slots: npt.NDArray[np.int32]) -> None:
        """Give process ``p`` the slot ``slots[p]``; chunks of slot -1 are removed."""
        process = self.columns.process[: self.used]
        process[:] = slots[process] if len(slots) else -1
        gone = np.flatnonzero(process < 0)
        self.remove(gone)
        if not len(gone):
            self._rebuild()
        self.version = self.order = next(_VERSIONS)

    def attach(self, rows: Rows, tick: int = 0) -> None:
        """Give detail to chunks that have none; each page is taken to be as its chunk.

        There must be free rows of pages. Chunks of which not all pages are alike are to be swept.
        """
        columns, counts = self.columns, self.state.counts
        counts[1] -= len(rows)
        pages = self.state.free[counts[1] : counts[1] + len(rows)][::-1].copy()
        columns.detail[rows], columns.owner[pages], columns.since[pages] = pages, rows, tick
        whole = (columns.strays[rows] == 0) & (columns.resident[rows] == CHUNK_PAGES)
        spread = np.float32(1 / CHUNK_PAGES)
        columns.heat[pages] = (columns.heat_sum[rows] * spread)[:, None]
        columns.recent[pages] = (columns.recent_sum[rows] * spread)[:, None]
        columns.exposure[pages] = columns.exposed[rows, None]
        columns.node[pages] = np.where(whole, columns.code[rows], ABSENT)[:, None]
        columns.wear[pages] = columns.worn[rows, None]
        columns.idle[pages] = columns.rested[rows, None]
        columns.resident[rows[~whole]] = 0
        columns.swept[rows[~whole]] = 0
        self.version = next(_VERSIONS)

    def ask(self, rows: Rows) -> None:
        """Note that these chunks ask for detail, as far as there is room to note it."""
        state = self.state
        some = rows[: len(state.asking) - int(state.counts[2])]
        state.asking[state.counts[2] : state.counts[2] + len(some)] = some
        state.counts[2] += len(some)

    def detach(self, rows: Rows) -> None:
        """Count chunks that have detail as a whole from now on."""
        columns = self.columns
        pages = columns.detail[rows]
        columns.exposed[rows] = columns.exposure[pages].mean(axis=1).astype(np.uint8)
        columns.worn[rows] = columns.wear[pages].max(axis=1)
        columns.rested[rows] = columns.idle[pages].min(axis=1)
        self.place(rows, columns.node[pages])
        columns.groups[rows], columns.probes[rows], columns.hit[rows] = 0, 0, GROUPS
        columns.detail[rows] = -1
        self._free(pages)
        self.version = next(_VERSIONS)

    def bound_details(self, most: int) -> None:
        """Have at most so many rows of pages from now on; no more than that may be in use.

        Rows beyond it are freed, or as many are added as chunks can use, unless they are few:
        column by column, so that no more than one is there twice.
        """
        self._details_most = max(most, 1)
        before, count = self.detail_rows, self._details(len(self.columns.process))
        if before <= count <= before + before // 16:
            return
        used = np.flatnonzero(self.columns.owner >= 0)[:count]
        blank = ChunkColumns.blank(1, 1)
        names = ChunkColumns._fields[-len(blank.of_pages) :]
        for name, empty in zip(names, blank.of_pages, strict=True):
            column = np.repeat(empty, count, axis=0)
            column[: len(used)] = getattr(self.columns, name)[used]
            self.columns = self.columns._replace(**{name: column})
        owner = self.columns.owner[: len(used)]
        self.columns.detail[owner] = np.arange(len(used))
        self.state.counts[1] = 0
        self._free(np.arange(len(used), count))
        self.version = next(_VERSIONS)

    def place(self, rows: Rows, node: npt.NDArray[np.int8]) -> None:
        """Set where chunks that are counted as a whole lie; ``node`` has shape ``(k, 512)``."""
        columns = self.columns
        code, resident = np.empty(len(rows), np.int8), np.empty(len(rows), np.int16)
        strays = np.empty(len(rows), np.int16)
        summarise(np.ascontiguousarray(node), code, resident, strays)
        columns.code[rows], columns.resident[rows] = code, resident
        columns.strays[rows] = strays

    def _details(self, capacity: int) -> int:
        return min(capacity, self._details_most)

    def _free(self, pages: Rows) -> None:
        """Take back rows of pages, blank."""
        columns, counts = self.columns, self.state.counts
        blank = ChunkColumns.blank(1, 1)
        for column, empty in zip(columns.of_pages, blank.of_pages, strict=True):
            column[pages] = empty
        free = np.concatenate([self.state.free[: counts[1]], pages]).astype(np.int32)
        counts[1] = len(free)
        # The lowest row is the next.
        self.state = self.state._replace(free=_padded(np.sort(free)[::-1], len(columns.owner)))

    def _resize(self, capacity: int) -> None:
        """Change the capacity; rows of pages, once there, remain."""
        old = self.columns
        before = len(old.owner)
        new = ChunkColumns.blank(capacity, max(self._details(capacity), before))
        for column, larger in zip(old.of_chunks, new.of_chunks, strict=True):
            larger[: self.used] = column[: self.used]
        if len(new.owner) > before:
            for column, larger in zip(old.of_pages, new.of_pages, strict=True):
                larger[:before] = column
            self.columns = new
            self._free(np.arange(before, len(new.owner)))
        else:
            self.columns = ChunkColumns(*new.of_chunks, *old.of_pages)  # type: ignore[arg-type]
        self._rebuild()
        self.version = next(_VERSIONS)

    def _rebuild(self) -> None:
        # At most half full, for every number of chunks up to the capacity.
        size = 2 * (1 << (len(self.columns.process) - 1).bit_length())
        self.index = ChunkIndex.empty(size)
        if self.used:
            insert_chunks(0, self.used, self.columns.process, self.columns.address, self.index)


def _padded(rows: npt.NDArray[np.int32], length: int) -> npt.NDArray[np.int32]:
    """Return rows with room for ``length`` of them."""
    padded = np.zeros(length, np.int32)
    padded[: len(rows)] = rows
    return padded
