"""Counting of samples: the kernel that adds a batch to the table, and its index of chunks.

Chunks are found by a hash of process slot and chunk number. Consecutive samples of one chunk need
one probe. A sample costs about 10 ns.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from hmd.heat.chunk_columns import ChunkColumns, ChunkIndex
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
# A load that took this share of its node's latency counts as one that waited for all of it.
_FULL_WAIT: Final = np.float32(0.9)
# A page that is only streamed is still hotter than one that is not accessed.
_LEAST_SHARE: Final = np.float32(1 / 32)
# Fibonacci hashing (Knuth, TAOCP 3, 6.4): 2**64 over the golden ratio.
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


class SampleWeights(NamedTuple):
    """What samples count for.

    ``kind_weight``, shape ``(processes, KINDS)``, multiplies the period of a sample.
    ``latency_ns`` is the idle latency of each node; empty if samples have no latencies.
    """

    kind_weight: Float32Plane
    latency_ns: Float32s


class SampleSums(NamedTuple):
    """What a batch adds up to.

    ``chunks`` is the number of chunks in use, and the number of samples ignored so far.
    ``weights`` has a row per process: samples, sum of their weights, sum of the squares.
    ``waits`` has a row per node: loads that waited for it, and the sum of their latencies in ns.
    """

    chunks: Int64s
    weights: Float64Plane
    waits: Float64Plane


@inline
def _find(keys: Int64s, key: np.int64) -> np.int64:
    """Return the position of ``key``, or the free position where it belongs."""
    mask = len(keys) - 1
    position = np.int64((np.uint64(key) * _GOLDEN) >> np.uint64(32)) & mask
    while keys[position] != key and keys[position] != _EMPTY:
        position = (position + 1) & mask
    return position


@inline
def _stall_share(
    weight_ns: np.uint32, node: np.int64, latency_ns: Float32s, waits: Float64Plane
) -> np.float32:
    """Return the share of its node's latency that a load waited: near 0 if it was prefetched.

    A load that waited for all of it is added to the node's ``waits``.
    """
    node = FIXED - node if node <= FIXED else node
    known = 0 <= node < len(latency_ns)
    share = np.float32(weight_ns) / latency_ns[node if known else 0]
    if known and share >= _FULL_WAIT:
        waits[node, 0] += 1.0
        waits[node, 1] += weight_ns
    return max(min(share, np.float32(1.0)), _LEAST_SHARE)


@kernel
def rebuild_index(process: Int32s, address: Uint64s, index: ChunkIndex) -> None:
    """Fill an index with all chunks; it must have more positions than there are chunks."""
    keys, rows = index.keys, index.rows
    keys[:] = _EMPTY
    for chunk in range(len(process)):
        number = np.int64(address[chunk] >> np.uint64(CHUNK_SHIFT))
        key = (np.int64(process[chunk]) << NUMBER_BITS) | number
        position = _find(keys, key)
        keys[position] = key
        rows[position] = chunk


@kernel
def find_chunks(process: int, addresses: Uint64View, index: ChunkIndex, found: Int32s) -> None:
    """Set ``found`` to the row of each address's chunk, -1 where there is none."""
    keys, rows = index.keys, index.rows
    for i in range(len(addresses)):
        number = np.int64(addresses[i] >> np.uint64(CHUNK_SHIFT))
        position = _find(keys, (np.int64(process) << NUMBER_BITS) | number)
        found[i] = -1 if keys[position] == _EMPTY else rows[position]


@kernel
def find_nodes(
    process: Int32View,
    address: Uint64View,
    index: ChunkIndex,
    node: Int8Plane,
    found: Int16s,
) -> None:
    """Set ``found`` to the node of each address's page, -1 where it is not known."""
    keys, rows = index.keys, index.rows
    chunk, last = np.int64(-1), np.int64(-1)
    for i in range(len(address)):
        number = np.int64(address[i] >> np.uint64(CHUNK_SHIFT))
        key = (np.int64(process[i]) << NUMBER_BITS) | number
        if key != last:
            position = _find(keys, key)
            chunk = np.int64(-1) if keys[position] == _EMPTY else np.int64(rows[position])
            last = key
        found[i] = -1
        if chunk >= 0:
            page = np.int64(address[i] >> np.uint64(PAGE_SHIFT)) & (CHUNK_PAGES - 1)
            code = np.int64(node[chunk, page])
            found[i] = FIXED - code if code <= FIXED else code


@kernel
def count_samples(
    begin: int,
    samples: tuple[Int32View, Uint64View, Uint8View, Uint32View, Uint32View],
    weights: SampleWeights,
    columns: ChunkColumns,
    index: ChunkIndex,
    sums: SampleSums,
) -> int:
    """Count samples from row ``begin`` on; returns the row that found no free chunk, or the end.

    ``samples`` are a batch's process, address, kind, period and latency in ns. A sample of no
    tracked process or no user address is ignored. A chunk that is not in the table is added, with
    no history, while ``columns`` has capacity. A chunk with samples of a page that was absent is
    marked as never swept, and a sampled page is no longer idle.
    """
    process, address, kind, period, weight_ns = samples
    kind_weight, latency_ns = weights
    keys, rows = index.keys, index.rows
    recent, recent_sum, node = columns.recent, columns.recent_sum, columns.node
    swept, idle = columns.swept, columns.idle
    used, totals, waits = sums
    chunk, last = -1, np.int64(-1)
    for i in range(begin, len(address)):
        slot, where = np.int64(process[i]), address[i]
        if slot < 0 or slot >= len(totals) or where >> np.uint64(ADDRESS_BITS) or kind[i] >= KINDS:
            used[1] += 1
            continue
        number = np.int64(where >> np.uint64(CHUNK_SHIFT))
        key = (slot << NUMBER_BITS) | number
        if key != last:
            position = _find(keys, key)
            if keys[position] == _EMPTY:
                if used[0] == len(columns.process):
                    return i
                keys[position], rows[position] = key, used[0]
                columns.process[used[0]] = slot
                columns.address[used[0]] = np.uint64(number) << np.uint64(CHUNK_SHIFT)
                used[0] += 1
            chunk, last = rows[position], key
        page = np.int64(where >> np.uint64(PAGE_SHIFT)) & (CHUNK_PAGES - 1)
        weight = np.float32(period[i]) * kind_weight[slot, kind[i]]
        if len(latency_ns) and kind[i] == _LOAD:
            weight *= _stall_share(weight_ns[i], np.int64(node[chunk, page]), latency_ns, waits)
        # The first sample of a page in a window shows whether it was known to be there.
        if recent[chunk, page] == 0.0 and node[chunk, page] == ABSENT:
            swept[chunk] = 0
        idle[chunk, page] = 0
        recent[chunk, page] += weight
        recent_sum[chunk] += weight
        totals[slot, 0] += 1.0
        totals[slot, 1] += weight
        totals[slot, 2] += np.float64(weight) * weight
    return len(address)
