# SPDX-License-Identifier: MIT
"""The features of the learned policy: scale-free figures per row.

Takes the page view of each tick, gives a column per feature
(:data:`hmd.policy.learned.features.FEATURES`, in version :data:`VERSION`). Figures of earlier
ticks are kept per page, 20 bytes each, and by part of memory: blocks of 64 KiB or, beyond 128 MiB,
a 2048th of the memory, and areas of eight blocks. The first call of a tick learns from it; a second
gives the same. About 40 ns per page.

The kernels of the learned policy's features: what pages and their surroundings did, unit-free.

Takes columns of a view, what earlier ticks left, and tables by part of memory; gives a row per
feature. All rates enter as base-2 logarithms of their ratios to a mean, so that neither the speed
of the machine nor the sampling period matters. What a page shares with others is a logarithm
already, by part of memory; those of the page are computed feature by feature, so that they
vectorise. About 9 ns per page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import (
    Float32Plane,
    Float32s,
    Float64Plane,
    Int8s,
    Int32s,
    Int64s,
    Uint8s,
    Uint16s,
    Uint64s,
    inline,
    kernel,
)
from hmd.base.units import PAGE_BYTES
from hmd.heat.counting import run_end
from hmd.linux.process_table import ProcessTable, carry_over
from hmd.policy.learned.sequence_memory import PhasePrediction, SequenceMemory

if TYPE_CHECKING:
    from hmd.heat.page_state import PageState
    from hmd.heat.view import PageView

FEATURES: Final = (
    "rate", "samples_1", "samples_4", "samples_16", "support", "idle", "gap",
    "block_next", "block_now", "block_past", "area_next", "area_now", "area_past",
    "wear", "slow", "similarity", "ticks", "density", "rate_change",
)  # fmt: skip
"""Names in the order of the columns; docs/reference/learned-features.md describes them."""

#: What a page keeps from tick to tick: samples per tick, averaged over 4 and over 16 ticks, ticks
#: between samples, the ticks of its last sample and of this figure's last change.
KEPT_SHORT, KEPT_LONG, GAP, SAMPLED, SEEN = range(5)
KEPT: Final = SEEN + 1
TICKS: Final = 1 << 20
#: Columns of sums by process: of rate, of samples of 1, 4 and 16 ticks, and base pages.
RATE, NOW, SHORT, LONG, SIZE = range(5)
SUMS: Final = SIZE + 1
#: Parts of memory: blocks, then areas of eight times a block; each of both has its number.
BLOCKS: Final = 2048
AREAS: Final = 256
PARTS: Final = BLOCKS + AREAS
AREA_SHIFT: Final = 3
#: Columns of the tables by part.
NEXT, PRESENT, PAST = range(3)
#: What a tick adds to the averages over 4 and over 16 ticks, and of gaps.
SHORT_GAIN: Final = np.float32(0.25)
LONG_GAIN: Final = np.float32(1 / 16)
GAP_GAIN: Final = np.float32(0.25)
FLOOR: Final = np.float32(0.1)
"""A page without any counts as this part of the mean."""
_MIN_RATE: Final = np.float32(1e-20)
_WEAR: Final = np.float32(1 / 64)
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
_BLOCK_BITS: Final = np.uint64(64 - 11)
_AREA_BITS: Final = np.uint64(64 - 8)
_PROCESS_BITS: Final = np.uint64(44)


def _logarithm() -> tuple[float, ...]:
    """Return a polynomial for log2 on [1, 2), highest power first; its error is below 2e-4."""
    nodes = 1.5 + 0.5 * np.cos(np.pi * (np.arange(64) + 0.5) / 64)
    return tuple(float(c) for c in np.polyfit(nodes, np.log2(nodes), 4))


_C4, _C3, _C2, _C1, _C0 = (np.float32(c) for c in _logarithm())


class RowColumns(NamedTuple):
    """What the view says, shape ``(n,)``; ``tier`` is -1 for unknown ones.

    ``number`` is where what a row keeps is among the kept values; ``block`` and ``area`` are its
    parts of memory.
    """

    number: Int64s
    process: Int32s
    block: Int32s
    area: Int32s
    tier: Int8s
    size: Uint16s
    wear: Uint8s
    rate: Float32s
    support: Float32s
    samples: Float32s
    idle: Int32s


class Surroundings(NamedTuple):
    """What pages share.

    ``mean``, shape ``(processes, 4)``: means per page as ``RATE`` to ``LONG`` number them;
    ``inverse``: one over each, and over a little more than 0 where there is none.
    ``parts``, shape ``(PARTS, 3)``: features as ``NEXT`` to ``PAST`` number them, logarithms.
    ``common``, shape ``(3,)``: the features similarity, ticks, density.
    ``change``, shape ``(processes,)``: the feature rate_change.
    """

    mean: Float32Plane
    inverse: Float32Plane
    parts: Float32Plane
    common: Float32s
    change: Float32s


@inline
def _log2(x: np.float32) -> np.float32:
    """Return the base-2 logarithm of a positive number, to 2e-4."""
    bits = np.float32(x).view(np.int32)
    exponent = np.float32((bits >> np.int32(23)) - np.int32(127))
    m = np.int32((bits & np.int32(0x7FFFFF)) | np.int32(0x3F800000)).view(np.float32)
    return exponent + ((((_C4 * m + _C3) * m + _C2) * m + _C1) * m + _C0)


@inline
def _ratio(x: np.float32, mean: np.float32, inverse: np.float32) -> np.float32:
    """Return x over its mean, with a floor."""
    return (x + FLOOR * mean + _MIN_RATE) * inverse


@kernel
def number_parts(
    address: Uint64s, process: Int32s, pid: Uint64s, shift: int, block: Int32s, area: Int32s
) -> None:
    """Fill ``block`` and ``area``, of 2**shift and 8 * 2**shift bytes.

    Both are hashes of address and ``pid``, shape ``(processes,)``.
    """
    for row in range(len(address)):
        base = pid[process[row]] << _PROCESS_BITS
        first = address[row] >> np.uint64(shift)
        second = first >> np.uint64(AREA_SHIFT)
        block[row] = np.int32(((first ^ base) * _SPREAD) >> _BLOCK_BITS)
        area[row] = np.int32(((second ^ base) * _SPREAD) >> _AREA_BITS)


@kernel
def age_kept(kept: Float32Plane, number: Int64s, samples: Float32s, tick: int) -> None:
    """Bring what rows keep, ``kept[number]`` of shape ``(n, KEPT)``, to this ``tick``.

    ``samples``, shape ``(n,)``, are those of the tick. Times are modulo ``TICKS``, which float32
    has exactly.
    """
    now = np.float32(tick % TICKS)
    for row in range(len(samples)):
        at, count = number[row], samples[row]
        elapsed = now - kept[at, SEEN]
        elapsed += np.float32(TICKS) if elapsed < 0 else np.float32(0)
        stay_short, stay_long = np.float32(1) - SHORT_GAIN, np.float32(1) - LONG_GAIN
        if elapsed != 1:
            stay_short, stay_long = stay_short**elapsed, stay_long**elapsed
        # This tick's samples stand for those of the ticks between.
        short, long = np.float32(1) - stay_short, np.float32(1) - stay_long
        kept[at, KEPT_SHORT] = kept[at, KEPT_SHORT] * stay_short + short * count
        kept[at, KEPT_LONG] = kept[at, KEPT_LONG] * stay_long + long * count
        if count > 0:
            since = now - kept[at, SAMPLED]
            since += np.float32(TICKS) if since < 0 else np.float32(0)
            kept[at, GAP] += GAP_GAIN * (since - kept[at, GAP])
            kept[at, SAMPLED] = now
        kept[at, SEEN] = now


@inline
def _part_end(rows: RowColumns, begin: int) -> int:
    """Return where the rows end that follow a row and are of its process and parts of memory."""
    end, p, block, area = begin + 1, rows.process[begin], rows.block[begin], rows.area[begin]
    while (
        end < len(rows.process)
        and rows.process[end] == p
        and rows.block[end] == block
        and rows.area[end] == area
    ):
        end += 1
    return end


@kernel
def sum_rows(
    kept: Float32Plane, rows: RowColumns, by_process: Float64Plane, by_part: Float64Plane
) -> None:
    """Add the rows to sums of shapes ``(processes, SUMS)`` and ``(PARTS, 2)``.

    The latter are samples of the tick, and base pages.
    """
    begin = 0
    while begin < len(rows.rate):
        # Neighbours are of one part: their sums stay in registers.
        end, p = _part_end(rows, begin), rows.process[begin]
        block, area = rows.block[begin], BLOCKS + rows.area[begin]
        rate, samples, short, long, pages = 0.0, 0.0, 0.0, 0.0, 0.0
        for row in range(begin, end):
            at, size = rows.number[row], np.float64(rows.size[row])
            rate += rows.rate[row] * size
            samples += rows.samples[row]
            short += kept[at, KEPT_SHORT]
            long += kept[at, KEPT_LONG]
            pages += size
        by_process[p, RATE] += rate
        by_process[p, NOW] += samples
        by_process[p, SHORT] += short
        by_process[p, LONG] += long
        by_process[p, SIZE] += pages
        by_part[block, 0] += samples
        by_part[area, 0] += samples
        by_part[block, 1] += pages
        by_part[area, 1] += pages
        begin = end


@inline
def _gather(kept: Float32Plane, number: Int64s, features: Float32Plane) -> None:
    """Fill what rows keep, as it is."""
    for i in range(len(number)):
        at = number[i]
        features[2, i] = kept[at, KEPT_SHORT]
        features[3, i] = kept[at, KEPT_LONG]
        features[6, i] = kept[at, GAP]


@inline
def _gather_parts(parts: Float32Plane, block: Int32s, area: Int32s, features: Float32Plane) -> None:
    """Fill the features of each row's parts of memory."""
    for i in range(len(block)):
        at, around = block[i], BLOCKS + area[i]
        for column in range(3):
            features[7 + column, i] = parts[at, column]
            features[10 + column, i] = parts[around, column]


