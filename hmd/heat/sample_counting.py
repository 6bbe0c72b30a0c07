"""Counting of samples: the kernel that adds a batch to the table, and its index of chunks.

Chunks are found by a hash of process slot and chunk number. Consecutive samples of one chunk need
one probe. A sample costs about 10 ns.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from hmd.heat.chunk_columns import ChunkColumns, ChunkCounts, ChunkIndex
from hmd.heat.geometry import ABSENT, CHUNK_PAGES, FIXED, GROUP_PAGES, GROUPS
from hmd.heat.kernels import (
    Float32Plane,
    Float32s,
    Float64Plane,
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
# Samples of a chunk without detail after which it is known how many of its parts they hit. Of
# uniform samples, 32 hit 25 of 64 parts on average and 128 hit 55, with a standard deviation of 2:
# fewer than this many show that its pages differ. The first few show it where some parts have most
# of the samples, all of them where a third of the parts has.
_FIRST_PROBES: Final = 32
_FIRST_HIT_LEAST: Final = 19
_PROBES: Final = 128
_HIT_LEAST: Final = 47
# Fibonacci hashing (Knuth, TAOCP 3, 6.4): 2**64 over the golden ratio.
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


class SampleWeights(NamedTuple):
    """What samples count for.

    ``kind_weight``, shape ``(processes, KINDS)``, multiplies the period of a sample.
    ``most``, shape ``(processes,)``, bounds what a sample counts for.
    ``latency_ns`` is the idle latency of each node; empty if samples have no latencies.
    """

    kind_weight: Float32Plane
    most: Float32s
    latency_ns: Float32s


class SampleSums(NamedTuple):
    """What a batch adds up to.

    ``ignored`` is the number of samples ignored so far, shape ``(1,)``.
    ``weights`` has a row per process: samples, sum of their weights, sum of the squares.
    ``waits`` has a row per node: loads that waited for it, and the sum of their latencies in ns.
    """

    ignored: Int64s
    weights: Float64Plane
    waits: Float64Plane


class CountedSamples(NamedTuple):
    """What is known of each sample after it was counted; shape ``(samples,)``.

    ``node`` of its page as :func:`find_nodes` has it, -1 before; ``weight`` that it counts for, 0
    before.
    """

    node: Int16s
    weight: Float32s


@inline
def _find(keys: Int64s, key: np.int64) -> np.int64:
    """Return the position of ``key``, or the free position where it belongs."""
    mask = len(keys) - 1
    # The highest bits: neighbours lie apart.
    high = (np.uint64(key) * _GOLDEN) >> np.uint64(32)
    position = np.int64((high * np.uint64(len(keys))) >> np.uint64(32))
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


@inline
def _parts_hit(groups: np.uint64) -> int:
    """Return how many bits are set."""
    hit = 0
    for bit in range(GROUPS):
        hit += int((groups >> np.uint64(bit)) & np.uint64(1))
    return hit


@kernel
def insert_chunks(
    begin: int, end: int, process: Int32s, address: Uint64s, index: ChunkIndex
) -> None:
    """Add the chunks of some rows to an index, which must have more positions than chunks."""
    keys, rows = index.keys, index.rows
    for chunk in range(begin, end):
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
    columns: ChunkColumns,
    found: Int16s,
) -> None:
    """Set ``found`` to the node of each address's page, -1 where it is not known.

    Pages of a chunk that is counted as a whole are taken to lie where most of them do.
    """
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
            row = np.int64(columns.detail[chunk])
            code = np.int64(columns.node[row, page] if row >= 0 else columns.code[chunk])
            found[i] = FIXED - code if code <= FIXED else code


@kernel
def count_samples(
    begin: int,
    samples: tuple[Int32View, Uint64View, Uint8View, Uint32View, Uint32View],
    weights: SampleWeights,
    columns: ChunkColumns,
    index: ChunkIndex,
    state: ChunkCounts,
    sums: SampleSums,
    counted: CountedSamples,
) -> int:
    """Count samples from row ``begin`` on; returns the row that found no free chunk, or the end.

    ``samples`` are a batch's process, address, kind, period and latency in ns. A sample of no
    tracked process or no user address is ignored. A chunk that is not in the table is added, with
    no history, while ``columns`` has capacity, and with detail while rows of pages are free. A
    chunk with samples of a page that was absent is marked as never swept, and a sampled page is no
    longer idle. A chunk without detail asks for it when its samples show that its pages differ.
    """
    process, address, kind, period, weight_ns = samples
    kind_weight, most, latency_ns = weights
    keys, rows = index.keys, index.rows
    recent, recent_sum, node = columns.recent, columns.recent_sum, columns.node
    counts, free, asking = state
    groups, probes = columns.groups, columns.probes
    ignored, totals, waits = sums
    # First all rows, so that the processor looks up several at a time.
    found = np.full(len(address), -1, np.int32)
    end, last = len(address), np.int64(-1)
    chunk = np.int64(-1)
    for i in range(begin, len(address)):
        slot, where = np.int64(process[i]), address[i]
        if slot < 0 or slot >= len(totals) or where >> np.uint64(ADDRESS_BITS) or kind[i] >= KINDS:
            ignored[0] += 1
            continue
        number = np.int64(where >> np.uint64(CHUNK_SHIFT))
        key = (slot << NUMBER_BITS) | number
        if key != last:
            position = _find(keys, key)
            if keys[position] == _EMPTY:
                if counts[0] == len(columns.process):
                    end = i
                    break
                keys[position], rows[position] = key, counts[0]
                columns.process[counts[0]] = slot
                columns.address[counts[0]] = np.uint64(number) << np.uint64(CHUNK_SHIFT)
                if counts[1] > 0:
                    counts[1] -= 1
                    columns.detail[counts[0]] = free[counts[1]]
                    columns.owner[free[counts[1]]] = counts[0]
                counts[0] += 1
            chunk, last = np.int64(rows[position]), key
        found[i] = chunk
    for i in range(begin, end):
        chunk, slot = np.int64(found[i]), np.int64(process[i])
        if chunk < 0:
            continue
        detail = np.int64(columns.detail[chunk])
        page = np.int64(address[i] >> np.uint64(PAGE_SHIFT)) & (CHUNK_PAGES - 1)
        weight = np.float32(period[i]) * kind_weight[slot, kind[i]]
        code = np.int64(node[detail, page] if detail >= 0 else columns.code[chunk])
        counted.node[i] = FIXED - code if code <= FIXED else code
        if len(latency_ns) and kind[i] == _LOAD:
            weight *= _stall_share(weight_ns[i], code, latency_ns, waits)
        weight = min(weight, most[slot])
        counted.weight[i] = weight
        recent_sum[chunk] += weight
        totals[slot, 0] += 1.0
        totals[slot, 1] += weight
        totals[slot, 2] += np.float64(weight) * weight
        if detail < 0:
            if code == ABSENT:
                columns.swept[chunk] = 0
            columns.rested[chunk] = 0
            groups[chunk] |= np.uint64(1) << np.uint64(page // GROUP_PAGES)
            probes[chunk] += 1
            if probes[chunk] == _FIRST_PROBES or probes[chunk] == _PROBES:
                hit = _parts_hit(groups[chunk])
                last_probe = probes[chunk] == _PROBES
                differs = hit < (_HIT_LEAST if last_probe else _FIRST_HIT_LEAST)
                if differs or last_probe:
                    columns.hit[chunk], groups[chunk], probes[chunk] = hit, 0, 0
                if differs and not columns.huge[chunk] and counts[2] < len(asking):
                    asking[counts[2]] = chunk
                    counts[2] += 1
            continue
        # The first sample of a page in a window shows whether it was known to be there.
        if recent[detail, page] == 0.0 and code == ABSENT:
            columns.swept[chunk] = 0
        columns.idle[detail, page] = 0
        recent[detail, page] += weight
    return end
