# SPDX-License-Identifier: MIT
"""Kernels: accesses to slow memory under a layout, and the time of each window for them.

A part is what one thread does in a window: part ``window * threads + thread``. A cell is a class of
accesses (``AccessClass``) and a part: cell ``access * parts + part``. Rows are in order of cell;
``begin``, shape ``(cells + 1,)``, is the first row of each. A layout costs one pass over the rows,
about 2 ns each, and about 0.1 ms for 60 parts and 6,000 pairs. A sweep over capacities needs one
pass.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import (
    Float32s,
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
_LOAD_ROUNDS = 20
LATENCY_RISE, LATENCY_KNEE = 0.4, 2.75
"""Latency over the idle one is 1 + RISE (s + KNEE s^6) at a share s of busy time: between the
published curves of DRAM and of persistent memory (hmd/emulate/presets), 1.1 at a quarter, 1.2 at a
half, 1.5 at three quarters, 2.5 at the peak."""


class PartFigures(NamedTuple):
    """What is known of each part, shape ``(parts,)`` unless stated; times are nanoseconds.

    ``slow_ns`` and ``fast_ns`` are how long its thread ran in both runs. Of their difference,
    ``waiting_ns`` is waits for loads, ``holding_ns`` fill buffers that stores hold, ``queueing_ns``
    queues of streams; ``idle_waits_ns`` is the waits for loads without load on the slow tier.
    ``bandwidth_bound`` is 1 where streams wait for the slow tier's bandwidth alone in the slow run,
    0 where not; ``fast_bound_ns`` is how long they wait for the fast tier's in the fast run.
    Latencies of loads: in slow memory ``loaded_latency_ns`` at the slow run's load,
    ``idle_latency_ns`` without load, in fast memory ``fast_latency_ns``. ``alone`` is the share of
    misses that overlap with none, ``overlapping`` the number that each of the others overlaps with,
    and ``core_factor``, ``(parts, chances)``, the factor on that rule at the chances of
    :mod:`hmd.estimate.overlap`.
    """

    slow_ns: Float64s
    fast_ns: Float64s
    waiting_ns: Float64s
    holding_ns: Float64s
    queueing_ns: Float64s
    idle_waits_ns: Float64s
    bandwidth_bound: Float64s
    fast_bound_ns: Float64s
    loaded_latency_ns: Float64s
    idle_latency_ns: Float64s
    fast_latency_ns: Float64s
    alone: Float64s
    overlapping: Float64s
    core_factor: Float64Plane


class WindowFigures(NamedTuple):
    """What is known of each window, columns of shape ``(windows,)``.

    A window takes as long as its busiest thread, a share ``in_turn`` of what the others run, and
    ``idle_ns`` in which none runs: of the slow run and of the fast one, and in between in
    proportion to what all threads run. ``slow_ns`` is the window's length in the slow run.
    ``read_work`` and ``write_work`` are the times that its reads and writes took of the slow tier,
    in any unit; a share ``stored`` of what it wrote is of sampled stores, the rest of lines that
    are written after a load, in proportion to all accesses. The slow tier was ``busy`` for this
    share of the slow run.
    """

    slow_ns: Float64s
    slow_in_turn: Float64s
    fast_in_turn: Float64s
    slow_idle_ns: Float64s
    fast_idle_ns: Float64s
    read_work: Float64s
    write_work: Float64s
    stored: Float64s
    busy: Float64s


class ModelNumbers(NamedTuple):
    """The number of ``streams``, and what is known.

    The times of two tiers that work at once add up by their powers of ``at_once``: a tier waits
    while the other is slow, but for what its queue holds, a page or so.

    ``pairs_known`` is false where too few pairs show whether neighbouring misses are in the same
    memory, ``load_known`` where the slow tier's idle latency is unknown.
    """

    streams: float
    at_once: float
    pairs_known: bool
    load_known: bool


class PairColumns(NamedTuple):
    """Pairs of neighbouring misses: their part, and the slow share of either member."""

    part: Int32s
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
def _blend(share: float, of_share: float, of_rest: float) -> float:
    return share * of_share + (1 - share) * of_rest


@inline
def _streams_ns(
    parts: PartFigures, p: int, power: float, busy: float, traffic: float, share: float
) -> float:
    """Return the time of a part that is bound by bandwidth: both tiers work at once.

    ``busy`` is the share of the slow run's work, ``traffic`` that of its lines, ``share`` that of
    its misses that the slow tier still has.
    """
    fast_ns, freed_ns = parts.fast_ns[p], parts.fast_bound_ns[p]
    slow_ns = parts.slow_ns[p] - parts.idle_waits_ns[p]
    left_ns = fast_ns - min(fast_ns * traffic, freed_ns)
    never_ns = min(max(fast_ns - freed_ns, 0.0), slow_ns)
    bound_ns = busy * (slow_ns**power - never_ns**power) ** (1 / power)
    together_ns = (bound_ns**power + left_ns**power) ** (1 / power)
    return float(together_ns + parts.idle_waits_ns[p] * share)


@inline
def _interpolate(factor: npt.NDArray[np.float64], chance: float) -> float:
    """Return the core's factor at a chance of a slow miss."""
    across = math.sqrt(chance) * (len(factor) - 1)
    column = min(int(across), len(factor) - 2)
    right = across - column
    return float(factor[column] * (1 - right) + factor[column + 1] * right)


