# SPDX-License-Identifier: MIT
"""Kernels: accesses to slow memory under a layout, and the time of each window for them.

A part is what one thread does in a window: part ``window * threads + thread``. A cell is a part and
a kind of access in it: loads by part and class of their page, then by part stores, streamed loads
and streamed stores. Rows are in order of cell; ``begin``, shape ``(cells + 1,)``, is the first row
of each. A layout costs one pass over the rows, about 2 ns each, and about 0.1 ms for 60 parts and
6,000 pairs. A sweep over capacities needs one pass.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import (
    Float32s,
    Float64Cube,
    Float64Plane,
    Float64s,
    Int32s,
    Uint64,
    Uint64s,
    inline,
    kernel,
)

_SHORT_SUM = np.uint64(1024)
_PART_PRIOR = 30.0  # slow pair members: weight of all parts' mean in a part
_CLASS_PRIOR = 100.0  # and in a class of what its parts say
_LOAD_ROUNDS = 20


class PartFigures(NamedTuple):
    """What is known of each part, shape ``(parts,)`` unless stated; times are nanoseconds.

    ``slow_ns`` and ``fast_ns`` are how long its thread ran in both runs. Of their difference,
    ``waiting_ns`` is waits for loads, ``holding_ns`` fill buffers that stores hold, ``queueing_ns``
    queues of streams. Latencies of loads: ``loaded_latency_ns`` in slow memory at the slow run's
    load, ``idle_latency_ns`` there without load, ``fast_latency_ns`` in fast memory. ``alone`` is
    the share of misses that overlap with none, ``overlapping``, ``(parts, classes)``, the number
    that each of the others overlaps with, and ``core_factor``, ``(parts, classes, chances)``, the
    factor on that rule at the chances of :mod:`hmd.estimate.overlap`.
    """

    slow_ns: Float64s
    fast_ns: Float64s
    waiting_ns: Float64s
    holding_ns: Float64s
    queueing_ns: Float64s
    loaded_latency_ns: Float64s
    idle_latency_ns: Float64s
    fast_latency_ns: Float64s
    alone: Float64s
    overlapping: Float64Plane
    core_factor: Float64Cube


class WindowFigures(NamedTuple):
    """What is known of each window, columns of shape ``(windows,)``.

    A window takes as long as its busiest thread, a share ``in_turn`` of what the others run, and
    ``idle_ns`` in which none runs: of the slow run and of the fast one, and in between in
    proportion to what all threads run. ``slow_ns`` is the window's length in the slow run.
    ``read_work`` and ``write_work`` are the times that its reads and writes took of the slow tier,
    in any unit; a share ``stored`` of what it wrote is of sampled stores, the rest of lines that
    are written after a load, in proportion to all accesses. Latency rises with the load to the
    power of ``load_power``.
    """

    slow_ns: Float64s
    slow_in_turn: Float64s
    fast_in_turn: Float64s
    slow_idle_ns: Float64s
    fast_idle_ns: Float64s
    read_work: Float64s
    write_work: Float64s
    stored: Float64s
    load_power: Float64s


class ModelNumbers(NamedTuple):
    """Coefficients of the model, figures of the machine, and which terms are on.

    ``pairs_known`` is false where too few pairs show whether neighbouring misses are in the same
    memory.
    """

    streams: float
    correlation: bool
    pairs_known: bool
    load: bool
    stream_queues: bool


class PairColumns(NamedTuple):
    """Pairs of neighbouring misses: their part, and class and slow share of either member."""

    part: Int32s
    class_a: Int32s
    class_b: Int32s
    slow_a: Float32s
    slow_b: Float32s


@kernel
def add_slow(
    page: Int32s,
    accesses: Float32s,
    begin: Uint64s,
    slow: Float32s,
    first: Uint64,
    last: Uint64,
    total: Float64s,
) -> None:
    """Add up rows of the cells from ``first`` on, before ``last``, by the slow share of pages."""
    # Unsigned, since an index that could be negative costs four times as much; short sums in
    # single precision, since double precision takes twice as long.
    for cell in range(first, last):
        start, end = begin[cell], begin[cell + np.uint64(1)]
        while start < end:
            stop = min(end, start + _SHORT_SUM)
            part = np.float32(0.0)
            for i in range(start, stop):
                part += accesses[i] * slow[page[i]]
            total[cell] += part
            start = stop


@kernel
def add_by_step(
    page: Int32s,
    accesses: Float32s,
    begin: Uint64s,
    step: Int32s,
    total: Float64Plane,
) -> None:
    """Add rows' accesses to ``total[step of their page, their cell]``."""
    for cell in range(np.uint64(len(begin) - 1)):
        for i in range(begin[cell], begin[cell + np.uint64(1)]):
            total[step[page[i]], cell] += accesses[i]


