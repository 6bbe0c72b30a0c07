# SPDX-License-Identifier: MIT
"""Kernels: accesses to slow memory under a layout, and the time of each window for them.

A cell is a window and a kind of access in it: loads by window and class of their page, then by
window stores, streamed loads and streamed stores. Rows are in order of cell; ``begin``, shape
``(cells + 1,)``, is the first row of each. A layout costs one pass over the rows, about 2 ns each,
and about 0.1 ms for 60 windows and 6,000 pairs. A sweep over capacities needs one pass.
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
_WINDOW_PRIOR = 30.0  # slow pair members: weight of all windows' mean in a window
_CLASS_PRIOR = 100.0  # and in a class of what its windows say
_LOAD_ROUNDS = 8


class WindowFigures(NamedTuple):
    """What is known of each window, shape ``(windows,)`` unless stated; times are nanoseconds.

    ``slow_ns`` and ``fast_ns`` are the lengths of both runs. Of their difference, ``waiting_ns``
    is waits for loads, ``holding_ns`` fill buffers that stores hold, ``queueing_ns`` queues of
    streams. Latencies of loads: ``loaded_latency_ns`` in slow memory at the slow run's load,
    ``idle_latency_ns`` there without load, ``fast_latency_ns`` in fast memory. ``alone`` is the
    share of misses that overlap with none, ``overlapping``, ``(windows, classes)``, the number that
    each of the others overlaps with, and ``core_factor``, ``(windows, classes, chances)``, the
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


class ModelNumbers(NamedTuple):
    """Coefficients of the model, figures of the machine, and which terms are on.

    ``write_cost`` is the time of a write in slow memory over that of a read. ``pairs_known`` is
    false where too few pairs show whether neighbouring misses are in the same memory.
    """

    load_power: float
    streams: float
    write_cost: float
    correlation: bool
    pairs_known: bool
    load: bool
    stream_queues: bool


class PairColumns(NamedTuple):
    """Pairs of neighbouring misses: their window, and class and slow share of either member."""

    window: Int32s
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
    fast: Float64s, pairs: PairColumns, by_window: Float64s, by_class: Float64s
) -> None:
    """Set the factors of the chance that a slow miss's neighbour is fast.

    Were pages placed independently, it would be ``fast``, the share of a window's misses that are
    in fast memory. The chance is ``fast * by_window * by_class``, from the pairs with a slow
    member: how many have a fast one.
    """
    pair_window, class_a, class_b, slow_a, slow_b = pairs
    expected = np.zeros(len(by_window))
    by_window[:] = 0.0
    for i in range(len(pair_window)):
        window, a, b = pair_window[i], slow_a[i], slow_b[i]
        expected[window] += (a + b) * fast[window]
        by_window[window] += a * (1 - b) + b * (1 - a)
    of_all = (by_window.sum() + _WINDOW_PRIOR) / (expected.sum() + _WINDOW_PRIOR)
    for window in range(len(by_window)):
        found = by_window[window] + _WINDOW_PRIOR * of_all
        by_window[window] = found / (expected[window] + _WINDOW_PRIOR)
    expected_class = np.zeros(len(by_class))
    by_class[:] = 0.0
    for i in range(len(pair_window)):
        window, a, b = pair_window[i], slow_a[i], slow_b[i]
        chance = fast[window] * by_window[window]
        expected_class[class_a[i]] += a * chance
        expected_class[class_b[i]] += b * chance
        by_class[class_a[i]] += a * (1 - b)
        by_class[class_b[i]] += b * (1 - a)
    for c in range(len(by_class)):
        by_class[c] = (by_class[c] + _CLASS_PRIOR) / (expected_class[c] + _CLASS_PRIOR)


