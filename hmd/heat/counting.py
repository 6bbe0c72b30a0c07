# SPDX-License-Identifier: MIT
"""Counting of samples: the kernel that adds a batch to the table.

Consecutive samples of one chunk need one look-up in the index of chunks. Samples are counted in
the order of their chunks' rows, of neighbours together: of a large table each would wait for a
dozen lines of the cache, which neighbours share. A sample costs about 10 ns where all is in the
cache, 100 ns at 1 TiB.

A sample weighs as many accesses as it stands for: its period, times the weight of its kind and, for
a load whose latency was measured, the share of the idle latency that it took: the stall, not the
access. A page that the prefetcher streams is then colder than one whose misses stall.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import (
    Float32Plane,
    Float32s,
    Float64Plane,
    Float64s,
    Int16s,
    Int32s,
    Int32View,
    Int64s,
    Uint8View,
    Uint16s,
    Uint32View,
    Uint64View,
    inline,
    kernel,
)
from hmd.base.units import PAGE_SHIFT
from hmd.heat.chunks import (
    ADDRESS_BITS,
    CHUNK_SHIFT,
    EMPTY,
    ChunkColumns,
    ChunkCounts,
    ChunkIndex,
    chunk_key,
    find_position,
    first_position,
    node_of,
    page_in_chunk,
)
from hmd.heat.settings import ABSENT, CHUNK_PAGES, PROBE_PART_PAGES, PROBE_PARTS
from hmd.sample.access_batch import AccessBatch, Kind

_PAGE_BITS: Final = CHUNK_SHIFT - PAGE_SHIFT
KINDS: Final = len(Kind)
LOAD: Final = int(Kind.LOAD)
# A load that took this share of its node's latency counts as one that waited for all of it.
_FULL_WAIT: Final = np.float32(0.9)
# A page that is only streamed is still hotter than one that is not accessed.
_MIN_STALL: Final = np.float32(1 / 32)
_ONE: Final = np.float32(1.0)
# Samples of a coarse chunk after which it is known how many of its parts they hit. Of uniform
# samples, 32 hit 25 of 64 parts on average and 128 hit 55, with a standard deviation of 2: fewer
# than this many show that its pages differ. The first few show it where some parts have most of the
# samples, all of them where a third of the parts has.
_FIRST_PROBES: Final = 32
_FIRST_MIN_HITS: Final = 19
_PROBES: Final = 128
_MIN_HITS: Final = 47
# Samples whose index entries are read before they are looked up.
_READ_AHEAD: Final = 64
# Samples are ordered by their rows in so many groups, whose counts stay in the first-level cache.
_ROW_GROUPS: Final = 1 << 12


class SampleWeights(NamedTuple):
    """What samples weigh.

    ``kind_weight``, shape ``(processes, KINDS)``, multiplies the period of a sample.
    ``max_weight``, shape ``(processes,)``, bounds what a sample weighs.
    ``idle_ns`` is the idle latency of each node; empty if samples have no latencies.
    """

    kind_weight: Float32Plane
    max_weight: Float32s
    idle_ns: Float32s


class SampleSums(NamedTuple):
    """What a batch adds up to.

    ``ignored``, shape ``(1,)``, counts ignored samples. ``weights`` has a row per process: samples,
    sum of their weights, of the squares, and of the weights without bound. ``waits`` has a row per
    node: loads that waited for it, and the sum of their latencies in ns.
    """

    ignored: Int64s
    weights: Float64Plane
    waits: Float64Plane


class CountedSamples(NamedTuple):
    """What is known of each sample after it was counted; shape ``(samples,)``.

    ``node`` of its page as :func:`hmd.heat.chunks.find_nodes` has it, -1 before; ``weight``
    that it counts for, 0 before.
    """

    node: Int16s
    weight: Float32s


@inline
def waited_share(
    kind: np.uint8, latency_ns: np.uint32, node: np.int64, idle_ns: Float32s
) -> np.float32:
    """Return the latency of a load as a share of that of its node, 1 where it was not measured.

    The idle latency of node 0 stands for that of an unknown one.
    """
    if kind != LOAD or len(idle_ns) == 0:
        return _ONE
    return np.float32(np.float32(latency_ns) / idle_ns[node if 0 <= node < len(idle_ns) else 0])


@inline
def sampled_accesses(period: np.uint32, kind_weight: np.float32) -> np.float32:
    """Return how many accesses a sample stands for."""
    return np.float32(period) * kind_weight


@inline
def stall_share(waited: np.float32) -> np.float32:
    """Return the share of its accesses that a sample weighs, by its :func:`waited_share`."""
    return max(min(waited, _ONE), _MIN_STALL)


@inline
def _count_bits(bitmap: np.uint64) -> int:
    bits = 0
    for bit in range(PROBE_PARTS):
        bits += int((bitmap >> np.uint64(bit)) & np.uint64(1))
    return bits


@inline
def _judge_probe(chunk: np.int64, columns: ChunkColumns, counts: Int64s, requests: Int32s) -> None:
    """Request a page slot if the samples of a coarse chunk show that its pages differ."""
    samples = columns.probe_samples[chunk]
    hits = _count_bits(columns.probe_bitmap[chunk])
    differs = hits < (_MIN_HITS if samples == _PROBES else _FIRST_MIN_HITS)
    if differs or samples == _PROBES:
        columns.last_probe_hits[chunk] = hits
        columns.probe_bitmap[chunk], columns.probe_samples[chunk] = 0, 0
    if differs and not columns.huge[chunk] and counts[2] < len(requests):
        requests[counts[2]] = chunk
        counts[2] += 1


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

    ``samples`` are a batch's process, address, kind, period and latency in ns. Those of no tracked
    process or no user address are ignored. A chunk that is not in the table is added, while
    ``columns`` has capacity, and with a page slot while one is free. A chunk with samples of a page
    that was absent is marked as never swept, and a sampled page is no longer idle. A coarse chunk
    requests a page slot when its samples show that its pages differ.
    """
    process, address, kind, period, latency_ns = samples
    entries, (counts, free, requests) = index.entries, state
    recent, recent_sum, node = columns.recent, columns.recent_sum, columns.node
    probe_bitmap, probe_samples = columns.probe_bitmap, columns.probe_samples
    ignored, totals, waits = sums
    pages, ahead = np.full(len(address), -1, np.int64), np.empty(_READ_AHEAD, np.int64)
    end, last = len(address), np.int64(-1)
    chunk = np.int64(-1)
    for i in range(begin, len(address)):
        if (i - begin) % _READ_AHEAD == 0:
            # Reads the next ones without a branch, so that the processor waits for many at a time.
            for j in range(i, min(i + _READ_AHEAD, len(address))):
                ahead[j - i] = entries[first_position(entries, chunk_key(process[j], address[j]))]
        slot, where = np.int64(process[i]), address[i]
        if slot < 0 or slot >= len(totals) or where >> np.uint64(ADDRESS_BITS) or kind[i] >= KINDS:
            ignored[0] += 1
            continue
        key = chunk_key(process[i], where)
        if key != last:
            at = find_position(entries, key)
            if entries[at] == EMPTY:
                if counts[0] == len(columns.process):
                    end = i
                    break
                entries[at], entries[at + 1] = key, counts[0]
                columns.process[counts[0]] = slot
                number = where >> np.uint64(CHUNK_SHIFT)
                columns.address[counts[0]] = number << np.uint64(CHUNK_SHIFT)
                if counts[1] > 0:
                    counts[1] -= 1
                    columns.page_slot[counts[0]] = free[counts[1]]
                    columns.owner[free[counts[1]]] = counts[0]
                counts[0] += 1
            chunk, last = entries[at + 1], key
        pages[i] = (chunk << _PAGE_BITS) | page_in_chunk(where)
        counted.weight[i] = sampled_accesses(period[i], weights.kind_weight[slot, kind[i]])
    order = np.empty(len(address), np.int32)
    for rank in range(_order(pages, counts[0], order)):
        i = int(order[rank])
        chunk, page = pages[i] >> _PAGE_BITS, pages[i] & (CHUNK_PAGES - 1)
        slot, page_slot = np.int64(columns.process[chunk]), np.int64(columns.page_slot[chunk])
        code = np.int64(node[page_slot, page] if page_slot >= 0 else columns.chunk_node[chunk])
        on = node_of(code)
        counted.node[i] = on
        weight = counted.weight[i]
        if len(weights.idle_ns):
            waited = waited_share(kind[i], latency_ns[i], on, weights.idle_ns)
            if waited >= _FULL_WAIT and kind[i] == LOAD and 0 <= on < len(weights.idle_ns):
                waits[on, 0] += 1.0
                waits[on, 1] += latency_ns[i]
            weight *= stall_share(waited)
        totals[slot, 3] += weight
        weight = min(weight, weights.max_weight[slot])
        counted.weight[i] = weight
        recent_sum[chunk] += weight
        totals[slot, 0] += 1.0
        totals[slot, 1] += weight
        totals[slot, 2] += np.float64(weight) * weight
        if page_slot < 0:
            if code == ABSENT:
                columns.swept[chunk] = 0
            columns.chunk_idle[chunk] = 0
            # Which part of the chunk it hit. A call with all columns costs as much as ten samples.
            probe_bitmap[chunk] |= np.uint64(1) << np.uint64(page // PROBE_PART_PAGES)
            probe_samples[chunk] += 1
            if probe_samples[chunk] == _FIRST_PROBES or probe_samples[chunk] == _PROBES:
                _judge_probe(chunk, columns, counts, requests)
            continue
        # The first sample of a page in a window shows whether it was known to be there.
        if recent[page_slot, page] == 0.0 and code == ABSENT:
            columns.swept[chunk] = 0
        columns.idle[page_slot, page] = 0
        recent[page_slot, page] += weight
    return end


@inline
def run_end(number: Int32s, begin: int, limit: int) -> int:
    """Return the end of the rows of one number (a process) from ``begin`` on, at most ``limit``."""
    end = begin + 1
    while end < limit and number[end] == number[begin]:
        end += 1
    return end


@kernel
def add_accesses(process: Int32s, size: Uint16s, rate: Float32s, sums: Float64s) -> None:
    """Add the accesses per second of all rows, shape ``(n,)``, to ``sums`` by process."""
    begin = 0
    while begin < len(process):
        end, total = run_end(process, begin, len(process)), 0.0
        each, pages = rate[begin:end], size[begin:end]
        for at in range(len(each)):
            total += np.float64(each[at]) * pages[at]
        sums[process[begin]] += total
        begin = end


# Loads that waited for a node and that give a mean latency, and the share of the last mean that a
# tick with fewer of them keeps.
_MIN_LOADS: Final = 50.0
_FADE: Final = 0.8
# Weight from which the difference between two nodes is used: 20 loads of each in one tick, or 10 of
# one and many of the other.
_MIN_WEIGHT: Final = 10.0


class LoadedLatencies:
    """How long recent loads waited for each node, by node id, in ns.

    The mean is above the latency of an idle node while requests queue there. Nodes are compared
    within ticks: what all loads of a program wait for, whatever their node (line fill buffers, a
    queue of its core, moves under way), changes from tick to tick, and a node with few loads would
    be compared with others in ticks that are past.

    ``sums``, shape ``(nodes, 2)``, are the loads that waited in this tick, and the sum of their
    latencies. ``mean_ns`` is near 0 where samples have no latencies.
    """

    def __init__(self, idle_ns: Sequence[float] = ()) -> None:
        """``idle_ns`` is the latency of an idle node; () where it is not known."""
        self.given_ns = tuple(idle_ns)
        self._idle_ns = np.array(idle_ns, np.float32)
        nodes = len(self._idle_ns)
        self.sums = np.zeros((nodes, 2), np.float64)
        self.mean_ns: npt.NDArray[np.float64] = np.zeros(nodes)
        self._own_mean_ns: npt.NDArray[np.float64] = np.zeros(nodes)
        # Loads and latencies since the last mean of each node, over as many ticks as that takes.
        self._unmeasured = np.zeros((nodes, 2), np.float64)
        # Decayed sums: loads by node and, by pairs of nodes, weights and weighted differences.
        self._loads = np.zeros(nodes)
        self._weight = np.zeros((nodes, nodes))
        self._difference = np.zeros((nodes, nodes))

    def idle_latencies_of(self, batch: AccessBatch) -> npt.NDArray[np.float32]:
        """Return the idle latencies, none where the sampler of a batch measures no latencies."""
        # Some loads then have one above 0.
        measured = bool(batch.latency_ns[batch.kind == Kind.LOAD].any())
        return self._idle_ns if measured else self._idle_ns[:0]

    def close_tick(self) -> None:
        """End a tick: set the means of the nodes for which enough loads waited."""
        loads, total_ns = self.sums.T.copy()
        self._unmeasured += self.sums
        self.sums[:] = 0.0
        enough = self._unmeasured[:, 0] >= _MIN_LOADS
        self._own_mean_ns[enough] = self._unmeasured[enough, 1] / self._unmeasured[enough, 0]
        self._own_mean_ns[~enough] *= _FADE
        self._unmeasured[enough] = 0.0
        self._compare(loads, total_ns / np.maximum(loads, 1.0))
        self.mean_ns = self._own_mean_ns.copy()
        if not len(loads):
            return
        # The others relative to the node with most loads, whose mean is the newest.
        base = int(self._loads.argmax())
        compared = self._weight[base] >= _MIN_WEIGHT
        if self._own_mean_ns[base] > 0:
            difference = self._difference[compared, base] / self._weight[compared, base]
            self.mean_ns[compared] = np.maximum(
                self._own_mean_ns[base] + difference, self._idle_ns[compared]
            )

    def _compare(self, loads: npt.NDArray[np.float64], mean_ns: npt.NDArray[np.float64]) -> None:
        """Add the differences between the means of nodes in one tick."""
        self._loads = self._loads * _FADE + loads
        self._weight *= _FADE
        self._difference *= _FADE
        both = loads[:, None] + loads[None, :]
        weight = loads[:, None] * loads[None, :] / np.maximum(both, 1.0)
        np.fill_diagonal(weight, 0.0)
        self._weight += weight
        self._difference += weight * (mean_ns[:, None] - mean_ns[None, :])