@inline
def _share(part: float, whole: float, otherwise: float) -> float:
    return part / whole if whole > 0 else otherwise


@inline
def _interpolate(factor: npt.NDArray[np.float64], chance: float) -> float:
    """Return the core's factor at a chance of a slow miss."""
    across = math.sqrt(chance) * (len(factor) - 1)
    column = min(int(across), len(factor) - 2)
    right = across - column
    return float(factor[column] * (1 - right) + factor[column + 1] * right)


@inline
def _count_fast_neighbours(
    fast: Float64s, pairs: PairColumns, by_part: Float64s, by_class: Float64s
) -> None:
    """Set the factors of the chance that a slow miss's neighbour is fast.

    Were pages placed independently, it would be ``fast``, the share of a part's misses that are
    in fast memory. The chance is ``fast * by_part * by_class``, from the pairs with a slow
    member: how many have a fast one.
    """
    pair_part, class_a, class_b, slow_a, slow_b = pairs
    expected = np.zeros(len(by_part))
    by_part[:] = 0.0
    for i in range(len(pair_part)):
        part, a, b = pair_part[i], slow_a[i], slow_b[i]
        expected[part] += (a + b) * fast[part]
        by_part[part] += a * (1 - b) + b * (1 - a)
    of_all = (by_part.sum() + _PART_PRIOR) / (expected.sum() + _PART_PRIOR)
    for part in range(len(by_part)):
        found = by_part[part] + _PART_PRIOR * of_all
        by_part[part] = found / (expected[part] + _PART_PRIOR)
    expected_class = np.zeros(len(by_class))
    by_class[:] = 0.0
    for i in range(len(pair_part)):
        part, a, b = pair_part[i], slow_a[i], slow_b[i]
        chance = fast[part] * by_part[part]
        expected_class[class_a[i]] += a * chance
        expected_class[class_b[i]] += b * chance
        by_class[class_a[i]] += a * (1 - b)
        by_class[class_b[i]] += b * (1 - a)
    for c in range(len(by_class)):
        by_class[c] = (by_class[c] + _CLASS_PRIOR) / (expected_class[c] + _CLASS_PRIOR)


@inline
def _wall_ns(
    windows: WindowFigures, parts: PartFigures, w: int, first: int, busy_ns: Float64s
) -> float:
    """Return the length of a window whose threads run for ``busy_ns``, ``(threads,)``."""
    if len(busy_ns) == 1:
        return float(busy_ns[0] + windows.slow_idle_ns[w])
    slow, fast, now, most = 0.0, 0.0, 0.0, 0.0
    for k in range(len(busy_ns)):
        slow += parts.slow_ns[first + k]
        fast += parts.fast_ns[first + k]
        now += busy_ns[k]
        most = max(most, busy_ns[k])
    place = min(max((now - fast) / (slow - fast), 0.0), 1.0) if slow > fast else 0.0
    in_turn = windows.fast_in_turn[w] + place * (windows.slow_in_turn[w] - windows.fast_in_turn[w])
    idle = windows.fast_idle_ns[w] + place * (windows.slow_idle_ns[w] - windows.fast_idle_ns[w])
    return float(most + in_turn * (now - most) + idle)


@inline
def _slow_work(windows: WindowFigures, w: int, of_all: float, of_stores: float) -> float:
    """Return the share of the slow run's work that its tier still has."""
    reads, writes, stored = windows.read_work[w], windows.write_work[w], windows.stored[w]
    left = reads * of_all + writes * (stored * of_stores + (1 - stored) * of_all)
    return float(_share(left, reads + writes, of_all))


@inline
def _slow_latency_factor(parts: PartFigures, p: int, load: float, power: float) -> float:
    """Return the slow tier's excess latency at a load, over that of the slow run."""
    idle, loaded = parts.idle_latency_ns[p], parts.loaded_latency_ns[p]
    fast = parts.fast_latency_ns[p]
    latency = idle + (loaded - idle) * load**power
    return float(min(max((latency - fast) / (loaded - fast), 0.0), 1.0))


