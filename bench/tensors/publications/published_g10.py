# SPDX-License-Identifier: MIT
"""G10's planner with the ties of the original, to repeat its published cycles.

The original sorts with GNU's C++ library, whose sort is not stable: where no period relieves the
fastest tier, this order alone decides what leaves. It is introsort (Musser, 1997) with a median of
three from the second, middle and last element, heapsort below twice the logarithm of the length,
and insertion sort of parts of up to 16 elements. In steps of many periods and kernels the product's
planner serves, whose ties are broken by size and time.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from hmd.base.numba_kernels import generic_kernel
from hmd.tensors.move_plan import MovePlan
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners.g10 import (
    TARGET,
    Fetch,
    G10Planner,
    PeriodColumns,
    ReliefOrder,
    backward,
    forward,
)
from hmd.tensors.trace import Floats, Ints

_LIBRARY_WORK: Final = 10_000_000
"""Periods times kernels up to which ties are broken as the original's library breaks them."""

_SHORT: Final = 16
_SAME: Final = 1e-6
"""Keys that differ by less are equal."""


def plan_step(problem: StepProblem, factor: float = 1.0) -> MovePlan:
    """Return the moves of G10's original; for GPU, host and flash."""
    is_long = len(problem.life.periods.tensor) * problem.trace.kernels > _LIBRARY_WORK
    return (G10Planner if is_long else _PublishedG10)(problem, TARGET * factor).plan()


def plan_bert_512(problem: StepProblem) -> MovePlan:
    """Return the moves for the target that the original has for BERT 512 with slow flash alone."""
    return plan_step(problem, 1.394)


class _PublishedG10(G10Planner):
    """G10's planner with the order of the original's library."""

    def relief_order(self, periods: PeriodColumns) -> ReliefOrder:
        """Return periods by relief, of equal ones as the library's sort leaves them."""
        return PublishedReliefOrder(periods, self.start_us)

    def in_order(self, fetches: list[Fetch]) -> list[Fetch]:
        """Return fetches by kernel, equal ones as the library's sort leaves them."""
        order = library_order(np.array([fetch[0] for fetch in fetches]))
        return [fetches[at] for at in order.tolist()]

    def plan(self) -> MovePlan:
        """Return the plan, moves of one kernel as the library's sort leaves them."""
        self.allocate()
        self.evict()
        self.fetch_early()
        order = library_order(np.array([move[0] for move in self.moves]))
        return self.plan_of_moves([self.moves[at] for at in order.tolist()])


class PublishedReliefOrder(ReliefOrder):
    """All reliefs are computed again each time, and periods without relief are taken, too."""

    def __init__(self, periods: PeriodColumns, start_us: Floats) -> None:
        super().__init__(periods, start_us)
        self._order = np.arange(len(periods.start))

    def take(self, resident: Floats, flash: tuple[Any, ...], capacity: float) -> int:
        """Return the period to evict next and close it; -1 where there is none."""
        if not len(self._order):
            return -1
        account = resident, self.start_us, capacity
        _reliefs(self.columns, self.relief, self.closed, account, flash)
        sort_highest_first(self._order, self.relief, self.tie)
        at = int(self._order[0])
        if self.closed[at]:
            return -1
        self.closed[at] = True
        return at


@generic_kernel
def _relief(columns: Any, at: int, account: Any, flash: Any) -> float:
    """Return the relief of a period, between the slots in which half of it is out and back.

    Beyond the end of the step the original pairs a kernel with the time of the one before, and the
    first kernel with the whole step's time, to be subtracted: while the first kernel is overfull,
    periods over the end have a negative relief.
    """
    starts, ends, looped, sizes = columns
    resident, start_us, capacity = account
    room, used, full = flash
    kernels = len(resident)
    total = 0.0
    if looped[at]:
        for slot in range(starts[at], kernels):
            if resident[slot] > capacity:
                total += sizes[at] * (start_us[slot + 1] - start_us[slot])
        for slot in range(ends[at]):
            if resident[slot] > capacity:
                before = start_us[slot - 1] if slot > 0 else start_us[kernels]
                total += sizes[at] * (start_us[slot] - before)
        return total
    half = sizes[at] // 2
    out = forward(room, used[0], full[0], starts[at], half)
    back = backward(room, used[1], full[1], ends[at], half)
    for slot in range(out, back):
        if resident[slot] > capacity:
            total += sizes[at] * (start_us[slot + 1] - start_us[slot])
    return total


