# SPDX-License-Identifier: MIT
"""Where samples contradict what the table knows: in a window, and in a tick of a whole process.

The window test is made at the end of a window and whenever rates are estimated, for a chunk of
2 MiB, a block of 64 KiB and each page: its result is the *retention*, the share of a history's
weight to keep. It falls, like a normal likelihood, with the squared deviation of the window's count
from what the history predicts. A hot set that moves is thus recognised at once where its pages have
hot neighbours, and within a few samples per page where they have none. Costs about 5 ns per page
that has heat, almost nothing per page that has none.

The tick test recognises a hot set whose pages are scattered. A sampled page's rate over the mean
rate of its process is how much likelier the sample is by these rates than if all pages were alike.
The logarithm of it, averaged over the samples of a tick, is the prequential likelihood ratio of the
rates (Dawid, "Statistical theory: the prequential approach", 1984). While heat lasts the mean is
above 0; once a hot set has moved it is below, since pages that were hot have the share that others
have now. Samples are weighted as in the heat table: without weights, the loads of a streaming
program would outvote its stores, although each store sample stands for 64 times as many accesses.

After a detected change, the history of the process keeps one tenth of the weight of the tick's
samples, so that its pages are ranked by what is sampled from now on. How far its rates vary is a
property of the program that stays: its priors begin with what they were. At 1 TiB the tick test
costs 0.25 µs per sample that is tested, of at most ``MAX_TESTED``, and 5 ns per page with a page
slot on a tick that detects a change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import (
    Float32Plane,
    Float64Plane,
    Float64s,
    Int32s,
    Int32View,
    Int64s,
    Uint8View,
    Uint32View,
    inline,
    kernel,
)
from hmd.heat.chunks import ChunkColumns, HistoryColumns, TableRates, find_storage, node_of
from hmd.heat.counting import KINDS, SampleWeights, sampled_accesses, stall_share, waited_share
from hmd.heat.rates import InitialSpreads, Priors
from hmd.heat.settings import ABSENT, BLOCK_PAGES, CHUNK_BLOCKS, CHUNK_PAGES, FULL_EXPOSURE

if TYPE_CHECKING:
    from hmd.heat.chunks import Chunks
    from hmd.heat.windows import SampleHistory
    from hmd.sample.access_batch import AccessBatch

#: A chunk whose rate changes by less than a fifth has not changed, however certain that is.
CHUNK_TOLERANCE: Final = 0.1
# In single precision, so that the precision of a deviation is that of the counts.
_ZERO: Final = np.float32(0.0)
_ONE: Final = np.float32(1.0)
# Added by Anscombe's transform to the sum of two counts: twice 3/8.
_TWO_COUNTS: Final = np.float32(0.75)

MAX_TESTED: Final = 8192
"""Samples of a tick that are tested; of more, every second, or third, or as it takes."""
PAST_WEIGHT: Final = 0.1
"""The weight that a history keeps after a change, over that of the samples that show it."""
# Processes with a smaller effective sample size are not tested.
_MIN_TESTED: Final = 16
# The mean logarithm must be below 0 by more than so many of its standard errors, and by this much:
# chance makes rates of alike pages differ.
_ERRORS: Final = 2.0
_MIN_OCTAVES: Final = 0.1
_MIN_WEIGHT: Final = 1e-30
# No page is known to be hotter or colder than this times the mean.
_MIN_RATIO: Final = 1 / 16
_MAX_RATIO: Final = 64.0
# Spreads from before a change weigh as the evidence behind them, and as so many squared samples at
# most.
_MAX_SPREAD_WEIGHT: Final = 256.0
# Initial lifetime of heat, in ticks.
_INITIAL_TICKS: Final = 2

Values = npt.NDArray[np.float64]


@inline
def squared_deviation(counted: Any, expected: Any, ratio: Any, tolerance: Any) -> Any:
    """Return how far a window's count deviates from the prediction, in squared standard deviations.

    ``ratio`` is the window over the history's exposure: a prediction from a short history is
    itself uncertain. The deviation is the variance-stabilised one of two Poisson counts
    (Anscombe), without its roots; ``tolerance`` is a relative deviation, over the sum of both,
    that is allowed on top of chance. The precision is that of the arguments.
    """
    both = counted + expected
    gap = max(abs(counted - expected) - tolerance * both, _ZERO)
    return (gap + gap) * gap / ((both + _TWO_COUNTS) * (_ONE + ratio))


@inline
def _retention(
    counted: float, expected: float, ratio: float, threshold2: float, tolerance: float
) -> float:
    """Return the share of a history to keep, given the samples that a window counted."""
    deviation2 = squared_deviation(counted, expected, ratio, tolerance)
    return 1.0 if deviation2 <= threshold2 else math.exp(threshold2 - deviation2)


class _Pages(NamedTuple):
    """Working columns of one chunk's pages: samples that a window counted, and what is expected.

    ``exposed`` is the history's exposure, in samples; ``deviation2`` is 0 of pages without history.
    """

    counted: Float64s
    expected: Float64s
    exposed: Float64s
    deviation2: Float64s


@inline
def _compare(
    slot: int,
    columns: ChunkColumns,
    samples_per_step: float,
    window: float,
    samples_per_weight: float,
    into: _Pages,
) -> None:
    """Fill ``into`` of a chunk's pages, without branches; ``window`` is in samples."""
    heat, recent, exposure = columns.heat, columns.recent, columns.exposure
    for i in range(CHUNK_PAGES):
        past = samples_per_step * exposure[slot, i]
        ratio = window / past if past > 0.0 else 0.0
        n = recent[slot, i] * samples_per_weight
        f = heat[slot, i] * samples_per_weight * ratio
        deviation2 = squared_deviation(n, f, ratio, 0.0)
        into.counted[i], into.expected[i], into.exposed[i] = n, f, past
        into.deviation2[i] = deviation2 if past > 0.0 else 0.0