@inline
def _under_load(
    windows: WindowFigures, w: int, waits_ns: float, queues_ns: float, traffic: float, power: float
) -> float:
    """Return a window's time, with the slow tier's latency at the load that results."""
    fast_ns, slow_ns = windows.fast_ns[w], windows.slow_ns[w]
    idle, loaded = windows.idle_latency_ns[w], windows.loaded_latency_ns[w]
    fast_latency = windows.fast_latency_ns[w]
    window_ns = fast_ns + waits_ns + queues_ns
    for _ in range(_LOAD_ROUNDS):
        load = min(max(traffic * slow_ns / max(window_ns, 1e-9), 0.0), 1.0)
        latency = idle + (loaded - idle) * load**power
        factor = min(max((latency - fast_latency) / (loaded - fast_latency), 0.0), 1.0)
        window_ns = fast_ns + waits_ns * factor + queues_ns
    return float(window_ns)


@kernel
def price_windows(
    cells: Float64s,
    total: Float64s,
    windows: WindowFigures,
    pairs: PairColumns,
    numbers: ModelNumbers,
    window_ns: Float64s,
) -> None:
    """Set ``window_ns`` from the accesses that are slow, ``cells``, of all, ``total``."""
    count, classes = windows.overlapping.shape
    loads = count * classes
    mean = cells.sum() / max(total.sum(), 1e-12)
    share, traffic = np.empty(count), np.empty(count)
    misses, slow = np.zeros(count), np.zeros(count)
    for w in range(count):
        for c in range(w * classes, (w + 1) * classes):
            misses[w] += total[c]
            slow[w] += cells[c]
        part, lines = slow[w], misses[w]
        for c in range(loads + w, loads + 3 * count, count):
            part += cells[c]
            lines += total[c]
        # A window without a sample has the mean.
        traffic[w] = _share(part, lines, mean)
        share[w] = _share(slow[w], misses[w], traffic[w])
    by_window, by_class = np.ones(count), np.ones(classes)
    if numbers.correlation and numbers.pairs_known:
        _count_fast_neighbours(1 - share, pairs, by_window, by_class)
    elif numbers.correlation:
        by_window[:] = 0.5  # unknown: half-way between independent and in the same memory
    for w in range(count):
        fast_ns, queueing_ns = windows.fast_ns[w], windows.queueing_ns[w]
        alone = windows.alone[w]
        held, stored = cells[loads + w], cells[loads + w + 2 * count]
        all_held, all_stored = total[loads + w], total[loads + w + 2 * count]
        all_streamed = total[loads + w + count]
        # Waits, as shares of those with all slow.
        together = 0.0
        for c in range(classes):
            together += total[w * classes + c] / (1 + windows.overlapping[w, c])
        full = alone * misses[w] + (1 - alone) * together
        remaining = alone * slow[w]
        for c in range(classes):
            part = cells[w * classes + c]
            if part > 0:
                chance = 1 - (1 - share[w]) * by_window[w] * by_class[c]
                chance = min(max(chance, 0.0), 1.0)
                waits = part / (1 + windows.overlapping[w, c] * chance)
                remaining += (1 - alone) * waits * _interpolate(windows.core_factor[w, c], chance)
        waits = min(max(_share(remaining, full, share[w]), 0.0), 1.0)
        waits_ns = windows.waiting_ns[w] * waits
        waits_ns = waits_ns + windows.holding_ns[w] * _share(held, all_held, traffic[w])
        # Queues of streams: all of those in flight are slow, or the slow tier cannot keep up.
        queues = queueing_ns * traffic[w]
        if numbers.stream_queues:
            stores = _share(held + stored, all_held + all_stored, traffic[w])
            writes = (all_held + all_stored) * numbers.write_cost
            reads = misses[w] + all_streamed + all_held + all_stored
            # The part of the slow run's work that the tier still has; without a sample, the mean.
            busy = _share(reads * traffic[w] + writes * stores, reads + writes, traffic[w])
            at_once = busy * max(traffic[w], stores) ** (numbers.streams - 1)
            queues = queueing_ns * at_once
            if queueing_ns > 0:
                saturated = fast_ns + queueing_ns
                queues = max(queues, busy * saturated - fast_ns)
        if numbers.load:
            window_ns[w] = _under_load(windows, w, waits_ns, queues, traffic[w], numbers.load_power)
        else:
            window_ns[w] = fast_ns + waits_ns + queues
        # If the slow run was faster, for any reason, the gain is proportional to its share.
        window_ns[w] += min(windows.slow_ns[w] - fast_ns, 0.0) * traffic[w]
