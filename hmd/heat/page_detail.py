"""Which chunks have detail: those whose pages differ most in heat or in place.

Takes chunks that ask, gives them the rows of pages of chunks whose pages are alike. Rows of pages
are bounded, so that the cost of a tick is: of terabytes, the chunks in detail are the few whose hot
pages would be lost among cold ones (as Memtis splits only skewed huge pages; Lee et al., SOSP
2023). Costs about 1 ms per tick on which chunks ask.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.heat.chunk_columns import ChunkColumns, WindowClocks
from hmd.heat.chunks import Chunks
from hmd.heat.geometry import CHUNK_PAGES, GROUPS
from hmd.heat.kernels import Float32s, kernel

# Chunks that get detail per tick, from a chunk that loses it and from free rows of pages; ticks for
# which they keep it, and how much more others must gain.
_CHANGES: Final = 64
_FREE_CHANGES: Final = 256
_LEAST_TICKS: Final = 8
_GAIN: Final = 1.25
# Chunks that lose detail at a time, which bounds the memory that it takes.
_BLOCK: Final = 1024
# What detail is worth to a chunk whose pages are on several nodes: so many samples, and this share
# of its own.
_MIXED: Final = 1.0
_MIXED_SHARE: Final = 0.05


@kernel
def value_details(columns: ChunkColumns, clocks: WindowClocks, value: Float32s) -> None:
    """Set what its detail is worth to the owner of each row of pages, in samples; below 0 if free.

    That is how far the squares of its pages' samples exceed those of a uniform chunk, over its
    samples: all of them if one page has them all, none if all pages are alike.
    """
    for row in range(len(columns.owner)):
        chunk = np.int64(columns.owner[row])
        if chunk < 0:
            value[row] = -1.0
            continue
        p = columns.process[chunk]
        per_unit = 1.0 / clocks.unit[p] if clocks.unit[p] > 0.0 else 0.0
        total, squares, alike = 0.0, 0.0, True
        first = columns.node[row, 0]
        for i in range(CHUNK_PAGES):
            n = (columns.heat[row, i] + columns.recent[row, i]) * per_unit
            total += n
            # Less what chance adds to the square of a count.
            squares += n * n - n
            alike &= columns.node[row, i] == first
        worth = 0.0
        if total > 0.0 and not columns.huge[chunk]:
            worth = max(squares / total - total / CHUNK_PAGES, 0.0)
        if not alike and not columns.huge[chunk]:
            worth += _MIXED + _MIXED_SHARE * total
        value[row] = worth


def wanted_values(
    chunks: npt.NDArray[np.integer], columns: ChunkColumns, clocks: WindowClocks
) -> npt.NDArray[np.float64]:
    """Return what detail would be worth to chunks without it, in samples, shape ``(k,)``.

    Samples that hit few of a chunk's parts are taken to be of one hot page in each.
    """
    unit = clocks.unit[columns.process[chunks]]
    weight = (columns.heat_sum[chunks] + columns.recent_sum[chunks]).astype(np.float64)
    samples = np.zeros(len(chunks), np.float64)
    np.divide(weight, unit, out=samples, where=unit > 0)
    value: npt.NDArray[np.float64] = samples * (
        1.0 / np.maximum(columns.hit[chunks], 1) - 1.0 / GROUPS
    )
    mixed = columns.strays[chunks] > 0
    value[mixed] += _MIXED + _MIXED_SHARE * samples[mixed]
    return value


def fill_free_rows(chunks: Chunks, tick: int) -> None:
    """Give free rows of pages to sampled chunks that have none, the most sampled first.

    Rows are free where the memory that had them was unmapped. A chunk whose samples do not show
    that its pages differ asks for none, but a row that is free is of no use to any other.
    """
    free = min(int(chunks.state.counts[1]), _FREE_CHANGES)
    used, columns = chunks.used, chunks.columns
    if not free or len(columns.owner) - chunks.state.counts[1] == used:
        return
    counted = columns.heat_sum[:used] + columns.recent_sum[:used]
    sampled = np.flatnonzero((counted > 0) & (columns.detail[:used] < 0) & ~columns.huge[:used])
    hottest = sampled[np.argsort(-counted[sampled], kind="stable")[:free]]
    if len(hottest):
        chunks.attach(hottest, tick)


def grant_details(chunks: Chunks, clocks: WindowClocks, tick: int) -> int:
    """Give detail to chunks that ask and gain most by it; return how many others lost theirs.

    Sampled chunks that do not ask get rows of pages that are free.
    """
    lost = _grant_asking(chunks, clocks, tick)
    fill_free_rows(chunks, tick)
    return lost


def _grant_asking(chunks: Chunks, clocks: WindowClocks, tick: int) -> int:
    """Give detail to chunks that ask; return how many others lost theirs."""
    asked = int(chunks.state.counts[2])
    chunks.state.counts[2] = 0
    columns = chunks.columns
    asking = np.unique(chunks.state.asking[:asked])
    asking = asking[columns.detail[asking] < 0]
    if not len(asking):
        return 0
    gain = wanted_values(asking, columns, clocks)
    order = np.argsort(-gain, kind="stable")[:_CHANGES]
    asking, gain = asking[order], gain[order]
    free = int(chunks.state.counts[1])
    lost = np.empty(0, np.int64)
    if free < len(asking):
        value = np.empty(len(columns.owner), np.float32)
        value_details(columns, clocks, value)
        settled = np.flatnonzero((value >= 0) & (tick - columns.since >= _LEAST_TICKS))
        cold = settled[np.argsort(value[settled], kind="stable")[: len(asking) - free]]
        rivals = gain[free : free + len(cold)]
        lost = columns.owner[cold[rivals > _GAIN * value[cold]]].astype(np.int64)
        chunks.detach(lost)
    chunks.attach(asking[: free + len(lost)], tick)
    return len(lost)


def drop_details(chunks: Chunks, clocks: WindowClocks, most: int) -> int:
    """Take detail from the chunks to which it is worth least, until ``most`` have it.

    Returns how many lost it.
    """
    count = chunks.details - most
    if count <= 0:
        return 0
    columns = chunks.columns
    value = np.empty(len(columns.owner), np.float32)
    value_details(columns, clocks, value)
    used = np.flatnonzero(value >= 0)
    cold = used[np.argsort(value[used], kind="stable")[:count]]
    owners = columns.owner[cold].astype(np.int64)
    for begin in range(0, count, _BLOCK):
        chunks.detach(owners[begin : begin + _BLOCK])
    return count
