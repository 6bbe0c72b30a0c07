"""Compiled: the order in which the sort of GNU's C++ library leaves equal elements.

Programs whose ties are broken by an unstable sort are repeated only with the same sort: introsort
(Musser, 1997) with a median of three from the second, middle and last element, heapsort below
twice the logarithm of the length, and insertion sort of parts of up to 16 elements.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from hmd.tensors.step_state import compiled
from hmd.tensors.tensor_trace import Floats, Ints

_SHORT: Final = 16
_SAME: Final = 1e-6
"""Keys that differ by less are equal."""


def library_order(key: Floats) -> Ints:
    """Return the places of keys (N,), lowest first, with equal keys as the library leaves them."""
    order = np.arange(len(key))
    sort_highest_first(order, -np.asarray(key, np.float64), np.zeros(len(key)))
    return order


@compiled
def _before(one: int, other: int, key: Any, tie: Any) -> bool:
    """Return whether an element comes first; of equal keys but 0 that with the higher ``tie``."""
    difference = key[one] - key[other]
    if -_SAME < difference < _SAME and key[one] != 0 and key[other] != 0:
        return bool(tie[one] > tie[other])
    return bool(difference > 0)


@compiled
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


@compiled
def _insert(order: Any, at: int, key: Any, tie: Any) -> None:
    """Move an element to its place among those before it, of which one comes first."""
    moved = order[at]
    while _before(moved, order[at - 1], key, tie):
        order[at] = order[at - 1]
        at -= 1
    order[at] = moved


@compiled
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


@compiled
def _heapsort(order: Any, first: int, end: int, key: Any, tie: Any) -> None:
    count = end - first
    for parent in range((count - 2) // 2, -1, -1):
        _sift(order, first, parent, count, key, tie)
    while count > 1:
        count -= 1
        order[first], order[first + count] = order[first + count], order[first]
        _sift(order, first, 0, count, key, tie)


@compiled
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
