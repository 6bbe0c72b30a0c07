"""The kernel of the learned policy's features: what pages did lately, without units.

Takes columns of a view, what earlier ticks left and sums by process; gives a row per feature. All
rates enter as base-2 logarithms of their ratios to a mean, so that neither the machine's speed nor
the sampling period matters. Logarithms are computed feature by feature, so that they vectorise.
About 15 ns per page.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from hmd.decide.phase_memory import PHASES
from hmd.heat.kernels import (
    Float32Plane,
    Float32s,
    Float64Plane,
    Float64s,
    Int32s,
    Int64s,
    Uint8s,
    Uint16s,
    inline,
    kernel,
)

FEATURES: Final = (
    "rate", "samples_1", "samples_4", "samples_16", "trend", "support", "idle", "gap", "overdue",
    "burst", "vicinity_rate", "vicinity_samples", "phase_samples", "wear", "size", "slow",
    "latency", "load", "process_rate", "rate_change", "fast_change", "phase_ticks",
    "phase_similarity", "fast_free",
)  # fmt: skip
"""Names in the order of the columns; docs/reference/learned-features.md describes them."""

#: What a page keeps from tick to tick: samples per tick, averaged over 4 and over 16 ticks, their
#: squares over 16, ticks between samples, the ticks of its last sample and of this figure's last
#: change, and samples per tick of each phase.
KEPT_SHORT, KEPT_LONG, SQUARES, GAP, SAMPLED, SEEN, KEPT_PHASE = range(7)
KEPT: Final = KEPT_PHASE + PHASES
TICKS: Final = 1 << 20
#: Columns of sums by process, of which all but the last have means: rate, samples of 1, 4 and 16
#: ticks, samples of the phase, 4 KiB pages, and the accesses of the fastest tier.
RATE, NOW, SHORT, LONG, PHASE, SIZE, FAST = range(7)
SUMS: Final = FAST + 1
#: Columns of sums by vicinity.
NEAR_RATE, NEAR_NOW, NEAR_SIZE = range(3)
NEAR_SUMS: Final = NEAR_SIZE + 1
#: What a tick adds to the averages over 4 and over 16 ticks, of gaps, and of phases.
SHORT_GAIN: Final = np.float32(0.25)
LONG_GAIN: Final = np.float32(1 / 16)
GAP_GAIN: Final = np.float32(0.25)
PHASE_GAIN: Final = np.float32(0.125)
# A page without any counts as a tenth of the mean.
_FLOOR: Final = np.float32(0.1)
# Samples that are added to counts before a ratio of two of them.
_CALM: Final = np.float32(0.05)
_LEAST: Final = np.float32(1e-20)
_WEAR: Final = np.float32(1 / 64)
# Of the features, those that are logarithms: all before wear, and size.
_WEAR_AT: Final = FEATURES.index("wear")
_SIZE_AT: Final = FEATURES.index("size")


def _logarithm() -> tuple[float, ...]:
    """Return a polynomial for log2 on [1, 2), highest power first; its error is below 2e-4."""
    nodes = 1.5 + 0.5 * np.cos(np.pi * (np.arange(64) + 0.5) / 64)
    return tuple(float(c) for c in np.polyfit(nodes, np.log2(nodes), 4))


_C4, _C3, _C2, _C1, _C0 = (np.float32(c) for c in _logarithm())


class RowColumns(NamedTuple):
    """What the view says, shape ``(n,)``; ``tier`` is -1 for unknown ones.

    ``number`` is where what a row keeps is among the kept values.
    """

    number: Int64s
    process: Int32s
    vicinity: Int64s
    tier: Int64s
    size: Uint16s
    wear: Uint8s
    rate: Float32s
    support: Float32s
    samples: Float32s
    idle: Int32s


class Surroundings(NamedTuple):
    """What pages share.

    ``mean``, shape ``(processes, 5)``: means per page as ``RATE`` to ``PHASE`` number them;
    ``inverse``: one over each, and over a little more than 0 where there is none.
    ``common``, shape ``(processes, 3)``: the features process_rate, rate_change, fast_change.
    ``vicinity_rate`` and ``vicinity_samples``, shape
    ``(vicinities,)``: means per page of each 2 MiB.
    ``latency`` and ``load``, shape ``(tiers,)``, are features; ``phase``, shape ``(3,)``, the
    features phase_ticks, phase_similarity, fast_free.
    """

    mean: Float32Plane
    inverse: Float32Plane
    common: Float64Plane
    vicinity_rate: Float64s
    vicinity_samples: Float64s
    latency: Float64s
    load: Float64s
    phase: Float64s


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
    return (x + _FLOOR * mean + _LEAST) * inverse


@kernel
def age_kept(
    kept: Float32Plane, number: Int64s, samples: Float32s, tick: int, phase: int, new: bool
) -> None:
    """Bring what rows keep, ``kept[number]`` of shape ``(n, KEPT)``, to this ``tick``.

    ``samples``, shape ``(n,)``, are those of the tick; of a ``phase`` that is ``new`` nothing is
    known yet. Times are modulo ``TICKS``, which float32 has exactly.
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
        kept[at, SQUARES] = kept[at, SQUARES] * stay_long + long * count * count
        known = np.float32(0) if new else kept[at, KEPT_PHASE + phase]
        kept[at, KEPT_PHASE + phase] = known + PHASE_GAIN * (count - known)
        if count > 0:
            since = now - kept[at, SAMPLED]
            since += np.float32(TICKS) if since < 0 else np.float32(0)
            kept[at, GAP] += GAP_GAIN * (since - kept[at, GAP])
            kept[at, SAMPLED] = now
        kept[at, SEEN] = now


