"""Change detection: the share of each page's history that the open window leaves credible.

Takes the history and the counts of the open window, gives the share of its history to keep for
every page. Costs about 5 ns per page that has heat, almost nothing per page that has none.

A history loses weight where the window contradicts it: by a factor that falls, like a normal
likelihood, with the squared deviation of the count from what the history predicts. That test is
made three times, for a chunk of 2 MiB, a block of 64 KiB and each page. A hot set that moves is
thus recognised at once where its pages have hot neighbours, and within a few samples per page
where they have none.

A hot set whose pages are scattered is recognised by a fourth test, for all pages of a process on a
node: together they have enough samples in one window. Where the histories of the pages on some
nodes predict at least ``_FALLEN_SHARE`` more of the window's samples than it has, the process has
changed. At the end of the window, the history of each page of a node that was contradicted is then
revised by the ratio of counted to expected samples of that node (:func:`hmd.heat.cooling.fold`).
The test costs three additions per page that has heat, in the pass of the other three.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from hmd.heat.chunk_columns import ChunkColumns, WindowClocks
from hmd.heat.geometry import ABSENT, BLOCK_PAGES, CHUNK_BLOCKS, CHUNK_PAGES, FIXED, FULL_EXPOSURE
from hmd.heat.kernels import Float32Plane, Float64Plane, Float64s, Int8Plane, inline, kernel

# A chunk whose rate changes by less than a fifth has not changed, however certain that is.
_CHUNK_TOLERANCE: Final = 0.1
# The pages of a node have changed if their rate has at least halved or doubled, beyond chance.
_NODE_TOLERANCE: Final = 1 / 3
# A process has changed if histories predict this share of its samples where they are missing.
_FALLEN_SHARE: Final = 0.25


class NodeSums(NamedTuple):
    """Samples of the open window by the node of their pages; shape ``(processes, nodes)``.

    ``counted`` is the number of samples, ``expected`` what the histories of the pages predict, and
    ``variance`` the variance of that prediction.
    """

    counted: Float64Plane
    expected: Float64Plane
    variance: Float64Plane

    @classmethod
    def zeros(cls, processes: int, nodes: int) -> NodeSums:
        """Return sums of nothing."""
        return cls(*(np.zeros((processes, nodes), np.float64) for _ in cls._fields))


@inline
def _believed(
    counted: float, expected: float, ratio: float, surprise2: float, tolerance: float
) -> float:
    """Return the share of a history to keep, given the samples that a window counted.

    ``ratio`` is the window over the history's exposure: a prediction from a short history is
    itself uncertain. The deviation is the variance-stabilised one of two Poisson counts
    (Anscombe), without its roots; ``tolerance`` is a relative deviation, over the sum of both,
    that is allowed on top of chance.
    """
    both = counted + expected
    gap = max(abs(counted - expected) - tolerance * both, 0.0)
    deviation2 = 2.0 * gap * gap / ((both + 0.75) * (1.0 + ratio))
    if deviation2 <= surprise2:
        return 1.0
    return math.exp(surprise2 - deviation2)


class _Scales(NamedTuple):
    """What a process's pages share: samples per step of exposure, of its window, per weight."""

    grain: float
    window: float
    per_unit: float


class _Pages(NamedTuple):
    """Working columns of one chunk's pages: samples that a window counted, and what is expected.

    ``variance`` is that of the expectation, over the history that a page has; ``deviation2`` is
    the squared deviation, 0 of pages without history.
    """

    counted: Float64s
    expected: Float64s
    exposed: Float64s
    variance: Float64s
    deviation2: Float64s


@inline
def _compare(row: int, columns: ChunkColumns, scales: _Scales, into: _Pages) -> None:
    """Fill ``into`` of a chunk's pages; without branches, so that it takes several at a time."""
    heat, recent, exposure = columns.heat, columns.recent, columns.exposure
    grain, window, per_unit = scales
    for i in range(CHUNK_PAGES):
        past = grain * exposure[row, i]
        ratio = window / past if past > 0.0 else 0.0
        n, f = recent[row, i] * per_unit, heat[row, i] * per_unit * ratio
        gap, both = n - f, n + f
        deviation2 = 2.0 * gap * gap / ((both + 0.75) * (1.0 + ratio))
        into.counted[i], into.expected[i], into.exposed[i] = n, f, past
        into.variance[i] = f * ratio
        into.deviation2[i] = deviation2 if past > 0.0 else 0.0


