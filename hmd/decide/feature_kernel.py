"""The kernel of the learned policy's features: what pages did lately, without units.

Takes columns of a view, what earlier ticks left and sums by process; gives a row per feature. All
rates enter as base-2 logarithms of their ratios to a mean, so that neither the machine's speed nor
the sampling period matters. About 40 ns per page.
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
#: Columns of means by process: rate, samples of 1, 4 and 16 ticks, samples of the phase.
RATE, NOW, SHORT, LONG, PHASE = range(5)
#: What a tick adds to the averages over 4 and over 16 ticks, of gaps, and of phases.
SHORT_GAIN: Final = np.float32(0.25)
LONG_GAIN: Final = np.float32(1 / 16)
GAP_GAIN: Final = np.float32(0.25)
PHASE_GAIN: Final = np.float32(0.125)
# A page without any counts as a tenth of the mean.
_FLOOR: Final = np.float32(0.1)
# Samples that are added to counts before a ratio of two of them.
_CALM: Final = np.float32(0.05)
_WEAR: Final = np.float32(1 / 64)


def _logarithm() -> tuple[float, ...]:
    """Return a polynomial for log2 on [1, 2), highest power first; its error is below 2e-4."""
    nodes = 1.5 + 0.5 * np.cos(np.pi * (np.arange(64) + 0.5) / 64)
    return tuple(float(c) for c in np.polyfit(nodes, np.log2(nodes), 4))


_C4, _C3, _C2, _C1, _C0 = (np.float32(c) for c in _logarithm())


class RowColumns(NamedTuple):
    """What the view says, shape ``(n,)``; ``tier`` is -1 for unknown ones."""

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

    ``process``, shape ``(processes, 5)``: means per page as ``RATE`` to ``PHASE`` number them.
    ``common``, shape ``(processes, 3)``: the features process_rate, rate_change, fast_change.
    ``vicinity_rate`` and ``vicinity_samples``, shape
    ``(vicinities,)``: means per page of each 2 MiB.
    ``latency`` and ``load``, shape ``(tiers,)``, are features; ``phase``, shape ``(3,)``, the
    features phase_ticks, phase_similarity, fast_free.
    """

    process: Float64Plane
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
def _ratio(x: np.float32, mean: np.float32) -> np.float32:
    """Return the logarithm of x over its mean, with a floor."""
    return _log2((x + _FLOOR * mean + np.float32(1e-20)) / (mean + np.float32(1e-20)))


@kernel
def age_kept(kept: Float32Plane, samples: Float32s, tick: int, phase: int) -> None:
    """Bring what pages keep, shape ``(n, KEPT)``, to this ``tick`` of a ``phase``.

    ``samples``, shape ``(n,)``, are those of the tick. Times are modulo ``TICKS``, which float32
    has exactly.
    """
    now = np.float32(tick % TICKS)
    for row in range(len(samples)):
        count = samples[row]
        elapsed = now - kept[row, SEEN]
        elapsed += np.float32(TICKS) if elapsed < 0 else np.float32(0)
        stay_short, stay_long = np.float32(1) - SHORT_GAIN, np.float32(1) - LONG_GAIN
        if elapsed != 1:
            stay_short, stay_long = stay_short**elapsed, stay_long**elapsed
        # This tick's samples stand for those of the ticks between.
        short, long = np.float32(1) - stay_short, np.float32(1) - stay_long
        kept[row, KEPT_SHORT] = kept[row, KEPT_SHORT] * stay_short + short * count
        kept[row, KEPT_LONG] = kept[row, KEPT_LONG] * stay_long + long * count
        kept[row, SQUARES] = kept[row, SQUARES] * stay_long + long * count * count
        kept[row, KEPT_PHASE + phase] += PHASE_GAIN * (count - kept[row, KEPT_PHASE + phase])
        if count > 0:
            since = now - kept[row, SAMPLED]
            since += np.float32(TICKS) if since < 0 else np.float32(0)
            kept[row, GAP] += GAP_GAIN * (since - kept[row, GAP])
            kept[row, SAMPLED] = now
        kept[row, SEEN] = now


@kernel
def fill_features(
    kept: Float32Plane,
    phase: int,
    rows: RowColumns,
    around: Surroundings,
    features: Float32Plane,
) -> None:
    """Fill ``features``, shape ``(len(FEATURES), n)``, in the order of ``FEATURES``."""
    one, zero = np.float32(1), np.float32(0)
    for row in range(len(rows.rate)):
        p, near, tier = rows.process[row], rows.vicinity[row], max(rows.tier[row], 0)
        size = max(np.float32(rows.size[row]), one)
        short, long = kept[row, KEPT_SHORT], kept[row, KEPT_LONG]
        idle, gap = np.float32(rows.idle[row]), kept[row, GAP]
        mean_now = np.float32(around.process[p, NOW])
        mean_rate = np.float32(around.process[p, RATE])
        features[0, row] = _ratio(rows.rate[row], mean_rate)
        features[1, row] = _ratio(rows.samples[row] / size, mean_now)
        features[2, row] = _ratio(short / size, np.float32(around.process[p, SHORT]))
        features[3, row] = _ratio(long / size, np.float32(around.process[p, LONG]))
        features[4, row] = _log2((short + _CALM) / (long + _CALM))
        features[5, row] = _log2(one + rows.support[row])
        features[6, row] = _log2(one + idle)
        features[7, row] = _log2(one + gap)
        features[8, row] = _log2((one + idle) / (one + gap))
        spread = max(kept[row, SQUARES] - long * long, zero)
        features[9, row] = _log2((spread + _CALM) / (long + _CALM))
        features[10, row] = _ratio(np.float32(around.vicinity_rate[near]), mean_rate)
        features[11, row] = _ratio(np.float32(around.vicinity_samples[near]), mean_now)
        there = kept[row, KEPT_PHASE + phase] / size
        features[12, row] = _ratio(there, np.float32(around.process[p, PHASE]))
        features[13, row] = np.float32(rows.wear[row]) * _WEAR
        features[14, row] = _log2(size)
        features[15, row] = one if tier > 0 else zero
        features[16, row] = np.float32(around.latency[tier])
        features[17, row] = np.float32(around.load[tier])
        for shared in range(3):
            features[18 + shared, row] = np.float32(around.common[p, shared])
            features[21 + shared, row] = np.float32(around.phase[shared])