@kernel
def price_windows(
    cells: Float64s,
    total: Float64s,
    parts: PartFigures,
    windows: WindowFigures,
    pairs: PairColumns,
    numbers: ModelNumbers,
    window_ns: Float64s,
) -> None:
    """Set ``window_ns`` from the accesses that are slow, ``cells``, of all, ``total``."""
    count, classes = parts.overlapping.shape
    side = count // len(window_ns)  # threads
    loads = count * classes
    mean = cells.sum() / max(total.sum(), 1e-12)
    share, traffic = np.empty(count), np.empty(count)
    lines, slow_lines = np.zeros(count), np.zeros(count)
    misses, slow = np.zeros(count), np.zeros(count)
    for p in range(count):
        for c in range(p * classes, (p + 1) * classes):
            misses[p] += total[c]
            slow[p] += cells[c]
        slow_lines[p], lines[p] = slow[p], misses[p]
        for c in range(loads + p, loads + 3 * count, count):
            slow_lines[p] += cells[c]
            lines[p] += total[c]
        # A part without a sample has the mean.
        traffic[p] = _share(slow_lines[p], lines[p], mean)
        share[p] = _share(slow[p], misses[p], traffic[p])
    by_part, by_class = np.ones(count), np.ones(classes)
    if numbers.correlation and numbers.pairs_known:
        _count_fast_neighbours(1 - share, pairs, by_part, by_class)
    elif numbers.correlation:
        by_part[:] = 0.5  # unknown: half-way between independent and in the same memory
    waits_ns, queues_ns, busy_ns = np.empty(side), np.empty(side), np.empty(side)
    for w in range(len(window_ns)):
        first = w * side
        # Of all threads, which share the tier.
        all_lines, all_slow = 0.0, 0.0
        stored, all_stored = 0.0, 0.0
        for p in range(first, first + side):
            all_lines += lines[p]
            all_slow += slow_lines[p]
            stored += cells[loads + p] + cells[loads + p + 2 * count]
            all_stored += total[loads + p] + total[loads + p + 2 * count]
        of_all = _share(all_slow, all_lines, mean)
        of_stores = _share(stored, all_stored, of_all)
        tier_busy = _slow_work(windows, w, of_all, of_stores)
        for k in range(side):
            p = first + k
            fast_ns, queueing_ns, alone = parts.fast_ns[p], parts.queueing_ns[p], parts.alone[p]
            # Waits, as shares of those with all slow.
            together = 0.0
            for c in range(classes):
                together += total[p * classes + c] / (1 + parts.overlapping[p, c])
            full = alone * misses[p] + (1 - alone) * together
            remaining = alone * slow[p]
            for c in range(classes):
                part = cells[p * classes + c]
                if part > 0:
                    chance = 1 - (1 - share[p]) * by_part[p] * by_class[c]
                    chance = min(max(chance, 0.0), 1.0)
                    begun = part / (1 + parts.overlapping[p, c] * chance)
                    factor = _interpolate(parts.core_factor[p, c], chance)
                    remaining += (1 - alone) * begun * factor
            waits = min(max(_share(remaining, full, share[p]), 0.0), 1.0)
            held = _share(cells[loads + p], total[loads + p], traffic[p])
            waits_ns[k] = parts.waiting_ns[p] * waits + parts.holding_ns[p] * held
            # Queues of streams: all of those in flight are slow, or the tier cannot keep up.
            queues_ns[k] = queueing_ns * traffic[p]
            if numbers.stream_queues:
                p_stores = cells[loads + p] + cells[loads + p + 2 * count]
                p_all_stores = total[loads + p] + total[loads + p + 2 * count]
                stores = _share(p_stores, p_all_stores, traffic[p])
                busy = _slow_work(windows, w, traffic[p], stores)
                queues_ns[k] = queueing_ns * busy * max(of_all, of_stores) ** (numbers.streams - 1)
                if queueing_ns > 0:
                    saturated = min(busy, tier_busy) * (fast_ns + queueing_ns)
                    queues_ns[k] = max(queues_ns[k], saturated - fast_ns)
            busy_ns[k] = fast_ns + waits_ns[k] + queues_ns[k]
        if numbers.load:
            # A longer window has less load, hence less latency: one length goes with its own load.
            low_ns, high_ns = (
                0.0,
                max(_wall_ns(windows, parts, w, first, busy_ns), windows.slow_ns[w]),
            )
            for _ in range(_LOAD_ROUNDS):
                tried_ns = (low_ns + high_ns) / 2
                load = min(tier_busy * windows.slow_ns[w] / max(tried_ns, 1e-9), 1.0)
                for k in range(side):
                    p = first + k
                    factor = _slow_latency_factor(parts, p, load, windows.load_power[w])
                    busy_ns[k] = parts.fast_ns[p] + waits_ns[k] * factor + queues_ns[k]
                if _wall_ns(windows, parts, w, first, busy_ns) > tried_ns:
                    low_ns = tried_ns
                else:
                    high_ns = tried_ns
        for k in range(side):
            # If the slow run was faster, for any reason, the gain is proportional to its share.
            p = first + k
            busy_ns[k] += min(parts.slow_ns[p] - parts.fast_ns[p], 0.0) * traffic[p]
        window_ns[w] = _wall_ns(windows, parts, w, first, busy_ns)