@kernel
def sum_rows(
    kept: Float32Plane,
    phase: int,
    rows: RowColumns,
    by_process: Float64Plane,
    by_vicinity: Float64Plane,
) -> None:
    """Add the rows to sums of shapes ``(processes, SUMS)`` and ``(vicinities, NEAR_SUMS)``."""
    for row in range(len(rows.rate)):
        at, p, near = rows.number[row], rows.process[row], rows.vicinity[row]
        size, samples = np.float32(rows.size[row]), rows.samples[row]
        served = rows.rate[row] * size
        by_process[p, RATE] += served
        by_process[p, NOW] += samples
        by_process[p, SHORT] += kept[at, KEPT_SHORT]
        by_process[p, LONG] += kept[at, KEPT_LONG]
        by_process[p, PHASE] += kept[at, KEPT_PHASE + phase]
        by_process[p, SIZE] += size
        if rows.tier[row] == 0:
            by_process[p, FAST] += served
        by_vicinity[near, NEAR_RATE] += served
        by_vicinity[near, NEAR_NOW] += samples
        by_vicinity[near, NEAR_SIZE] += size


@kernel
def fill_features(
    kept: Float32Plane,
    phase: int,
    rows: RowColumns,
    around: Surroundings,
    begin: int,
    features: Float32Plane,
) -> None:
    """Fill ``features``, shape ``(len(FEATURES), k)``, with those of the k rows from ``begin``."""
    one, zero, count = np.float32(1), np.float32(0), features.shape[1]
    for i in range(count):
        row = begin + i
        at, p, near = rows.number[row], rows.process[row], rows.vicinity[row]
        tier = max(rows.tier[row], 0)
        size = max(np.float32(rows.size[row]), one)
        each = one / size
        short, long = kept[at, KEPT_SHORT], kept[at, KEPT_LONG]
        idle, gap = np.float32(rows.idle[row]), kept[at, GAP]
        rate, over_rate = around.mean[p, RATE], around.inverse[p, RATE]
        now, over_now = around.mean[p, NOW], around.inverse[p, NOW]
        features[0, i] = _ratio(rows.rate[row], rate, over_rate)
        features[1, i] = _ratio(rows.samples[row] * each, now, over_now)
        features[2, i] = _ratio(short * each, around.mean[p, SHORT], around.inverse[p, SHORT])
        features[3, i] = _ratio(long * each, around.mean[p, LONG], around.inverse[p, LONG])
        features[4, i] = (short + _CALM) / (long + _CALM)
        features[5, i] = one + rows.support[row]
        features[6, i] = one + idle
        features[7, i] = one + gap
        features[8, i] = (one + idle) / (one + gap)
        spread = max(kept[at, SQUARES] - long * long, zero)
        features[9, i] = (spread + _CALM) / (long + _CALM)
        features[10, i] = _ratio(np.float32(around.vicinity_rate[near]), rate, over_rate)
        features[11, i] = _ratio(np.float32(around.vicinity_samples[near]), now, over_now)
        there = kept[at, KEPT_PHASE + phase] * each
        features[12, i] = _ratio(there, around.mean[p, PHASE], around.inverse[p, PHASE])
        features[_WEAR_AT, i] = np.float32(rows.wear[row]) * _WEAR
        features[_SIZE_AT, i] = size
        features[15, i] = one if tier > 0 else zero
        features[16, i] = np.float32(around.latency[tier])
        features[17, i] = np.float32(around.load[tier])
        for shared in range(3):
            features[18 + shared, i] = np.float32(around.common[p, shared])
            features[21 + shared, i] = np.float32(around.phase[shared])
    for feature in range(_SIZE_AT + 1):
        if feature != _WEAR_AT:
            for i in range(count):
                features[feature, i] = _log2(features[feature, i])
