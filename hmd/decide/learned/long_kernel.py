"""The kernels of the long memory: mean rates of pages over many ticks, and how they prove right.

Takes columns of a view and what earlier ticks left. About 15 ns per row, and 15 ns per sampled
row.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.heat.kernels import (
    Float32Plane,
    Float32s,
    Float64Plane,
    Float64s,
    Int32s,
    Int64s,
    Layout,
    Uint16s,
    Uint64s,
    kernel,
)
from hmd.heat.process_runs import run_end

#: What a page keeps: its samples, and the samples of its process in the same ticks; both fade.
COUNTED, HEARD = range(2)
KEPT: Final = HEARD + 1
SNAPSHOTS: Final = 4
"""Ticks whose rates are compared with the samples that follow."""
LEVELS: Final = 5
"""Weights of the long memory: 0, 1/4, 1/2, 3/4, 1."""
#: Columns of sums by block: samples, and exposure.
SAMPLES, EXPOSED = range(2)
BLOCK_SUMS: Final = EXPOSED + 1
#: Columns of sums by process: samples, exposure, accesses of the view, deviations of blocks from
#: the process and of pages from their block beyond chance, and what they deviate from, squared.
(TOTAL, EXPOSURE, SERVED, BLOCK_EXCESS, BLOCK_SCALE, PAGE_EXCESS, PAGE_SCALE) = range(7)
SUMS: Final = PAGE_SCALE + 1

# Ratios are kept in 8ths of an octave, as far as 15 octaves.
_STEPS: Final = 8.0
_OCTAVES_MOST: Final = 15.0
_MIDDLE: Final = int(_STEPS * _OCTAVES_MOST)
_BLOCK_SHIFT: Final = np.uint64(16)
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
_PROCESS_BITS: Final = np.uint64(44)
_LEAST: Final = 1e-12
# The part of a page's own samples in the mean of a block of 16 pages is no deviation.
_OTHERS: Final = 15 / 16
# Half a sample is added to a count, as for the rates of the view.
_UNSEEN: Final = 0.5

Int8Plane: TypeAlias = Annotated[npt.NDArray[np.int8], Layout(2)]


class LongRows(NamedTuple):
    """Columns of the rows of a view; shape ``(n,)``.

    ``number`` is where what a row keeps is, ``block`` the number of its block.
    """

    number: Int64s
    process: Int32s
    block: Int32s
    size: Uint16s
    samples: Float32s
    rate: Float32s


@kernel
def number_blocks(
    address: Uint64s, process: Int32s, pid: Uint64s, bits: int, block: Int32s
) -> None:
    """Fill ``block``: a hash of ``bits`` bits of the 64 KiB around each address, by process."""
    shift = np.uint64(64 - bits)
    for row in range(len(address)):
        base = pid[process[row]] << _PROCESS_BITS
        block[row] = np.int32((((address[row] >> _BLOCK_SHIFT) ^ base) * _SPREAD) >> shift)


@kernel
def count_samples(
    kept: Float32Plane,
    rows: LongRows,
    heard: Float64s,
    stay: Float64s,
    by_block: Float64Plane,
    by_process: Float64Plane,
) -> None:
    """Add a tick's samples to what rows keep, and all that they keep to sums.

    What was kept stays by the factor ``stay``, by process. ``heard`` are the samples of each
    process in the tick. ``by_block`` has shape ``(blocks, BLOCK_SUMS)``, ``by_process``
    ``(processes, SUMS)``.
    """
    begin = 0
    while begin < len(rows.process):
        p = rows.process[begin]
        last = run_end(rows.process, begin, len(rows.process))
        stays, came = np.float32(stay[p]), np.float32(heard[p])
        total, exposure, served = 0.0, 0.0, 0.0
        while begin < last:
            # Neighbours are of one block: their sums stay in registers.
            end, block = run_end(rows.block, begin, last), rows.block[begin]
            counted, exposed = 0.0, 0.0
            for row in range(begin, end):
                at, pages = rows.number[row], np.float64(rows.size[row])
                count = kept[at, COUNTED] * stays + rows.samples[row]
                known = kept[at, HEARD] * stays + came
                kept[at, COUNTED], kept[at, HEARD] = count, known
                counted += np.float64(count)
                exposed += np.float64(known) * pages
                served += np.float64(rows.rate[row]) * pages
            by_block[block, SAMPLES] += counted
            by_block[block, EXPOSED] += exposed
            total += counted
            exposure += exposed
            begin = end
        by_process[p, TOTAL] += total
        by_process[p, EXPOSURE] += exposure
        by_process[p, SERVED] += served


@kernel
def sum_deviations(
    kept: Float32Plane,
    rows: LongRows,
    mean: Float64s,
    by_block: Float64Plane,
    by_process: Float64Plane,
) -> None:
    """Add how far blocks and pages deviate beyond chance; ``mean`` is the rate by process.

    Each row of a block counts its part of the block's deviation.
    """
    begin = 0
    while begin < len(rows.process):
        p = rows.process[begin]
        last = run_end(rows.process, begin, len(rows.process))
        block_excess, block_scale, page_excess, page_scale = 0.0, 0.0, 0.0, 0.0
        while begin < last:
            end, block = run_end(rows.block, begin, last), rows.block[begin]
            counted, all_exposed = by_block[block, SAMPLES], by_block[block, EXPOSED]
            each, parts = 1.0 / max(all_exposed, _LEAST), 0.0
            for row in range(begin, end):
                at = rows.number[row]
                part = np.float64(kept[at, HEARD]) * rows.size[row] * each
                expected = counted * part
                deviation = np.float64(kept[at, COUNTED]) - expected
                parts += part
                page_excess += deviation * deviation - expected * _OTHERS
                page_scale += expected * expected
            expected = mean[p] * all_exposed
            block_excess += parts * ((counted - expected) ** 2 - expected)
            block_scale += parts * expected * expected
            begin = end
        by_process[p, BLOCK_EXCESS] += block_excess
        by_process[p, BLOCK_SCALE] += block_scale
        by_process[p, PAGE_EXCESS] += page_excess
        by_process[p, PAGE_SCALE] += page_scale


@kernel
def fill_long(
    kept: Float32Plane,
    rows: LongRows,
    prior: Float64Plane,
    by_block: Float64Plane,
    by_process: Float64Plane,
    rate: Float32s,
    support: Float32s,
) -> None:
    """Fill the rows' posterior mean rates over the long run, and the samples behind them.

    ``prior``, shape ``(processes, 3)``: mean rate, and the samples that the prior of a block and
    that of a page weigh. Each process's rates have the sum of the view's.
    """
    begin = 0
    while begin < len(rows.process):
        first, p = begin, rows.process[begin]
        last = run_end(rows.process, begin, len(rows.process))
        total, alike = 0.0, prior[p, 2]
        of_block = prior[p, 1], prior[p, 1] / max(prior[p, 0], _LEAST)
        while begin < last:
            end, block = run_end(rows.block, begin, last), rows.block[begin]
            counted = by_block[block, SAMPLES]
            mean = (counted + of_block[0]) / max(by_block[block, EXPOSED] + of_block[1], _LEAST)
            unlike, shared = alike / max(mean, _LEAST), min(alike, counted) + _UNSEEN
            for row in range(begin, end):
                at, pages = rows.number[row], np.float64(rows.size[row])
                count, exposed = np.float64(kept[at, COUNTED]), np.float64(kept[at, HEARD]) * pages
                each = (count + alike) / max(exposed + unlike, _LEAST)
                rate[row] = np.float32(each)
                support[row] = np.float32(count + shared)
                total += each * pages
            begin = end
        if total > 0.0:
            scale = np.float32(by_process[p, SERVED] / total)
            for row in range(first, last):
                rate[row] *= scale


@kernel
def keep_ratios(
    rows: LongRows, long_rate: Float32s, rate: Float32s, kept: Int8Plane, slot: int
) -> None:
    """Keep the logarithms of ``long_rate`` over ``rate`` in column ``slot``."""
    for row in range(len(rate)):
        ratio = np.float64(long_rate[row] + _LEAST) / np.float64(rate[row] + _LEAST)
        octave = min(max(np.log2(ratio), -_OCTAVES_MOST), _OCTAVES_MOST)
        kept[rows.number[row], slot] = np.int8(np.rint(octave * _STEPS))


def _bits_by_ratio() -> npt.NDArray[np.float64]:
    """Return log2 of what each weight makes of each ratio that is kept, ``(ratios, LEVELS)``.

    A ratio is at its steps plus :data:`_MIDDLE`; what is kept of a new page, 0, says nothing.
    """
    ratio = np.exp2(np.arange(-_MIDDLE, _MIDDLE + 1) / _STEPS)
    share = np.arange(LEVELS) / (LEVELS - 1)
    return np.log2(1.0 - share + share * ratio[:, None])


_BITS: Final = _bits_by_ratio()


@kernel
def weigh_ratios(
    samples: Float32s, number: Int64s, process: Int32s, kept: Int8Plane, evidence: Float64Plane
) -> None:
    """Add to ``evidence``, shape ``(processes, LEVELS)``, log likelihoods of samples, in bits.

    Relative to the weight 0, the mean over the snapshots. Mixtures of rates with equal sums have
    that sum, so that it does not matter.
    """
    for row in range(len(samples)):
        if samples[row] > 0:
            p, at = process[row], number[row]
            weight = np.float64(samples[row]) / SNAPSHOTS
            for slot in range(SNAPSHOTS):
                ratio = np.int64(kept[at, slot]) + _MIDDLE
                for level in range(1, LEVELS):
                    evidence[p, level] += weight * _BITS[ratio, level]


@kernel
def mix_rates(
    process: Int32s, weight: Float64s, long_rate: Float32s, rate: Float32s, mixed: Float32s
) -> None:
    """Fill ``mixed``: ``rate``, and ``long_rate`` with the ``weight`` of its process."""
    begin = 0
    while begin < len(process):
        end = run_end(process, begin, len(process))
        share = np.float32(weight[process[begin]])
        now, long, into = rate[begin:end], long_rate[begin:end], mixed[begin:end]
        for at in range(len(now)):
            into[at] = now[at] + share * (long[at] - now[at])
        begin = end
