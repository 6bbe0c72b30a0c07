"""Counting of samples: the kernel that adds a batch to the table.

Consecutive samples of one chunk need one look-up in the index of chunks. Samples are counted in
the order of their chunks' rows, of neighbours together: of a large table each would wait for a
dozen lines of the cache, which neighbours share. A sample costs about 10 ns where all is in the
cache, 100 ns at 1 TiB.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from hmd.heat.chunk_columns import ChunkColumns, ChunkCounts, ChunkIndex
from hmd.heat.chunk_index import (
    ADDRESS_BITS,
    CHUNK_SHIFT,
    EMPTY,
    NUMBER_BITS,
    PAGE_SHIFT,
    find_position,
    first_position,
)
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
    Uint64View,
    inline,
    kernel,
)

_PAGE_BITS: Final = CHUNK_SHIFT - PAGE_SHIFT
#: Kinds of access are below this (hmd.sample.access_batch.Kind).
KINDS: Final = 3
LOAD: Final = 0
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
# Samples whose places are read before they are looked up.
_AHEAD: Final = 64
# Samples are ordered by their rows in so many groups, whose counts stay in the first-level cache.
_ROW_GROUPS: Final = 1 << 12


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
    ``weights`` has a row per process: samples, sum of their weights, sum of the squares, and sum of
    the weights without bound.
    ``waits`` has a row per node: loads that waited for it, and the sum of their latencies in ns.
    """

    ignored: Int64s
    weights: Float64Plane
    waits: Float64Plane


class CountedSamples(NamedTuple):
    """What is known of each sample after it was counted; shape ``(samples,)``.

    ``node`` of its page as :func:`hmd.heat.chunk_index.find_nodes` has it, -1 before; ``weight``
    that it counts for, 0 before.
    """

    node: Int16s
    weight: Float32s


@inline
def waited_share(weight_ns: np.uint32, node: np.int64, latency_ns: Float32s) -> np.float32:
    """Return the latency of a load as a share of that of its node, or of node 0 if none is known.

    ``node`` is as the table has it: -1 where it is not known, at or below ``FIXED`` for pages that
    do not move.
    """
    node = FIXED - node if node <= FIXED else node
    known = 0 <= node < len(latency_ns)
    return np.float32(np.float32(weight_ns) / latency_ns[node if known else 0])


@inline
def stall_share(waited: np.float32) -> np.float32:
    """Return what a load counts for by its share of the latency: little if it was prefetched."""
    return max(min(waited, np.float32(1.0)), _LEAST_SHARE)


@inline
def _parts_hit(groups: np.uint64) -> int:
    """Return how many bits are set."""
    hit = 0
    for bit in range(GROUPS):
        hit += int((groups >> np.uint64(bit)) & np.uint64(1))
    return hit


@inline
def _order(page: Int64s, chunks: np.int64, order: Int32s) -> np.int64:
    """Fill ``order`` with the samples whose page is known, by groups of neighbouring chunks.

    ``page`` is the page's position in the chunk, and 512 times the chunk's row. Those of a group
    stay in their order. Returns how many there are.
    """
    shift = np.int64(_PAGE_BITS)
    while chunks >> (shift - _PAGE_BITS) > _ROW_GROUPS:
        shift += 1
    ends = np.zeros((chunks >> (shift - _PAGE_BITS)) + 2, np.int32)
    for i in range(len(page)):
        if page[i] >= 0:
            ends[(page[i] >> shift) + 1] += 1
    for group in range(len(ends) - 1):
        ends[group + 1] += ends[group]
    for i in range(len(page)):
        if page[i] >= 0:
            group = page[i] >> shift
            order[ends[group]] = i
            ends[group] += 1
    return np.int64(ends[-1])


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
    places, (counts, free, asking) = index.places, state
    groups, probes = columns.groups, columns.probes
    recent, recent_sum, node = columns.recent, columns.recent_sum, columns.node
    ignored, totals, waits = sums
    pages, ahead = np.full(len(address), -1, np.int64), np.empty(_AHEAD, np.int64)
    end, last = len(address), np.int64(-1)
    chunk = np.int64(-1)
    for i in range(begin, len(address)):
        if (i - begin) % _AHEAD == 0:
            # Reads the next ones without a branch, so that the processor waits for many at a time.
            for j in range(i, min(i + _AHEAD, len(address))):
                number = np.int64(address[j] >> np.uint64(CHUNK_SHIFT))
                key = (np.int64(process[j]) << NUMBER_BITS) | number
                ahead[j - i] = places[first_position(places, key)]
        slot, where = np.int64(process[i]), address[i]
        if slot < 0 or slot >= len(totals) or where >> np.uint64(ADDRESS_BITS) or kind[i] >= KINDS:
            ignored[0] += 1
            continue
        number = np.int64(where >> np.uint64(CHUNK_SHIFT))
        key = (slot << NUMBER_BITS) | number
        if key != last:
            at = find_position(places, key)
            if places[at] == EMPTY:
                if counts[0] == len(columns.process):
                    end = i
                    break
                places[at], places[at + 1] = key, counts[0]
                columns.process[counts[0]] = slot
                columns.address[counts[0]] = np.uint64(number) << np.uint64(CHUNK_SHIFT)
                if counts[1] > 0:
                    counts[1] -= 1
                    columns.detail[counts[0]] = free[counts[1]]
                    columns.owner[free[counts[1]]] = counts[0]
                counts[0] += 1
            chunk, last = places[at + 1], key
        page = np.int64(where >> np.uint64(PAGE_SHIFT)) & (CHUNK_PAGES - 1)
        pages[i] = (chunk << _PAGE_BITS) | page
        counted.weight[i] = np.float32(period[i]) * kind_weight[slot, kind[i]]
    order = np.empty(len(address), np.int32)
    for rank in range(_order(pages, counts[0], order)):
        i = int(order[rank])
        chunk, page = pages[i] >> _PAGE_BITS, pages[i] & (CHUNK_PAGES - 1)
        slot, detail = np.int64(columns.process[chunk]), np.int64(columns.detail[chunk])
        weight = counted.weight[i]
        code = np.int64(node[detail, page] if detail >= 0 else columns.code[chunk])
        counted.node[i] = FIXED - code if code <= FIXED else code
        if len(latency_ns) and kind[i] == LOAD:
            waited = waited_share(weight_ns[i], code, latency_ns)
            on = counted.node[i]
            if waited >= _FULL_WAIT and 0 <= on < len(latency_ns):
                waits[on, 0] += 1.0
                waits[on, 1] += weight_ns[i]
            weight *= stall_share(waited)
        totals[slot, 3] += weight
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
