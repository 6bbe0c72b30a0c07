"""The kernels of the trust in the network: rates by its answers, and what samples say of those.

About 10 ns per row, and 10 ns per sampled row and tick that is followed.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.heat.kernels import (
    Float32s,
    Float64Plane,
    Int32s,
    Int64s,
    Layout,
    Uint16s,
    kernel,
)

LEVELS: Final = 5
"""Factors on an answer: 0, 1/4, 1/2, 3/4, 1."""
FOLLOWED: Final = 8
"""Ticks whose answers samples are compared with."""
OCTAVES_MOST: Final = 7.9
"""Answers are taken as far as this, in octaves above or below 0."""

# Answers are kept in 16ths of an octave.
_STEPS: Final = np.float32(16)
_QUARTER: Final = np.float32(1 / 4)

Int8Plane: TypeAlias = Annotated[npt.NDArray[np.int8], Layout(2)]
BoolPlane: TypeAlias = Annotated[npt.NDArray[np.bool_], Layout(2)]
Float64Cube: TypeAlias = Annotated[npt.NDArray[np.float64], Layout(3)]


class AnsweredRows(NamedTuple):
    """Columns of the rows of a view, and the network's answers, ``octaves``; shape ``(n,)``."""

    rate: Float32s
    octaves: Float32s
    size: Uint16s
    process: Int32s
    number: Int64s


@kernel
def correct_rates(
    rows: AnsweredRows,
    level: Int64s,
    kept: Int8Plane,
    slot: int,
    sums: Float64Plane,
    corrected: Float32s,
) -> None:
    """Fill ``corrected``, shape ``(n,)``: ``rate`` times 2 to the power of octaves times a factor.

    The factor is ``level`` of its process over 4. Each process's sum over its pages is as before.
    ``sums``, shape ``(processes, LEVELS)`` and 0, becomes the sums that each factor would give.
    Answers are kept in column ``slot``, unless it is below 0.
    """
    most = np.float32(OCTAVES_MOST)
    for row in range(len(rows.rate)):
        octave = min(max(rows.octaves[row], -most), most)
        if slot >= 0:
            kept[rows.number[row], slot] = np.int8(np.rint(octave * _STEPS))
        each = np.exp2(octave * _QUARTER)
        p, value = rows.process[row], rows.rate[row]
        chosen, pages = level[p], np.float64(rows.size[row])
        corrected[row] = value
        sums[p, 0] += value * pages
        for factor in range(1, LEVELS):
            value *= each
            sums[p, factor] += value * pages
            if factor == chosen:
                corrected[row] = value
    for row in range(len(rows.rate)):
        p = rows.process[row]
        total = sums[p, level[p]]
        if total > 0.0:
            corrected[row] *= np.float32(sums[p, 0] / total)


@kernel
def weigh_answers(
    samples: Float32s,
    number: Int64s,
    process: Int32s,
    kept: Int8Plane,
    norms: Float64Cube,
    known: BoolPlane,
    evidence: Float64Plane,
) -> None:
    """Add to ``evidence``, shape ``(processes, LEVELS)``, log likelihoods of samples, in bits.

    Relative to factor 0, the mean over the ticks followed. ``norms``, shape ``(FOLLOWED, processes,
    LEVELS)``, are logarithms of what each factor would do to sums, of the ticks that are ``known``.
    """
    for row in range(len(samples)):
        p, at = process[row], number[row]
        weight = samples[row] / FOLLOWED
        for slot in range(FOLLOWED):
            if known[slot, p]:
                octave = np.float64(kept[at, slot]) / 16.0
                for factor in range(1, LEVELS):
                    bits = octave * factor / 4.0 - norms[slot, p, factor]
                    evidence[p, factor] += weight * bits