@generic_kernel
def _reliefs(columns: Any, relief: Any, closed: Any, account: Any, flash: Any) -> None:
    """Compute the relief (I,) of all periods; closed ones have none."""
    for at in range(len(relief)):
        relief[at] = 0.0 if closed[at] else _relief(columns, at, account, flash)


def library_order(key: Floats) -> Ints:
    """Return the places of keys (N,), lowest first, with equal keys as the library leaves them."""
    order = np.arange(len(key))
    sort_highest_first(order, -np.asarray(key, np.float64), np.zeros(len(key)))
    return order


@generic_kernel
def _before(one: int, other: int, key: Any, tie: Any) -> bool:
    """Return whether an element comes first; of equal keys but 0 that with the higher ``tie``."""
    difference = key[one] - key[other]
    if -_SAME < difference < _SAME and key[one] != 0 and key[other] != 0:
        return bool(tie[one] > tie[other])
    return bool(difference > 0)


@generic_kernel
def sort_highest_first(order: Any, key: Any, tie: Any) -> None:
    """Sort ``order`` (N,) in place: elements of higher ``key`` (N,) first."""
    count = len(order)
    depth = 0
    while count >> (depth + 1) > 0:
        depth += 1
    waiting = np.zeros((4 * depth + 4, 3), np.int64)
    waiting[0] = 0, count, 2 * depth
    parts = 1
    while parts > 0:
        parts -= 1
        first, end, left = waiting[parts]
        if end - first <= _SHORT:
            continue
        if left == 0:
            _heapsort(order, first, end, key, tie)
            continue
        cut = _partition(order, first, end, key, tie)
        waiting[parts] = first, cut, left - 1
        waiting[parts + 1] = cut, end, left - 1
        parts += 2
    for at in range(1, count):
        if at < _SHORT and _before(order[at], order[0], key, tie):
            moved = order[at]
            order[1 : at + 1] = order[:at].copy()
            order[0] = moved
        else:
            _insert(order, at, key, tie)


@generic_kernel
def _insert(order: Any, at: int, key: Any, tie: Any) -> None:
    """Move an element to its place among those before it, of which one comes first."""
    moved = order[at]
    while _before(moved, order[at - 1], key, tie):
        order[at] = order[at - 1]
        at -= 1
    order[at] = moved


@generic_kernel
def _partition(order: Any, first: int, end: int, key: Any, tie: Any) -> int:
    """Split a part by its median of three; returns where the second side begins."""
    low, middle, high = first + 1, first + (end - first) // 2, end - 1
    if _before(order[low], order[middle], key, tie):
        low, middle = middle, low
    # Now ``middle`` comes first, or both are equal.
    if _before(order[middle], order[high], key, tie):
        median = low if _before(order[low], order[high], key, tie) else high
    else:
        median = middle
    order[first], order[median] = order[median], order[first]
    at, other = first + 1, end
    while True:
        while _before(order[at], order[first], key, tie):
            at += 1
        other -= 1
        while _before(order[first], order[other], key, tie):
            other -= 1
        if at >= other:
            return at
        order[at], order[other] = order[other], order[at]
        at += 1


@generic_kernel
def _heapsort(order: Any, first: int, end: int, key: Any, tie: Any) -> None:
    count = end - first
    for parent in range((count - 2) // 2, -1, -1):
        _sift(order, first, parent, count, key, tie)
    while count > 1:
        count -= 1
        order[first], order[first + count] = order[first + count], order[first]
        _sift(order, first, 0, count, key, tie)


@generic_kernel
def _sift(order: Any, first: int, hole: int, count: int, key: Any, tie: Any) -> None:
    """Put the element at ``hole`` of a heap into its place: down to a leaf, then up again."""
    moved, top = order[first + hole], hole
    child = 2 * hole + 2
    while child <= count:
        if child == count or _before(order[first + child], order[first + child - 1], key, tie):
            child -= 1
        order[first + hole] = order[first + child]
        hole, child = child, 2 * child + 2
    parent = (hole - 1) // 2
    while hole > top and _before(order[first + parent], moved, key, tie):
        order[first + hole] = order[first + parent]
        hole, parent = parent, (parent - 1) // 2
    order[first + hole] = moved