@inline
def _count_fast_neighbours(fast: Float64s, pairs: PairColumns, by_part: Float64s) -> None:
    """Set the factor, by part, of the chance that a slow miss's neighbour is fast.

    Were pages placed independently, that would be ``fast``, the share of a part's misses that are
    in fast memory. The chance is ``fast * by_part``, from the pairs with a slow member: how many
    have a fast one.
    """
    expected = np.zeros(len(by_part))
    by_part[:] = 0.0
    for i in range(len(pairs.part)):
        part, a, b = pairs.part[i], pairs.slow_a[i], pairs.slow_b[i]
        expected[part] += (a + b) * fast[part]
        by_part[part] += a * (1 - b) + b * (1 - a)
    of_all = (by_part.sum() + _PART_PRIOR) / (expected.sum() + _PART_PRIOR)
    for part in range(len(by_part)):
        found = by_part[part] + _PART_PRIOR * of_all
        by_part[part] = found / (expected[part] + _PART_PRIOR)


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
def _slow_latency_factor(parts: PartFigures, p: int, load: float, busy: float) -> float:
    """Return the slow tier's excess latency at a load, over that of the slow run."""
    idle, loaded = parts.idle_latency_ns[p], parts.loaded_latency_ns[p]
    fast = parts.fast_latency_ns[p]
    rise = load * (1 + LATENCY_KNEE * (load * busy) ** 5) / (1 + LATENCY_KNEE * busy**5)
    latency = idle + (loaded - idle) * rise
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
    count = len(parts.overlapping)
    side = count // len(window_ns)  # threads
    mean = cells.sum() / max(total.sum(), 1e-12)
    share, traffic = np.empty(count), np.empty(count)
    lines, slow_lines = np.zeros(count), np.zeros(count)
    stores, slow_stores = np.zeros(count), np.zeros(count)
    for p in range(count):
        for c in range(p, 4 * count, count):
            slow_lines[p] += cells[c]
            lines[p] += total[c]
        slow_stores[p] = cells[count + p] + cells[3 * count + p]
        stores[p] = total[count + p] + total[3 * count + p]
        # A part without a sample has the mean.
        traffic[p] = _share(slow_lines[p], lines[p], mean)
        share[p] = _share(cells[p], total[p], traffic[p])
    by_part = np.full(count, 0.5)  # unknown: half-way between independent and in the same memory
    if numbers.pairs_known:
        _count_fast_neighbours(1 - share, pairs, by_part)
    waits_ns, queues_ns, busy_ns = np.empty(side), np.empty(side), np.empty(side)
    streams_ns = np.empty(side)
    for w in range(len(window_ns)):
        first = w * side
        # Of all threads, which share the tier.
        last = first + side
        of_all = _share(slow_lines[first:last].sum(), lines[first:last].sum(), mean)
        of_stores = _share(slow_stores[first:last].sum(), stores[first:last].sum(), of_all)
        tier_busy = _slow_work(windows, w, of_all, of_stores)
        for k in range(side):
            p = first + k
            fast_ns, queueing_ns, alone = parts.fast_ns[p], parts.queueing_ns[p], parts.alone[p]
            # Waits, as a share of those with all slow: per miss, of those that overlap.
            chance = min(max(1 - (1 - share[p]) * by_part[p], 0.0), 1.0)
            begun = _interpolate(parts.core_factor[p], chance)
            begun /= 1 + parts.overlapping[p] * chance
            full = alone + (1 - alone) / (1 + parts.overlapping[p])
            waits = share[p] * (alone + (1 - alone) * begun) / full
            held = _share(cells[count + p], total[count + p], traffic[p])
            waits_ns[k] = parts.waiting_ns[p] * min(waits, 1.0) + parts.holding_ns[p] * held
            # Queues of streams: all of those in flight are slow, or the tier cannot keep up.
            busy = _slow_work(windows, w, traffic[p], _share(slow_stores[p], stores[p], traffic[p]))
            queues_ns[k] = queueing_ns * busy * max(of_all, of_stores) ** (numbers.streams - 1)
            if queueing_ns > 0:
                saturated = min(busy, tier_busy) * (fast_ns + queueing_ns)
                queues_ns[k] = max(queues_ns[k], saturated - fast_ns)
            streams_ns[k] = 0.0
            if parts.bandwidth_bound[p] > 0:
                streams_ns[k] = _streams_ns(
                    parts, p, numbers.at_once, min(busy, tier_busy), traffic[p], share[p]
                )
            busy_ns[k] = _blend(
                parts.bandwidth_bound[p], streams_ns[k], fast_ns + waits_ns[k] + queues_ns[k]
            )
        if numbers.load_known:
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
                    factor = _slow_latency_factor(parts, p, load, windows.busy[w])
                    others_ns = parts.fast_ns[p] + waits_ns[k] * factor + queues_ns[k]
                    busy_ns[k] = _blend(parts.bandwidth_bound[p], streams_ns[k], others_ns)
                if _wall_ns(windows, parts, w, first, busy_ns) > tried_ns:
                    low_ns = tried_ns
                else:
                    high_ns = tried_ns
        for k in range(side):
            # If the slow run was faster, for any reason, the gain is proportional to its share.
            p = first + k
            busy_ns[k] += min(parts.slow_ns[p] - parts.fast_ns[p], 0.0) * traffic[p]
        window_ns[w] = _wall_ns(windows, parts, w, first, busy_ns)
