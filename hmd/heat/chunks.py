"""Chunks of 2 MiB as columns that grow by doubling, and the index that finds them.

Rows are dense: a chunk that goes is replaced by the last one, so that a row number holds only
until chunks are added or removed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from hmd.heat.geometry import ABSENT, CHUNK_PAGES
from hmd.heat.idle_age import NEW
from hmd.heat.sample_counting import find_chunks, rebuild_index

_LEAST_CHUNKS = 64


@dataclass(slots=True)
class ChunkColumns:
    """The columns of all chunks; the first axis has shape ``(capacity,)``.

    By chunk: ``process`` slot, ``address`` of its start, whether it is one ``huge`` page, sums of
    ``heat`` and ``recent``, ``resident`` pages, and the tick after which it was last
    ``swept``, from 1 (0: not yet, or out of date).
    By page: ``heat`` is the weight of cooled samples, ``recent`` of those in the open window,
    ``exposure`` how much of the process's clock ``heat`` was counted over, in 1/255, ``node``
    where it is (see hmd.heat.geometry), ``wear`` what recent moves have left, ``idle`` for how long
    it was not sampled (see hmd.heat.idle_age).
    """

    process: npt.NDArray[np.int32]
    address: npt.NDArray[np.uint64]
    huge: npt.NDArray[np.bool_]
    heat_sum: npt.NDArray[np.float32]
    recent_sum: npt.NDArray[np.float32]
    resident: npt.NDArray[np.int16]
    swept: npt.NDArray[np.int64]
    heat: npt.NDArray[np.float32]
    recent: npt.NDArray[np.float32]
    exposure: npt.NDArray[np.uint8]
    node: npt.NDArray[np.int8]
    wear: npt.NDArray[np.uint8]
    idle: npt.NDArray[np.uint8]

    @classmethod
    def blank(cls, capacity: int) -> ChunkColumns:
        """Return columns of chunks without heat or pages."""
        pages = (capacity, CHUNK_PAGES)
        return cls(
            process=np.zeros(capacity, np.int32),
            address=np.zeros(capacity, np.uint64),
            huge=np.zeros(capacity, np.bool_),
            heat_sum=np.zeros(capacity, np.float32),
            recent_sum=np.zeros(capacity, np.float32),
            resident=np.zeros(capacity, np.int16),
            swept=np.zeros(capacity, np.int64),
            heat=np.zeros(pages, np.float32),
            recent=np.zeros(pages, np.float32),
            exposure=np.zeros(pages, np.uint8),
            node=np.full(pages, ABSENT, np.int8),
            wear=np.zeros(pages, np.uint8),
            idle=np.full(pages, NEW, np.uint8),
        )


class Chunks:
    """The chunks of all processes: ``columns`` up to row ``used``.

    ``keys`` and ``places`` are the index that :mod:`hmd.heat.sample_counting` reads.
    """

    def __init__(self) -> None:
        self.used = 0
        self.columns = ChunkColumns.blank(_LEAST_CHUNKS)
        self._rebuild()

    @property
    def nbytes(self) -> int:
        """Bytes of all columns and of the index."""
        columns = sum(getattr(self.columns, f.name).nbytes for f in fields(ChunkColumns))
        return int(columns) + self.keys.nbytes + self.places.nbytes

    def find(self, process: int, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
        """Return the row of each address's chunk, -1 where there is none."""
        found = np.empty(len(addresses), np.int32)
        find_chunks(process, addresses, self.keys, self.places, found)
        return found

    def add(self, process: int, addresses: npt.NDArray[np.uint64]) -> None:
        """Make chunks at these starts; they must be new and different."""
        end = self.used + len(addresses)
        while end > len(self.columns.process):
            self._resize(2 * len(self.columns.process))
        self.columns.process[self.used : end] = process
        self.columns.address[self.used : end] = addresses
        self.used = end
        self._rebuild()

    def grow(self) -> None:
        """Double the room."""
        self._resize(2 * len(self.columns.process))
        self._rebuild()

    def remove(self, rows: npt.NDArray[np.integer]) -> None:
        """Drop these chunks; the last ones take their rows."""
        stays = np.ones(self.used, np.bool_)
        stays[rows] = False
        left = int(np.count_nonzero(stays))
        holes = np.flatnonzero(~stays[:left])
        movers = left + np.flatnonzero(stays[left:])
        blank = ChunkColumns.blank(1)
        for field in fields(ChunkColumns):
            column = getattr(self.columns, field.name)
            column[holes] = column[movers]
            column[left : self.used] = getattr(blank, field.name)
        self.used = left
        if left < len(self.columns.process) // 4:
            self._resize(max(_LEAST_CHUNKS, len(self.columns.process) // 2))
        self._rebuild()

    def renumber(self, slots: npt.NDArray[np.int32]) -> None:
        """Give process ``p`` the slot ``slots[p]``; chunks of slot -1 are dropped."""
        process = self.columns.process[: self.used]
        process[:] = slots[process] if len(slots) else -1
        self.remove(np.flatnonzero(process < 0))

    def _resize(self, capacity: int) -> None:
        larger = ChunkColumns.blank(capacity)
        for field in fields(ChunkColumns):
            getattr(larger, field.name)[: self.used] = getattr(self.columns, field.name)[
                : self.used
            ]
        self.columns = larger

    def _rebuild(self) -> None:
        # At most half full, for every number of chunks up to the capacity.
        size = 2 * (1 << (len(self.columns.process) - 1).bit_length())
        self.keys = np.empty(size, np.int64)
        self.places = np.empty(size, np.int32)
        rebuild_index(self.used, self.columns.process, self.columns.address, self.keys, self.places)
