"""The kernels of the long memory: mean rates of pages over many ticks, and how they prove right.

Takes columns of a view and what earlier ticks left. About 25 ns per row, and 10 ns per sampled row
and snapshot.
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

#: What a page keeps: its samples, and the samples of its process in the same ticks; both fade.
COUNTED, HEARD = range(2)
KEPT: Final = HEARD + 1
SNAPSHOTS: Final = 4
"""Ticks whose rates are compared with the samples that follow."""
LEVELS: Final = 5
"""Weights of the long memory: 0, 1/4, 1/2, 3/4, 1."""
#: Columns of sums by block: samples, exposure, and the shrunk rate.
SAMPLES, EXPOSED, MEAN = range(3)
BLOCK_SUMS: Final = MEAN + 1
#: Columns of sums by process: samples, exposure, accesses of the view, deviations of blocks from
#: the process and of pages from their block beyond chance, and what they deviate from, squared.
(TOTAL, EXPOSURE, SERVED, BLOCK_EXCESS, BLOCK_SCALE, PAGE_EXCESS, PAGE_SCALE) = range(7)
SUMS: Final = PAGE_SCALE + 1

# Ratios are kept in 8ths of an octave, as far as 15 octaves.
_STEPS: Final = 8.0
_OCTAVES_MOST: Final = 15.0
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
    for row in range(len(rows.process)):
        at, p, block = rows.number[row], rows.process[row], rows.block[row]
        stays = np.float32(stay[p])
        kept[at, COUNTED] = kept[at, COUNTED] * stays + rows.samples[row]
        kept[at, HEARD] = kept[at, HEARD] * stays + np.float32(heard[p])
        count, pages = np.float64(kept[at, COUNTED]), np.float64(rows.size[row])
        exposed = np.float64(kept[at, HEARD]) * pages
        by_block[block, SAMPLES] += count
        by_block[block, EXPOSED] += exposed
        by_process[p, TOTAL] += count
        by_process[p, EXPOSURE] += exposed
        by_process[p, SERVED] += np.float64(rows.rate[row]) * pages


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
    for row in range(len(rows.process)):
        at, p, block = rows.number[row], rows.process[row], rows.block[row]
        exposed = np.float64(kept[at, HEARD]) * rows.size[row]
        all_exposed = by_block[block, EXPOSED]
        if all_exposed <= 0.0:
            continue
        expected, count = mean[p] * all_exposed, by_block[block, SAMPLES]
        part = exposed / all_exposed
        by_process[p, BLOCK_EXCESS] += part * ((count - expected) ** 2 - expected)
        by_process[p, BLOCK_SCALE] += part * expected * expected
        expected = count * part
        deviation = np.float64(kept[at, COUNTED]) - expected
        by_process[p, PAGE_EXCESS] += deviation * deviation - expected * _OTHERS
        by_process[p, PAGE_SCALE] += expected * expected


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
    sums = np.zeros(len(by_process))
    for row in range(len(rows.process)):
        p, block = rows.process[row], rows.block[row]
        alike = prior[p, 1]
        exposed = by_block[block, EXPOSED] + alike / max(prior[p, 0], _LEAST)
        by_block[block, MEAN] = (by_block[block, SAMPLES] + alike) / max(exposed, _LEAST)
    for row in range(len(rows.process)):
        at, p, block = rows.number[row], rows.process[row], rows.block[row]
        count, pages = np.float64(kept[at, COUNTED]), np.float64(rows.size[row])
        exposed, alike = np.float64(kept[at, HEARD]) * pages, prior[p, 2]
        unlike = alike / max(by_block[block, MEAN], _LEAST)
        each = (count + alike) / max(exposed + unlike, _LEAST)
        rate[row] = np.float32(each)
        support[row] = np.float32(count + min(alike, by_block[block, SAMPLES]) + _UNSEEN)
        sums[p] += each * pages
    for row in range(len(rows.process)):
        p = rows.process[row]
        if sums[p] > 0.0:
            rate[row] = np.float32(rate[row] * by_process[p, SERVED] / sums[p])


@kernel
def keep_ratios(
    rows: LongRows, long_rate: Float32s, rate: Float32s, kept: Int8Plane, slot: int
) -> None:
    """Keep the logarithms of ``long_rate`` over ``rate`` in column ``slot``."""
    for row in range(len(rate)):
        ratio = np.float64(long_rate[row] + _LEAST) / np.float64(rate[row] + _LEAST)
        octave = min(max(np.log2(ratio), -_OCTAVES_MOST), _OCTAVES_MOST)
        kept[rows.number[row], slot] = np.int8(np.rint(octave * _STEPS))


@kernel
def weigh_ratios(
    samples: Float32s, number: Int64s, process: Int32s, kept: Int8Plane, evidence: Float64Plane
) -> None:
    """Add to ``evidence``, shape ``(processes, LEVELS)``, log likelihoods of samples, in bits.

    Relative to the weight 0, the mean over the snapshots. Mixtures of rates with equal sums have
    that sum, so that it does not matter.
    """
    for row in range(len(samples)):
        p, at = process[row], number[row]
        weight = np.float64(samples[row]) / SNAPSHOTS
        for slot in range(SNAPSHOTS):
            if kept[at, slot] != 0:
                ratio = np.exp2(np.float64(kept[at, slot]) / _STEPS)
                for level in range(1, LEVELS):
                    share = level / (LEVELS - 1)
                    evidence[p, level] += weight * np.log2(1.0 - share + share * ratio)


@kernel
def mix_rates(
    process: Int32s, weight: Float64s, long_rate: Float32s, rate: Float32s, mixed: Float32s
) -> None:
    """Fill ``mixed``: ``rate``, and ``long_rate`` with the ``weight`` of its process."""
    for row in range(len(process)):
        share = np.float32(weight[process[row]])
        mixed[row] = rate[row] + share * (long_rate[row] - rate[row])
