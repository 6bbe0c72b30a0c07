# SPDX-License-Identifier: MIT
"""Which chunks own page slots: those whose pages differ most in heat or in node.

Takes chunks that request a slot, gives them the slots of chunks whose pages are alike. The number
of slots is bounded, so that the cost of a tick is: of terabytes, the chunks that have one are the
few whose hot pages would be lost among cold ones (as Memtis splits only skewed huge pages; Lee et
al., SOSP 2023). Costs about 1 ms per tick on which chunks request slots.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import Float32s, kernel
from hmd.heat.chunks import ChunkColumns, Chunks, HistoryColumns
from hmd.heat.settings import CHUNK_PAGES, PROBE_PARTS

# Chunks that get a slot per tick, from an owner and from free ones; ticks for which an owner keeps
# it, and how much more others must gain.
_MAX_REASSIGNED: Final = 64
_MAX_ASSIGNED: Final = 256
_MIN_TICKS: Final = 8
_MIN_GAIN: Final = 1.25
# Chunks that lose their slot at a time, which bounds the memory that it takes.
_BLOCK: Final = 1024
# What a slot is worth to a chunk whose pages are on several nodes: so many samples, and this share
# of its own.
_MIXED: Final = 1.0
_MIXED_SHARE: Final = 0.05


@kernel
def value_slots(columns: ChunkColumns, history: HistoryColumns, value: Float32s) -> None:
    """Set what its slot is worth to the owner of each, in samples; below 0 if it is free.

    That is how far the squares of its pages' samples exceed those of a uniform chunk, over its
    samples: all of them if one page has them all, none if all pages are alike.
    """
    for slot in range(len(columns.owner)):
        chunk = np.int64(columns.owner[slot])
        if chunk < 0:
            value[slot] = -1.0
            continue
        unit = history.effective_sample_weight[columns.process[chunk]]
        samples_per_weight = 1.0 / unit if unit > 0.0 else 0.0
        total, squares, alike = 0.0, 0.0, True
        first = columns.node[slot, 0]
        for i in range(CHUNK_PAGES):
            n = (columns.heat[slot, i] + columns.recent[slot, i]) * samples_per_weight
            total += n
            # Less what chance adds to the square of a count.
            squares += n * n - n
            alike &= columns.node[slot, i] == first
        worth = 0.0
        if total > 0.0 and not columns.huge[chunk]:
            worth = max(squares / total - total / CHUNK_PAGES, 0.0)
        if not alike and not columns.huge[chunk]:
            worth += _MIXED + _MIXED_SHARE * total
        value[slot] = worth


def value_requests(
    chunks: npt.NDArray[np.integer], columns: ChunkColumns, history: HistoryColumns
) -> npt.NDArray[np.float64]:
    """Return what a slot would be worth to coarse chunks, in samples, shape ``(k,)``."""
    unit = history.effective_sample_weight[columns.process[chunks]]
    weight = (columns.heat_sum[chunks] + columns.recent_sum[chunks]).astype(np.float64)
    samples = np.zeros(len(chunks), np.float64)
    np.divide(weight, unit, out=samples, where=unit > 0)
    # Samples that hit few of a chunk's parts are taken to be of one hot page in each.
    value: npt.NDArray[np.float64] = samples * (
        1.0 / np.maximum(columns.last_probe_hits[chunks], 1) - 1.0 / PROBE_PARTS
    )
    mixed = columns.minority_pages[chunks] > 0
    value[mixed] += _MIXED + _MIXED_SHARE * samples[mixed]
    return value


def assign_page_slots(chunks: Chunks, history: HistoryColumns, tick: int) -> int:
    """Give slots to chunks that gain most by one; return how many others lost one."""
    lost = _answer_requests(chunks, history, tick)
    _assign_free(chunks, tick)
    return lost


def _assign_free(chunks: Chunks, tick: int) -> None:
    """Give free slots, whose owners' memory was unmapped, to the most sampled coarse chunks."""
    free = min(int(chunks.state.counts[1]), _MAX_ASSIGNED)
    used, columns = chunks.used, chunks.columns
    if not free or chunks.used_page_slots == used:
        return
    counted = columns.heat_sum[:used] + columns.recent_sum[:used]
    sampled = np.flatnonzero((counted > 0) & (columns.page_slot[:used] < 0) & ~columns.huge[:used])
    hottest = sampled[np.argsort(-counted[sampled], kind="stable")[:free]]
    if len(hottest):
        chunks.assign_page_slots(hottest, tick)


def _answer_requests(chunks: Chunks, history: HistoryColumns, tick: int) -> int:
    """Give slots to chunks that request one; return how many others lost theirs."""
    counts, columns = chunks.state.counts, chunks.columns
    requests = np.unique(chunks.state.requests[: counts[2]])
    counts[2] = 0
    requests = requests[columns.page_slot[requests] < 0]
    if not len(requests):
        return 0
    gain = value_requests(requests, columns, history)
    order = np.argsort(-gain, kind="stable")[:_MAX_REASSIGNED]
    requests, gain = requests[order], gain[order]
    free = int(counts[1])
    losers = np.empty(0, np.int64)
    if free < len(requests):
        value = np.empty(chunks.page_slots, np.float32)
        value_slots(columns, history, value)
        owned = np.flatnonzero((value >= 0) & (tick - columns.owner_since >= _MIN_TICKS))
        cheapest = owned[np.argsort(value[owned], kind="stable")[: len(requests) - free]]
        gains = gain[free : free + len(cheapest)]
        losers = columns.owner[cheapest[gains > _MIN_GAIN * value[cheapest]]].astype(np.int64)
        chunks.take_page_slots(losers)
    chunks.assign_page_slots(requests[: free + len(losers)], tick)
    return len(losers)


def drop_page_slots(chunks: Chunks, history: HistoryColumns, limit: int) -> int:
    """Take the slots of least worth, until ``limit`` are owned; return how many."""
    count = chunks.used_page_slots - limit
    if count <= 0:
        return 0
    value = np.empty(chunks.page_slots, np.float32)
    value_slots(chunks.columns, history, value)
    used = np.flatnonzero(value >= 0)
    cheapest = used[np.argsort(value[used], kind="stable")[:count]]
    owners = chunks.columns.owner[cheapest].astype(np.int64)
    for begin in range(0, count, _BLOCK):
        chunks.take_page_slots(owners[begin : begin + _BLOCK])
    return count
