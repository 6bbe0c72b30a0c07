"""Change points: ticks whose samples refute what is known of a whole process.

Takes the samples of a tick and the rates from before it, gives the processes whose heat has moved.
A sampled page's rate over the mean rate of its process is how much likelier the sample is by these
rates than if all pages were alike. The logarithm of it, averaged over the samples of a tick, says
what the histories are worth as a prediction (the prequential likelihood ratio; Dawid, "Statistical
theory: the prequential approach", 1984). Samples count there for what they add to heat, as rates
are of accesses: else the loads of a program that streams would refute what its stores show, of
which a sample stands for 64 times as many. While heat lasts the mean is above 0. Once a hot set has
moved it is below, since pages that were hot have the share that others have now; that shows in a
single tick, whether hot pages are neighbours or scattered, and whatever part of them is on a fast
tier. :mod:`hmd.heat.rates.change_detection` tests chunks, blocks and pages by themselves, at the
end of windows of many ticks.

The past of a refuted process then weighs a tenth of what refutes it, so that its pages are ranked
by what is sampled from now on. How far its rates stray is a property of the program that stays: its
priors begin with what they were. At 1 TiB it costs 0.25 µs per sample that is tested, of at most
``SAMPLES_MOST``, and 5 ns per page that is counted for itself on a tick that refutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.heat.chunk_columns import ChunkColumns, TableRates
from hmd.heat.chunk_index import number_addresses
from hmd.heat.geometry import ABSENT, CHUNK_PAGES
from hmd.heat.kernels import (
    Float64Plane,
    Float64s,
    Int32s,
    Int32View,
    Int64s,
    Uint8View,
    Uint32View,
    kernel,
)
from hmd.heat.rates.rate_priors import BeginningSpreads, Priors
from hmd.heat.sample_counting import KINDS, LOAD, SampleWeights, stall_share, waited_share

if TYPE_CHECKING:
    from hmd.heat.chunks import Chunks
    from hmd.heat.rates.sample_windows import Clocks
    from hmd.sample.access_batch import AccessBatch

SAMPLES_MOST: Final = 8192
"""Samples of a tick that are tested; of more, every second, or third, or as it takes."""

PAST_WEIGHT: Final = 0.1
"""What the past of a refuted process weighs, over the samples of the tick that refutes it."""

# With fewer samples of a process, counted as equal ones of the same variance, nothing is said of
# it. The mean logarithm must be below 0 by more
# than so many of its standard errors, and by this much: chance makes rates of alike pages differ.
_SAMPLES_LEAST: Final = 16
_ERRORS: Final = 2.0
_OCTAVES_LEAST: Final = 0.1
_LEAST_WEIGHT: Final = 1e-30
# No page is known to be hotter or colder than this times the mean.
_RATIO_LEAST: Final = 1 / 16
_RATIO_MOST: Final = 64.0
# Spreads of before weigh as much as the squared samples that showed them, and as this many at most.
_SPREAD_WEIGHT: Final = 256.0
# Heat is expected to last for so long where it has not lasted yet.
_BEFORE: Final = 2

Values = npt.NDArray[np.float64]
Ticks = npt.NDArray[np.int64]


class KnownRates(NamedTuple):
    """Rates as they were known at the end of a tick.

    ``mean`` is the rate per 4 KiB page of each process, 0 where it has none; ``owner`` the chunk of
    each row of pages.
    """

    rates: TableRates
    mean: Float64s
    owner: Int32s


@kernel
def score_samples(
    samples: tuple[Int32View, Uint8View, Uint32View, Uint32View],
    number: Int64s,
    weights: SampleWeights,
    columns: ChunkColumns,
    known: KnownRates,
    sums: Float64Plane,
) -> None:
    """Add up the base-2 logarithms of sampled pages' rates over the means of their processes.

    ``samples`` are process, kind, period and latency in ns. ``number`` is the row of each, -1 where
    no page is known: that says nothing, as a rate at the mean does. ``sums``, shape
    ``(processes, 5)``, gets the sums of the samples' weights, of these times the logarithms, and of
    their squares times 1, the logarithms and the squares of those.
    """
    process, kind, period, weight_ns = samples
    kind_weight, most, latency_ns = weights
    rates, mean, owner = known
    wholes = len(owner) * CHUNK_PAGES
    for i in range(len(process)):
        slot = process[i]
        if slot < 0 or slot >= len(sums) or mean[slot] <= 0.0 or kind[i] >= KINDS:
            continue
        at, ratio, code = number[i], 1.0, np.int64(ABSENT)
        if at >= wholes:
            code = np.int64(columns.code[at - wholes])
            if at - wholes < len(rates.chunk_rate):
                ratio = rates.chunk_rate[at - wholes] / mean[slot]
        elif at >= 0 and owner[at // CHUNK_PAGES] == columns.owner[at // CHUNK_PAGES]:
            code = np.int64(columns.node[at // CHUNK_PAGES, at % CHUNK_PAGES])
            ratio = rates.page_rate[at // CHUNK_PAGES, at % CHUNK_PAGES] / mean[slot]
        weight = np.float32(period[i]) * kind_weight[slot, kind[i]]
        if len(latency_ns) and kind[i] == LOAD:
            weight *= stall_share(waited_share(weight_ns[i], code, latency_ns))
        weighs = np.float64(min(weight, most[slot]))
        octaves = np.log2(min(max(ratio, _RATIO_LEAST), _RATIO_MOST))
        sums[slot, 0] += weighs
        sums[slot, 1] += weighs * octaves
        sums[slot, 2] += weighs * weighs
        sums[slot, 3] += weighs * weighs * octaves
        sums[slot, 4] += weighs * weighs * octaves * octaves


@kernel
def discount(chunks: int, columns: ChunkColumns, part: Float64s) -> None:
    """Multiply all counts of processes by their ``part``, shape ``(processes,)``, where not 1."""
    for chunk in range(chunks):
        share = np.float32(part[columns.process[chunk]])
        if share == 1.0:
            continue
        columns.heat_sum[chunk] *= share
        columns.recent_sum[chunk] *= share
        row = columns.detail[chunk]
        if row >= 0:
            heat, recent = columns.heat[row], columns.recent[row]
            for i in range(CHUNK_PAGES):
                heat[i] *= share
                recent[i] *= share


@dataclass(frozen=True, slots=True)
class _RatesBefore:
    """What the table last knew of its pages, and the order of the chunks that it had then."""

    rates: KnownRates
    priors: Priors
    order: int


class ChangePoints:
    """Finds refuted processes; columns have shape ``(processes,)``.

    ``spreads`` are those that the priors of rates begin with.
    """

    def __init__(self) -> None:
        self._known: _RatesBefore | None = None
        self._since, self._last, self._changes = (np.zeros(0, np.int64) for _ in range(3))
        self.spreads = BeginningSpreads.of(0)

    def track(self, slots: npt.NDArray[np.int32], processes: int, tick: int) -> None:
        """Keep what is known of processes; ``slots`` has the new slot of each, -1 if it is gone."""
        self._known = None
        before = self._since, self._last, self._changes, *self.spreads
        fresh = (np.full(processes, tick), np.full(processes, tick), np.zeros(processes, np.int64))
        now = *fresh, *BeginningSpreads.of(processes)
        for old, new in zip(before, now, strict=True):
            new[slots[slots >= 0]] = old[slots >= 0]
        self._since, self._last, self._changes = now[:3]
        self.spreads = BeginningSpreads(*now[3:])

    def know(self, rates: TableRates, mean: Values, priors: Priors, chunks: Chunks) -> None:
        """Take the rates that the samples of the next tick are compared with."""
        known = KnownRates(rates, mean, chunks.columns.owner.copy())
        self._known = _RatesBefore(known, priors, chunks.order)

    def kept(
        self, batch: AccessBatch, weights: SampleWeights, chunks: Chunks, clocks: Clocks
    ) -> Values | None:
        """Return the part of its past that each process keeps; None where none is refuted.

        ``weights`` are those with which the samples will be counted. None is refuted where rates
        were not asked for since the last tick, or chunks were removed since.
        """
        known, self._known = self._known, None
        if known is None or known.order != chunks.order:
            return None
        step = -(-len(batch) // SAMPLES_MOST) or 1
        process, address = batch.process[::step], batch.address[::step]
        number, sums = np.empty(len(process), np.int64), np.zeros((len(known.rates.mean), 5))
        number_addresses(process, address, chunks.index, chunks.columns, number)
        samples = (process, batch.kind[::step], batch.period[::step], batch.weight_ns[::step])
        score_samples(samples, number, weights, chunks.columns, known.rates, sums)
        slots = np.flatnonzero(is_refuted(sums))
        if not len(slots):
            return None
        self._note(slots, known.priors, clocks.tick)
        past = (clocks.clock + clocks.window)[slots]
        part = np.ones(len(sums))
        part[slots] = np.minimum(PAST_WEIGHT * step * sums[slots, 0] / past, 1.0)
        return part

    def _note(self, slots: Ticks, priors: Priors, tick: int) -> None:
        """Note changes of processes, and how far their rates strayed before."""
        self._changes[slots] += 1
        self._last[slots] = tick
        spreads = self.spreads
        for known, prior, most in (
            (spreads.blocks, priors.blocks, np.inf),
            (spreads.pages, priors.pages, np.inf),
            (spreads.block_weight, priors.block_weight, _SPREAD_WEIGHT),
            (spreads.page_weight, priors.page_weight, _SPREAD_WEIGHT),
        ):
            known[slots] = np.minimum(prior[slots], most)

    def lasting_ticks(self, tick: int) -> Values:
        """Return for how many ticks heat is expected to last, by the changes so far.

        As long as it has lasted by now (Lindy's law) or, if that is longer, as it did on average
        between changes; infinite for a process that has not changed.
        """
        age = tick - self._last + 1.0 + _BEFORE
        mean = (self._last - self._since) / np.maximum(self._changes, 1)
        return np.where(self._changes > 0, np.maximum(age, mean), np.inf)


def is_refuted(sums: Values) -> npt.NDArray[np.bool_]:
    """Return which processes' samples were likelier if all pages were alike, beyond chance.

    ``sums`` are those of :func:`score_samples`.
    """
    weight = np.maximum(sums[:, 0], _LEAST_WEIGHT)
    mean = sums[:, 1] / weight
    squares = sums[:, 4] - 2.0 * mean * sums[:, 3] + mean * mean * sums[:, 2]
    highest = mean + _ERRORS * np.sqrt(np.maximum(squares, 0.0)) / weight
    refuted: npt.NDArray[np.bool_] = highest < -_OCTAVES_LEAST
    return refuted & (weight * weight >= _SAMPLES_LEAST * sums[:, 2])