@kernel
def fill_features(
    kept: Float32Plane,
    rows: RowColumns,
    around: Surroundings,
    begin: int,
    features: Float32Plane,
) -> None:
    """Fill ``features``, shape ``(len(FEATURES), k)``, with those of the k rows from ``begin``.

    Feature by feature, in loops that vectorise; of the rows of one process at a time.
    """
    one, zero, count = np.float32(1), np.float32(0), features.shape[1]
    end = begin + count
    # Slices: of an index that is a sum LLVM does not know that it is not negative.
    rate, samples, support = rows.rate[begin:end], rows.samples[begin:end], rows.support[begin:end]
    size, idle, wear = rows.size[begin:end], rows.idle[begin:end], rows.wear[begin:end]
    tier, process = rows.tier[begin:end], rows.process[begin:end]
    _gather(kept, rows.number[begin:end], features)
    _gather_parts(around.parts, rows.block[begin:end], rows.area[begin:end], features)
    for i in range(count):
        features[0, i] = rate[i]
    for i in range(count):
        features[1, i] = samples[i]
    # Of extents, samples per page.
    for feature in range(1, 4):
        for i in range(count):
            features[feature, i] /= max(np.float32(size[i]), one)
    for i in range(count):
        features[4, i] = _log2(one + support[i])
    for i in range(count):
        features[5, i] = _log2(one + np.float32(idle[i]))
    for i in range(count):
        features[6, i] = _log2(one + features[6, i])
    for i in range(count):
        features[13, i] = np.float32(wear[i]) * _WEAR
    for i in range(count):
        features[14, i] = one if tier[i] > 0 else zero
    for shared in range(3):
        features[15 + shared, :] = around.common[shared]
    first = 0
    while first < count:
        p, last = process[first], run_end(process, first, count)
        for feature in range(4):
            mean, inverse = around.mean[p, feature], around.inverse[p, feature]
            shares = features[feature, first:last]
            for i in range(len(shares)):
                shares[i] = _log2(_ratio(shares[i], mean, inverse))
        features[18, first:last] = around.change[p]
        first = last


