"""Samples into the table: a hash of chunks, and the kernel that counts a batch.

Chunks are found by open addressing with linear probing on (process slot, chunk number); samples
of one chunk in a row cost no probe. About 10 ns a sample.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.heat.geometry import ABSENT, CHUNK_PAGES, FIXED
from hmd.heat.kernels import (
    Float32Plane,
    Float32s,
    Float64Plane,
    Int8Plane,
    Int16s,
    Int32s,
    Int32View,
    Int64s,
    Uint8Plane,
    Uint8View,
    Uint32View,
    Uint64s,
    Uint64View,
    inline,
    kernel,
)

#: log2 of the bytes in a chunk and in a page.
CHUNK_SHIFT: Final = 21
PAGE_SHIFT: Final = 12
#: User addresses have at most 56 bits (five-level paging), so a chunk number has 35.
ADDRESS_BITS: Final = 56
NUMBER_BITS: Final = ADDRESS_BITS - CHUNK_SHIFT
#: Kinds of access are below this (hmd.sample.access_batch.Kind).
KINDS: Final = 3

_EMPTY: Final = -1
_LOAD: Final = 0
# Of a load that took this share of its node's latency, all of it was waited for.
_WHOLE: Final = np.float32(0.9)
# A page that is only streamed is still hotter than one that nobody uses.
_LEAST_SHARE: Final = np.float32(1 / 32)
# Fibonacci hashing (Knuth, TAOCP 3, 6.4): 2**64 over the golden ratio.
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


@inline
def _find(keys: npt.NDArray[np.int64], key: np.int64) -> np.int64:
    """Return the row of ``key``, or of the empty place where it belongs."""
    mask = len(keys) - 1
    row = np.int64((np.uint64(key) * _GOLDEN) >> np.uint64(32)) & mask
    while keys[row] != key and keys[row] != _EMPTY:
        row = (row + 1) & mask
    return row


@inline
def _stall_share(
    weight_ns: np.uint32,
    node: np.int64,
    latency_ns: npt.NDArray[np.float32],
    waits: npt.NDArray[np.float64],
) -> np.float32:
    """Return what a load of this latency counts for: one that was prefetched next to nothing.

    One that waited for all of it is added to the node's ``waits``.
    """
    node = FIXED - node if node <= FIXED else node
    known = 0 <= node < len(latency_ns)
    share = np.float32(weight_ns) / latency_ns[node if known else 0]
    if known and share >= _WHOLE:
        waits[node, 0] += 1.0
        waits[node, 1] += weight_ns
    return max(min(share, np.float32(1.0)), _LEAST_SHARE)


@kernel
def rebuild_index(
    chunks: int,
    chunk_process: Int32s,
    chunk_address: Uint64s,
    keys: Int64s,
    places: Int32s,
) -> None:
    """Fill an index, whose length is a power of two above ``chunks``, with all chunks."""
    keys[:] = _EMPTY
    for chunk in range(chunks):
        number = np.int64(chunk_address[chunk] >> np.uint64(CHUNK_SHIFT))
        key = (np.int64(chunk_process[chunk]) << NUMBER_BITS) | number
        row = _find(keys, key)
        keys[row] = key
        places[row] = chunk


@kernel
def find_chunks(
    process: int,
    addresses: Uint64View,
    keys: Int64s,
    places: Int32s,
    found: Int32s,
) -> None:
    """Put the chunk of each address into ``found``, -1 where there is none."""
    for i in range(len(addresses)):
        number = np.int64(addresses[i] >> np.uint64(CHUNK_SHIFT))
        row = _find(keys, (np.int64(process) << NUMBER_BITS) | number)
        found[i] = -1 if keys[row] == _EMPTY else places[row]


@kernel
def find_nodes(
    process: Int32View,
    address: Uint64View,
    keys: Int64s,
    places: Int32s,
    node: Int8Plane,
    found: Int16s,
) -> None:
    """Put the node of each address's page into ``found``, -1 where it is not known."""
    chunk, last = np.int64(-1), np.int64(-1)
    for i in range(len(address)):
        number = np.int64(address[i] >> np.uint64(CHUNK_SHIFT))
        key = (np.int64(process[i]) << NUMBER_BITS) | number
        if key != last:
            row = _find(keys, key)
            chunk = np.int64(-1) if keys[row] == _EMPTY else np.int64(places[row])
            last = key
        found[i] = -1
        if chunk >= 0:
            where = np.int64(
                node[chunk, np.int64(address[i] >> np.uint64(PAGE_SHIFT)) & (CHUNK_PAGES - 1)]
            )
            found[i] = FIXED - where if where <= FIXED else where


@kernel
def scatter(
    begin: int,
    process: Int32View,
    address: Uint64View,
    kind: Uint8View,
    period: Uint32View,
    weight_ns: Uint32View,
    kind_weight: Float32Plane,
    latency_ns: Float32s,
    keys: Int64s,
    places: Int32s,
    used: Int64s,
    chunk_process: Int32s,
    chunk_address: Uint64s,
    recent: Float32Plane,
    chunk_recent: Float32s,
    node: Int8Plane,
    swept: Int64s,
    idle: Uint8Plane,
    sums: Float64Plane,
    waits: Float64Plane,
) -> int:
    """Count samples from row ``begin`` on; returns the row that found no room, or the end.

    A chunk that is not there yet is made, with no history, while ``chunk_process`` has room;
    ``used[0]`` is how many chunks there are, ``used[1]`` counts rows of no tracked process or
    user address. A chunk with samples of a page that was not there is marked as never swept.
    A sampled page is no longer ``idle``. A load counts for the part of its node's ``latency_ns``
    that it took, by node, where that is not empty. ``sums`` has a row a process: samples, their
    weights, the weights squared; ``waits`` a row a node: loads that waited for it, and their ns.
    """
    chunk, last = -1, np.int64(-1)
    for i in range(begin, len(address)):
        slot, where = np.int64(process[i]), address[i]
        if slot < 0 or slot >= len(sums) or where >> np.uint64(ADDRESS_BITS) or kind[i] >= KINDS:
            used[1] += 1
            continue
        number = np.int64(where >> np.uint64(CHUNK_SHIFT))
        key = (slot << NUMBER_BITS) | number
        if key != last:
            row = _find(keys, key)
            if keys[row] == _EMPTY:
                if used[0] == len(chunk_process):
                    return i
                keys[row], places[row] = key, used[0]
                chunk_process[used[0]] = slot
                chunk_address[used[0]] = np.uint64(number) << np.uint64(CHUNK_SHIFT)
                used[0] += 1
            chunk, last = places[row], key
        page = np.int64(where >> np.uint64(PAGE_SHIFT)) & (CHUNK_PAGES - 1)
        weight = np.float32(period[i]) * kind_weight[slot, kind[i]]
        if len(latency_ns) and kind[i] == _LOAD:
            weight *= _stall_share(weight_ns[i], np.int64(node[chunk, page]), latency_ns, waits)
        # The first sample of a page in a window shows whether it was known to be there.
        if recent[chunk, page] == 0.0 and node[chunk, page] == ABSENT:
            swept[chunk] = 0
        idle[chunk, page] = 0
        recent[chunk, page] += weight
        chunk_recent[chunk] += weight
        sums[slot, 0] += 1.0
        sums[slot, 1] += weight
        sums[slot, 2] += np.float64(weight) * weight
    return len(address)
