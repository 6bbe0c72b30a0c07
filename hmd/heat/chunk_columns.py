"""The columns of the heat table, as its kernels take them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmd.heat.geometry import ABSENT, CHUNK_PAGES
from hmd.heat.idle_age import NEW
from hmd.heat.kernels import (
    Bools,
    Float32Plane,
    Float32s,
    Float64s,
    Int8Plane,
    Int16s,
    Int32s,
    Int64s,
    Uint8Plane,
    Uint64s,
)


class ChunkColumns(NamedTuple):
    """All chunks; the first axis has shape ``(capacity,)``.

    Per chunk: the slot of its ``process``, the ``address`` of its start, whether it is one
    ``huge`` page, the sums of ``heat`` and of ``recent``, the number of ``resident`` pages, and
    the tick after which it was last ``swept``, counted from 1 (0: never, or out of date).

    Per page, shape ``(capacity, 512)``: ``heat`` is the weight of cooled samples, ``recent`` the
    weight of those in the open window, ``exposure`` the part of the process's clock over which
    ``heat`` was counted, in 1/255, ``node`` the page's node as hmd.heat.geometry encodes it,
    ``wear`` what recent moves have added, ``idle`` the time since the last sample as
    hmd.heat.idle_age encodes it.
    """

    process: Int32s
    address: Uint64s
    huge: Bools
    heat_sum: Float32s
    recent_sum: Float32s
    resident: Int16s
    swept: Int64s
    heat: Float32Plane
    recent: Float32Plane
    exposure: Uint8Plane
    node: Int8Plane
    wear: Uint8Plane
    idle: Uint8Plane

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


class ChunkIndex(NamedTuple):
    """A hash index from chunks to their rows: open addressing, linear probing.

    ``keys`` are numbers of process slot and chunk, below 0 where free; ``rows`` are rows of
    :class:`ChunkColumns`. Their length is a power of two.
    """

    keys: Int64s
    rows: Int32s


class WindowClocks(NamedTuple):
    """What each process's samples add up to; shape ``(processes,)``.

    ``clock`` is the cooled weight of all samples before the open window, ``window`` the weight of
    the samples in it, ``unit`` the weight of one sample.
    """

    clock: Float64s
    window: Float64s
    unit: Float64s