@kernel
def compute_retention(
    columns: ChunkColumns,
    history: HistoryColumns,
    change_threshold: float,
    retention: Float32Plane,
) -> None:
    """Fill ``retention`` of the pages of chunks with page slots: 1 where no window contradicts.

    Coarse chunks have :mod:`hmd.heat.windows`.
    """
    counted = np.zeros(CHUNK_BLOCKS, np.float64)
    expected = np.zeros(CHUNK_BLOCKS, np.float64)
    exposed = np.zeros(CHUNK_BLOCKS, np.float64)
    samples, predicted = np.zeros(CHUNK_PAGES, np.float64), np.zeros(CHUNK_PAGES, np.float64)
    past, deviation2 = np.zeros(CHUNK_PAGES, np.float64), np.zeros(CHUNK_PAGES, np.float64)
    pages = _Pages(samples, predicted, past, deviation2)
    threshold2 = change_threshold * change_threshold
    for slot in range(len(columns.owner)):
        chunk = np.int64(columns.owner[slot])
        if chunk < 0:
            continue
        p = columns.process[chunk]
        if (
            history.window_weight[p] <= 0.0
            or history.history_weight[p] <= 0.0
            or (columns.heat_sum[chunk] == 0.0 and columns.recent_sum[chunk] == 0.0)
        ):
            retention[slot, :] = 1.0
            continue
        unit = history.effective_sample_weight[p]
        window = history.window_weight[p] / unit
        _compare(
            slot,
            columns,
            history.history_weight[p] / FULL_EXPOSURE / unit,
            window,
            1.0 / unit,
            pages,
        )
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
        of_chunk, times = 1.0, 1.0
        if all_exposed > 0.0:
            ratio = window * CHUNK_PAGES / all_exposed
            of_chunk = _retention(all_counted, all_expected, ratio, threshold2, CHUNK_TOLERANCE)
            times = (all_counted + 0.5) / (all_expected + 0.5)
        for block in range(CHUNK_BLOCKS):
            of_block = 1.0
            if exposed[block] > 0.0:
                ratio = window * BLOCK_PAGES / exposed[block]
                of_block = _retention(counted[block], expected[block], ratio, threshold2, 0.0)
                # In a changed chunk, discount only blocks for which the change is more likely than
                # no change.
                if of_chunk < 1.0 and (
                    counted[block] * math.log(times) >= expected[block] * (times - 1.0)
                ):
                    of_block = min(of_block, of_chunk)
            for i in range(block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES):
                of_page = 1.0
                if pages.deviation2[i] > threshold2:
                    of_page = math.exp(threshold2 - pages.deviation2[i])
                retention[slot, i] = min(of_block, of_page)