@inline
def _add_by_node(p: np.int32, row: int, node: Int8Plane, pages: _Pages, sums: NodeSums) -> None:
    """Add the pages of a chunk that have a history to the sums of their nodes."""
    alike, first = True, node[row, 0]
    counted, expected, variance = 0.0, 0.0, 0.0
    for i in range(CHUNK_PAGES):
        alike &= node[row, i] == first
        counted += pages.counted[i] if pages.exposed[i] > 0.0 else 0.0
        expected += pages.expected[i]
        variance += pages.variance[i]
    if alike:
        on = FIXED - first if first <= FIXED else first
        if on != ABSENT:
            sums.counted[p, on] += counted
            sums.expected[p, on] += expected
            sums.variance[p, on] += variance
        return
    for i in range(CHUNK_PAGES):
        code = node[row, i]
        on = FIXED - code if code <= FIXED else code
        if on != ABSENT and pages.exposed[i] > 0.0:
            sums.counted[p, on] += pages.counted[i]
            sums.expected[p, on] += pages.expected[i]
            sums.variance[p, on] += pages.variance[i]


@kernel
def believe(
    columns: ChunkColumns,
    clocks: WindowClocks,
    surprise: float,
    kept: Float32Plane,
    nodes: NodeSums,
) -> None:
    """Fill ``kept`` of the pages of chunks in detail: 1 where no window contradicts a history.

    ``surprise`` is the deviation, in standard deviations, from which a history loses weight.
    ``nodes`` gets the sums by process and node, unless it has no nodes. Chunks that are counted as
    a whole have :func:`hmd.heat.whole_chunks.believe_wholes`.
    """
    heat_sum, recent_sum = columns.heat_sum, columns.recent_sum
    clock, window, unit = clocks.clock, clocks.window, clocks.unit
    counted = np.zeros(CHUNK_BLOCKS, np.float64)
    expected = np.zeros(CHUNK_BLOCKS, np.float64)
    exposed = np.zeros(CHUNK_BLOCKS, np.float64)
    samples, predicted = np.zeros(CHUNK_PAGES, np.float64), np.zeros(CHUNK_PAGES, np.float64)
    history, variance = np.zeros(CHUNK_PAGES, np.float64), np.zeros(CHUNK_PAGES, np.float64)
    deviation2 = np.zeros(CHUNK_PAGES, np.float64)
    pages = _Pages(samples, predicted, history, variance, deviation2)
    most = surprise * surprise
    for row in range(len(columns.owner)):
        chunk = np.int64(columns.owner[row])
        if chunk < 0:
            continue
        p = columns.process[chunk]
        if (
            window[p] <= 0.0
            or clock[p] <= 0.0
            or (heat_sum[chunk] == 0.0 and recent_sum[chunk] == 0.0)
        ):
            kept[row, :] = 1.0
            continue
        w = window[p] / unit[p]
        grain = clock[p] / FULL_EXPOSURE / unit[p]
        _compare(row, columns, _Scales(grain, w, 1.0 / unit[p]), pages)
        if nodes.counted.shape[1]:
            _add_by_node(p, row, columns.node, pages, nodes)
        all_counted, all_expected, all_exposed = 0.0, 0.0, 0.0
        for block in range(CHUNK_BLOCKS):
            n, f, e = 0.0, 0.0, 0.0
            for i in range(block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES):
                n += pages.counted[i]
                f += pages.expected[i]
                e += pages.exposed[i]
            counted[block], expected[block], exposed[block] = n, f, e
            all_counted += counted[block]
            all_expected += expected[block]
            all_exposed += e
        whole, times = 1.0, 1.0
        if all_exposed > 0.0:
            ratio = w * CHUNK_PAGES / all_exposed
            whole = _believed(all_counted, all_expected, ratio, most, _CHUNK_TOLERANCE)
            times = (all_counted + 0.5) / (all_expected + 0.5)
        for block in range(CHUNK_BLOCKS):
            together = 1.0
            if exposed[block] > 0.0:
                ratio = w * BLOCK_PAGES / exposed[block]
                together = _believed(counted[block], expected[block], ratio, most, 0.0)
                # Of a chunk that has changed, only the blocks whose counts rather show it.
                if whole < 1.0 and (
                    counted[block] * math.log(times) >= expected[block] * (times - 1.0)
                ):
                    together = min(together, whole)
            for i in range(block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES):
                own = 1.0
                if pages.deviation2[i] > most:
                    own = math.exp(most - pages.deviation2[i])
                kept[row, i] = min(together, own)


@kernel
def node_changes(nodes: NodeSums, surprise: float, change: Float64Plane) -> None:
    """Fill ``change``: counted over expected samples of the nodes on which histories are refuted.

    It is 1 for all others, and for all nodes of a process that has not changed.
    """
    for p in range(change.shape[0]):
        fallen, total = 0.0, 0.0
        for on in range(change.shape[1]):
            n, f = nodes.counted[p, on], nodes.expected[p, on]
            change[p, on] = 1.0
            total += n
            if f > 0.0:
                ratio = nodes.variance[p, on] / f
                if _believed(n, f, ratio, surprise * surprise, _NODE_TOLERANCE) < 0.5:
                    change[p, on] = (n + 0.5) / (f + 0.5)
                    fallen += max(f - n, 0.0)
        if fallen < _FALLEN_SHARE * total:
            change[p, :] = 1.0
