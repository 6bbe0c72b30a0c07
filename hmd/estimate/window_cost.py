"""Kernel: the time of each window for its slow accesses.

One call per layout, about 0.1 ms for 60 windows and 6,000 pairs, plus the pass over rows
(``hmd.estimate.slow_accesses``).
Cells are those of ``SlowMass``: loads by window and class, then by window stores, streamed loads
and streamed stores. A quantity in capitals is a column of the windows' table.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.heat.kernels import Float32s, Float64Cube, Float64Plane, Float64s, Int32s, inline, kernel

Floats = npt.NDArray[np.float64]

SLOW_NS, FAST_NS, WAITING, HOLDING, QUEUEING, SLOW_LOAD, IDLE_LOAD, FAST_LOAD, ALONE = range(9)
"""Columns by window: both runs' times; of their difference what is waits, held fill buffers and
queues; latencies of loads in slow memory, at the slow run's load and idle, and in fast; and the
share of misses that overlap with none."""
COLUMNS = 9

LOAD_POWER, STREAMS, WRITE_COST, PAIRS_TELL, LOAD_TELLS, STREAMS_TELL = range(6)
"""Numbers of the model: ``Coefficients``, the machine's, and which terms are on (1) or off (0)."""
NUMBERS = 6

_ALIKE_WINDOW = 30.0  # slow pair members: weight of all windows' mean in a window
_ALIKE_CLASS = 100.0  # and a class with what its windows say
_LOAD_ROUNDS = 8


class WindowTables(NamedTuple):
    """What is known of each window.

    ``windows`` has the columns above; ``k_less_1``, shape ``(windows, classes)``, is the number of
    misses that overlap with one, and ``behind``, shape ``(windows, classes, chances)``, is the
    factor on that rule at the chances of ``hmd.estimate.core_model``.
    """

    windows: Float64Plane
    k_less_1: Float64Plane
    behind: Float64Cube


class PairColumns(NamedTuple):
    """Pairs of neighbouring misses: their window, and class and slow share of either member."""

    window: Int32s
    class_a: Int32s
    class_b: Int32s
    slow_a: Float32s
    slow_b: Float32s


@inline
def _share(part: float, whole: float, otherwise: float) -> float:
    return part / whole if whole > 0 else otherwise


@inline
def _held_back(behind: npt.NDArray[np.float64], chance: float) -> float:
    """Return the factor for the rule at a chance, interpolated."""
    across = math.sqrt(chance) * (len(behind) - 1)
    column = min(int(across), len(behind) - 2)
    right = across - column
    return float(behind[column] * (1 - right) + behind[column + 1] * right)


@inline
def _alike(fast: Float64s, pairs: PairColumns, by_window: Float64s, by_class: Float64s) -> None:
    """Set by how much rarer than independently a slow miss's neighbour is fast.

    ``fast`` is the share of misses that are, by window. The chance is the product of both parts
    with it. It is counted in the pairs with a slow member: how many have a fast other.
    """
    pair_window, class_a, class_b, slow_a, slow_b = pairs
    expected = np.zeros(len(by_window))
    by_window[:] = 0.0
    for i in range(len(pair_window)):
        window, a, b = pair_window[i], slow_a[i], slow_b[i]
        expected[window] += (a + b) * fast[window]
        by_window[window] += a * (1 - b) + b * (1 - a)
    of_all = (by_window.sum() + _ALIKE_WINDOW) / (expected.sum() + _ALIKE_WINDOW)
    for window in range(len(by_window)):
        found = by_window[window] + _ALIKE_WINDOW * of_all
        by_window[window] = found / (expected[window] + _ALIKE_WINDOW)
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
        by_class[c] = (by_class[c] + _ALIKE_CLASS) / (expected_class[c] + _ALIKE_CLASS)


@inline
def _loaded(row: npt.NDArray[np.float64], waits: float, queues: float, traffic: float,
            power: float) -> float:  # fmt: skip
    """Return a window's time, with the slow tier's latency at the load that results."""
    idle, most = row[IDLE_LOAD], row[SLOW_LOAD]
    window_ns = row[FAST_NS] + waits + queues
    for _ in range(_LOAD_ROUNDS):
        load = min(max(traffic * row[SLOW_NS] / max(window_ns, 1e-9), 0.0), 1.0)
        latency = idle + (most - idle) * load**power
        factor = min(max((latency - row[FAST_LOAD]) / (most - row[FAST_LOAD]), 0.0), 1.0)
        window_ns = row[FAST_NS] + waits * factor + queues
    return float(window_ns)


@kernel
def price_windows(
    cells: Float64s,
    total: Float64s,
    tables: WindowTables,
    pairs: PairColumns,
    numbers: Float64s,
    window_ns: Float64s,
) -> None:
    """Set ``window_ns`` from the accesses that are slow, ``cells``, of all, ``total``."""
    windows, k_less_1, behind = tables
    count, classes = k_less_1.shape
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
    if numbers[PAIRS_TELL] > 0:
        _alike(1 - share, pairs, by_window, by_class)
    elif numbers[PAIRS_TELL] < 0:
        by_window[:] = 0.5  # unknown: half-way between independent and alike
    for w in range(count):
        row = windows[w]
        held, stored = cells[loads + w], cells[loads + w + 2 * count]
        all_held, all_stored = total[loads + w], total[loads + w + 2 * count]
        all_streamed = total[loads + w + count]
        # Waits, as shares of those with all slow.
        together = 0.0
        for c in range(classes):
            together += total[w * classes + c] / (1 + k_less_1[w, c])
        full = row[ALONE] * misses[w] + (1 - row[ALONE]) * together
        remaining = row[ALONE] * slow[w]
        for c in range(classes):
            part = cells[w * classes + c]
            if part > 0:
                chance = 1 - (1 - share[w]) * by_window[w] * by_class[c]
                chance = min(max(chance, 0.0), 1.0)
                waits = part / (1 + k_less_1[w, c] * chance)
                remaining += (1 - row[ALONE]) * waits * _held_back(behind[w, c], chance)
        waits = min(max(_share(remaining, full, share[w]), 0.0), 1.0)
        waits_ns = row[WAITING] * waits + row[HOLDING] * _share(held, all_held, traffic[w])
        # Queues of streams: all of those in flight are slow, or the slow tier cannot keep up.
        queues = row[QUEUEING] * traffic[w]
        if numbers[STREAMS_TELL] > 0:
            stores = _share(held + stored, all_held + all_stored, traffic[w])
            writes = (all_held + all_stored) * numbers[WRITE_COST]
            reads = misses[w] + all_streamed + all_held + all_stored
            # The part of the slow run's work that the tier still has; without a sample, the mean.
            busy = _share(reads * traffic[w] + writes * stores, reads + writes, traffic[w])
            at_once = busy * max(traffic[w], stores) ** (numbers[STREAMS] - 1)
            queues = row[QUEUEING] * at_once
            if row[QUEUEING] > 0:
                saturated = row[FAST_NS] + row[QUEUEING]
                queues = max(queues, busy * saturated - row[FAST_NS])
        if numbers[LOAD_TELLS] > 0:
            window_ns[w] = _loaded(row, waits_ns, queues, traffic[w], numbers[LOAD_POWER])
        else:
            window_ns[w] = row[FAST_NS] + waits_ns + queues
        # If the slow run was faster, for any reason, the gain is proportional to its share.
        window_ns[w] += min(row[SLOW_NS] - row[FAST_NS], 0.0) * traffic[w]