class RememberedRates(NamedTuple):
    """Rates as they were at the end of a tick.

    ``mean`` is the rate per base page of each process, 0 where it has none; ``owner`` the chunk of
    each page slot.
    """

    rates: TableRates
    mean: Float64s
    owner: Int32s


@kernel
def score_samples(
    samples: tuple[Int32View, Uint8View, Uint32View, Uint32View],
    storage_index: Int64s,
    weights: SampleWeights,
    columns: ChunkColumns,
    before: RememberedRates,
    sums: Float64Plane,
) -> None:
    """Add up the base-2 logarithms of sampled pages' rates over the means of their processes.

    ``samples`` are process, kind, period and latency in ns. ``storage_index`` is that of each
    sample's row; -1, where no page is known, has the logarithm of a page at the mean. ``sums``,
    shape ``(processes, 5)``, gets the sums of the samples' weights, of these times the logarithms,
    and of their squares times 1, the logarithms and the squares of those.
    """
    process, kind, period, latency_ns = samples
    rates, mean, owner = before
    first_chunk = len(owner) * CHUNK_PAGES
    for i in range(len(process)):
        slot = process[i]
        if slot < 0 or slot >= len(sums) or mean[slot] <= 0.0 or kind[i] >= KINDS:
            continue
        at, ratio, code = storage_index[i], 1.0, np.int64(ABSENT)
        if at >= first_chunk:
            code = np.int64(columns.chunk_node[at - first_chunk])
            if at - first_chunk < len(rates.chunk_rate):
                ratio = rates.chunk_rate[at - first_chunk] / mean[slot]
        elif at >= 0 and owner[at // CHUNK_PAGES] == columns.owner[at // CHUNK_PAGES]:
            code = np.int64(columns.node[at // CHUNK_PAGES, at % CHUNK_PAGES])
            ratio = rates.page_rate[at // CHUNK_PAGES, at % CHUNK_PAGES] / mean[slot]
        waited = waited_share(kind[i], latency_ns[i], node_of(code), weights.idle_ns)
        weight = sampled_accesses(period[i], weights.kind_weight[slot, kind[i]])
        weight *= stall_share(waited)
        w = np.float64(min(weight, weights.max_weight[slot]))
        octaves = np.log2(min(max(ratio, _MIN_RATIO), _MAX_RATIO))
        sums[slot, 0] += w
        sums[slot, 1] += w * octaves
        sums[slot, 2] += w * w
        sums[slot, 3] += w * w * octaves
        sums[slot, 4] += w * w * octaves * octaves


@kernel
def discount(chunks: int, columns: ChunkColumns, factor: Float64s) -> None:
    """Multiply all counts of each process by its ``factor``, shape ``(processes,)``."""
    for chunk in range(chunks):
        share = np.float32(factor[columns.process[chunk]])
        if share == 1.0:
            continue
        columns.heat_sum[chunk] *= share
        columns.recent_sum[chunk] *= share
        slot = columns.page_slot[chunk]
        if slot >= 0:
            heat, recent = columns.heat[slot], columns.recent[slot]
            for i in range(CHUNK_PAGES):
                heat[i] *= share
                recent[i] *= share


@dataclass(frozen=True, slots=True)
class _Before:
    """What the table last knew of its pages, and the order of the chunks that it had then."""

    rates: RememberedRates
    priors: Priors
    order: int


class ChangePoints:
    """Detects changes of processes; ``spreads`` are those that priors of rates begin with."""

    def __init__(self) -> None:
        self._before: _Before | None = None
        self._since, self._last, self._changes = (np.zeros(0, np.int64) for _ in range(3))
        self.spreads = InitialSpreads.unknown(0)

    def track_processes(self, slots: npt.NDArray[np.int32], processes: int, tick: int) -> None:
        """Retain what is known of processes; ``slots`` are the new slots, -1 for those gone."""
        self._before = None
        old = self._since, self._last, self._changes, *self.spreads
        fresh = (np.full(processes, tick), np.full(processes, tick), np.zeros(processes, np.int64))
        new = *fresh, *InitialSpreads.unknown(processes)
        for source, column in zip(old, new, strict=True):
            column[slots[slots >= 0]] = source[slots >= 0]
        self._since, self._last, self._changes = new[:3]
        self.spreads = InitialSpreads(*new[3:])

    def remember_rates(
        self, rates: TableRates, mean: Values, priors: Priors, chunks: Chunks
    ) -> None:
        """Remember the rates that the samples of the next tick are compared with."""
        remembered = RememberedRates(rates, mean, chunks.columns.owner.copy())
        self._before = _Before(remembered, priors, chunks.order)

    def detect(
        self, batch: AccessBatch, weights: SampleWeights, chunks: Chunks, history: SampleHistory
    ) -> Values | None:
        """Return the factor by which each process's history is discounted; None without a change.

        ``weights`` are those with which the samples will be counted. No change is detected where
        rates were not asked for since the last tick, or chunks were removed since.
        """
        before, self._before = self._before, None
        if before is None or before.order != chunks.order:
            return None
        step = -(-len(batch) // MAX_TESTED) or 1
        process, address = batch.process[::step], batch.address[::step]
        index, sums = np.empty(len(process), np.int64), np.zeros((len(before.rates.mean), 5))
        find_storage(process, address, chunks.index, chunks.columns, index)
        samples = (process, batch.kind[::step], batch.period[::step], batch.latency_ns[::step])
        score_samples(samples, index, weights, chunks.columns, before.rates, sums)
        slots = np.flatnonzero(has_changed(sums))
        if not len(slots):
            return None
        self._record_changes(slots, before.priors, history.tick)
        past = (history.history_weight + history.window_weight)[slots]
        factor = np.ones(len(sums))
        factor[slots] = np.minimum(PAST_WEIGHT * step * sums[slots, 0] / past, 1.0)
        return factor

    def _record_changes(self, slots: npt.NDArray[np.int64], priors: Priors, tick: int) -> None:
        """Record changes of processes, and how far their rates varied before."""
        self._changes[slots] += 1
        self._last[slots] = tick
        spreads = self.spreads
        spreads.blocks[slots], spreads.pages[slots] = priors.blocks[slots], priors.pages[slots]
        for weight, evidence in (
            (spreads.block_weight, priors.block_weight),
            (spreads.page_weight, priors.page_weight),
        ):
            weight[slots] = np.minimum(evidence[slots], _MAX_SPREAD_WEIGHT)

    def unchanged_ticks(self, tick: int) -> Values:
        """Return the ticks since the last change of each process; infinite without one."""
        return np.where(self._changes > 0, tick - 1.0 - self._last, np.inf)

    def heat_lifetime_ticks(self, tick: int) -> Values:
        """Return for how many ticks heat is expected to last, by the changes so far.

        As long as it has lasted by now (Lindy's law) or, if that is longer, as it did on average
        between changes; infinite for a process that has not changed.
        """
        age = tick - self._last + 1.0 + _INITIAL_TICKS
        mean = (self._last - self._since) / np.maximum(self._changes, 1)
        return np.where(self._changes > 0, np.maximum(age, mean), np.inf)


def has_changed(sums: Values) -> npt.NDArray[np.bool_]:
    """Return which processes' samples were likelier if all pages were alike, beyond chance."""
    weight = np.maximum(sums[:, 0], _MIN_WEIGHT)
    mean = sums[:, 1] / weight
    squares = sums[:, 4] - 2.0 * mean * sums[:, 3] + mean * mean * sums[:, 2]
    highest = mean + _ERRORS * np.sqrt(np.maximum(squares, 0.0)) / weight
    changed: npt.NDArray[np.bool_] = highest < -_MIN_OCTAVES
    return changed & (weight * weight >= _MIN_TESTED * sums[:, 2])
