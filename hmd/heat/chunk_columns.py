"""The columns of the heat table, as its kernels take them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.heat.geometry import ABSENT, CHUNK_PAGES, GROUPS
from hmd.heat.idle_age import NEW
from hmd.heat.kernels import (
    Bools,
    Float32Plane,
    Float32s,
    Float64s,
    Int8Plane,
    Int8s,
    Int16s,
    Int32s,
    Int64s,
    Uint8Plane,
    Uint8s,
    Uint64s,
)


class ChunkColumns(NamedTuple):
    """All chunks, and the pages of those that have detail.

    Per chunk, shape ``(capacity,)``: the slot of its ``process``, the ``address`` of its start,
    whether it is one ``huge`` page, the sums of ``heat`` and of ``recent`` over its pages, the
    number of ``resident`` pages, the tick after which it was last ``swept``, counted from 1 (0:
    never, or out of date), and ``detail``, the row of its pages, -1 where it is counted as a whole.

    Per chunk that is counted as a whole: ``exposed``, ``code``, ``worn`` and ``rested`` are what
    ``exposure``, ``node``, ``wear`` and ``idle`` are per page; ``strays`` are the resident pages
    whose code is not ``code``. ``probes`` samples have hit the parts in the bits of ``groups``;
    ``hit`` is how many parts the last full probe hit (hmd.heat.sample_counting).

    Per row of pages, shape ``(details,)``: the chunk that is its ``owner``, -1 if it is free, and
    the tick ``since`` which it has been; shape ``(details, 512)``: ``heat`` is the weight of cooled
    samples, ``recent`` the weight of those in the open window, ``exposure`` the part of the
    process's clock over which ``heat`` was counted, in 1/255, ``node`` the page's node as
    hmd.heat.geometry encodes it, ``wear`` what recent moves have added, ``idle`` the time since the
    last sample as hmd.heat.idle_age encodes it.
    """

    process: Int32s
    address: Uint64s
    huge: Bools
    heat_sum: Float32s
    recent_sum: Float32s
    resident: Int16s
    swept: Int32s
    detail: Int32s
    exposed: Uint8s
    code: Int8s
    worn: Uint8s
    rested: Uint8s
    strays: Int16s
    groups: Uint64s
    probes: Uint8s
    hit: Uint8s
    owner: Int32s
    since: Int32s
    heat: Float32Plane
    recent: Float32Plane
    exposure: Uint8Plane
    node: Int8Plane
    wear: Uint8Plane
    idle: Uint8Plane

    @classmethod
    def blank(cls, capacity: int, details: int) -> ChunkColumns:
        """Return columns of chunks without heat or pages."""
        pages = (details, CHUNK_PAGES)
        return cls(
            process=np.zeros(capacity, np.int32),
            address=np.zeros(capacity, np.uint64),
            huge=np.zeros(capacity, np.bool_),
            heat_sum=np.zeros(capacity, np.float32),
            recent_sum=np.zeros(capacity, np.float32),
            resident=np.zeros(capacity, np.int16),
            swept=np.zeros(capacity, np.int32),
            detail=np.full(capacity, -1, np.int32),
            exposed=np.zeros(capacity, np.uint8),
            code=np.full(capacity, ABSENT, np.int8),
            worn=np.zeros(capacity, np.uint8),
            rested=np.full(capacity, NEW, np.uint8),
            strays=np.zeros(capacity, np.int16),
            groups=np.zeros(capacity, np.uint64),
            probes=np.zeros(capacity, np.uint8),
            hit=np.full(capacity, GROUPS, np.uint8),
            owner=np.full(details, -1, np.int32),
            since=np.zeros(details, np.int32),
            heat=np.zeros(pages, np.float32),
            recent=np.zeros(pages, np.float32),
            exposure=np.zeros(pages, np.uint8),
            node=np.full(pages, ABSENT, np.int8),
            wear=np.zeros(pages, np.uint8),
            idle=np.full(pages, NEW, np.uint8),
        )

    @property
    def of_chunks(self) -> tuple[npt.NDArray[np.generic], ...]:
        """The columns per chunk."""
        return self[: self._fields.index("owner")]

    @property
    def of_pages(self) -> tuple[npt.NDArray[np.generic], ...]:
        """The columns per row of pages."""
        return self[self._fields.index("owner") :]


class ChunkIndex(NamedTuple):
    """A hash index from chunks to their rows: open addressing, linear probing.

    ``places`` has a key and a row of :class:`ChunkColumns` in turn, so that a look-up needs one
    line of the cache. Keys are numbers of process slot and chunk, below 0 where free. The number of
    keys is a power of two.
    """

    places: Int64s

    @classmethod
    def empty(cls, size: int) -> ChunkIndex:
        """Return an index of so many positions."""
        return cls(np.full(2 * size, -1, np.int64))


class ChunkCounts(NamedTuple):
    """How the rows of a table are used.

    ``counts`` has the number of chunks, of free rows of pages and of chunks that ask for one.
    ``free`` are the free rows of pages, the next one last; ``asking`` are chunks.
    """

    counts: Int64s
    free: Int32s
    asking: Int32s


class WindowClocks(NamedTuple):
    """What each process's samples add up to; shape ``(processes,)``.

    ``clock`` is the cooled weight of all samples before the open window, ``window`` the weight of
    the samples in it, ``unit`` the weight of one sample.
    """

    clock: Float64s
    window: Float64s
    unit: Float64s


class TableRates(NamedTuple):
    """How hot pages are, where the table keeps them.

    ``page_rate`` and ``page_support`` have shape ``(details, 512)``, ``chunk_rate`` and
    ``chunk_support`` shape ``(chunks,)``: for chunks that are one row of a view. Units are those of
    :class:`hmd.heat.view.page_columns.PageRates`.
    """

    page_rate: Float32Plane
    page_support: Float32Plane
    chunk_rate: Float32s
    chunk_support: Float32s