VERSION: Final = 2
"""Version of the features: weights are of one version, and a change of a feature is another."""

_BLOCK_SHIFT: Final = 16
# Averages over about 2 and 16 ticks, of parts and of processes.
_NOW: Final = 0.4
_LONG: Final = 1 / 16
_LEAST: Final = 1e-12
_LEAST_MEAN: Final = 1e-20

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RowFeatures:
    """The rows of a view; features are computed for some rows at a time.

    Valid until the features of the next tick.
    """

    _kept: npt.NDArray[np.float32]
    _rows: RowColumns
    _around: Surroundings

    def fill(self, begin: int, columns: npt.NDArray[np.float32]) -> None:
        """Fill ``columns``, shape ``(len(FEATURES), k)``, with those of the k rows from there."""
        fill_features(self._kept, self._rows, self._around, begin, columns)

    def columns(self) -> npt.NDArray[np.float32]:
        """Return the features of all rows, shape ``(len(FEATURES), n)``."""
        every = np.empty((len(FEATURES), len(self._rows.rate)), np.float32)
        self.fill(0, every)
        return every


class LearnedFeatures:
    """Computes the features, tick by tick, of the processes of one heat table at a time."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._tick, self._ticks = -1, 0
        self._kept: PageState | None = None
        self._table = ProcessTable()
        # By process: its average rate, and its pid.
        self._rate, self._pid = np.zeros(0), np.zeros(0, np.uint64)
        self._forget_parts(_BLOCK_SHIFT)

    def _forget_parts(self, shift: int) -> None:
        """Begin with parts of another size."""
        self._shift = shift
        self._sequence = SequenceMemory(PARTS, BLOCKS)
        self._now, self._past = np.zeros(PARTS), np.zeros(PARTS)
        self._prediction = PhasePrediction(np.zeros(PARTS, np.float32), 0.0, 0)

    def rows(self, pages: PageView) -> RowFeatures:
        """Learn from the tick of a view; return the features of its rows, not computed yet."""
        from hmd.heat.page_state import PageState

        if pages.tick < self._tick:  # a new table: the daemon's configuration has changed
            self._clear()
        if self._kept is None:
            self._kept = PageState(np.float32, 0, KEPT)
        kept, number = self._kept.in_place(pages)
        self._follow(pages)
        news = pages.tick != self._tick
        if news:
            self._tick = pages.tick
            age_kept(kept, number, pages.tick_samples, pages.tick)
            self._size_parts(pages)
        count = len(pages)
        block, area = np.empty(count, np.int32), np.empty(count, np.int32)
        number_parts(pages.address, pages.process, self._pid, self._shift, block, area)
        rows = RowColumns(
            number,
            pages.process,
            block,
            area,
            pages.tier,
            pages.size,
            pages.wear,
            pages.rate,
            pages.effective_samples,
            pages.tick_samples,
            pages.idle_ticks,
        )
        by_process, by_part = np.zeros((len(pages.processes), SUMS)), np.zeros((PARTS, 2))
        sum_rows(kept, rows, by_process, by_part)
        samples = float(by_part[:BLOCKS, 0].sum())
        if news:
            self._learn(pages, by_part[:, 0] / max(samples, 1.0), samples > 0)
        around = self._around(pages, by_process, by_part[:, 1], samples)
        return RowFeatures(kept, rows, around)

    def _size_parts(self, pages: PageView) -> None:
        """Make parts larger where there is so much memory that it does not fit into them."""
        memory = (float(pages.size.sum()) + float(pages.unshown.pages.sum())) * PAGE_BYTES
        shift = _BLOCK_SHIFT
        while memory > BLOCKS << shift:
            shift += 1
        # Not back again at once: what is known of parts is lost.
        if not self._shift - 1 <= shift <= self._shift:
            self._forget_parts(shift)

    def _learn(self, pages: PageView, share: Values, sampled: bool) -> None:
        """Remember what parts and processes had in the tick."""
        if sampled:
            self._ticks += 1
            self._now += _NOW * (share - self._now)
            self._past += _LONG * (share - self._past)
            self._prediction = self._sequence.update(share.astype(np.float32))
        self._rate += _LONG * (pages.process_rate - self._rate)

    def _follow(self, pages: PageView) -> None:
        """Bring what is known of processes to their present slots; new ones begin as they are."""
        before = self._table.replace(pages.processes)
        if before is not None:
            self._pid = np.array([process.pid for process in pages.processes], np.uint64)
            self._rate = np.where(before < 0, pages.process_rate, carry_over(self._rate, before))

    def _around(
        self, pages: PageView, by_process: Values, part_pages: Values, samples: float
    ) -> Surroundings:
        """Return what the rows share."""
        mean = (by_process[:, :SIZE] / np.maximum(by_process[:, SIZE:], 1.0)).astype(np.float32)
        total = max(float(by_process[:, SIZE].sum()), 1.0)
        # Per page of a part, over the mean of all pages: an average begins with its first tick.
        over = total / np.maximum(part_pages, 1.0)
        begun = [max(1.0 - (1.0 - gain) ** self._ticks, _LEAST) for gain in (_NOW, _LONG)]
        shares = (self._prediction.share, self._now / begun[0], self._past / begun[1])
        parts = np.stack([np.log2(share * over + FLOOR) for share in shares], axis=1)
        change = np.log2((pages.process_rate + _LEAST) / (self._rate + _LEAST))
        density = np.log2(max(samples, 1.0) / total)
        common = [self._prediction.similarity, np.log2(1.0 + self._prediction.ticks), density]
        return Surroundings(
            mean,
            np.float32(1) / (mean + np.float32(_LEAST_MEAN)),
            parts.astype(np.float32),
            np.array(common, np.float32),
            change.astype(np.float32),
        )
