"""What G10's planner books on links per kernel, and which inactive period relieves a step most.

Compiled parts of :mod:`hmd.tensors.planners.g10`, with the original's peculiarities:
what is sent to the host counts twice on flash once PCIe has less room than flash,
and a fetch fills its slots from the first on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from hmd.tensors.library_sort import sort_highest_first
from hmd.tensors.step_state import compiled
from hmd.tensors.tensor_trace import Bools, Floats, Ints

PCIE: Final = 0
FLASH: Final = 1
_OUT: Final = 0
_IN: Final = 1


class LinkAccount:
    """Bytes that each kernel carries over PCIe and flash, out and in; ``room`` (2, K)."""

    def __init__(self, room: Floats) -> None:
        self._room = room
        self._used = np.zeros((2, 2, room.shape[1]))
        self._full = np.zeros((2, 2, room.shape[1]), np.bool_)

    @property
    def flash(self) -> tuple[Any, ...]:
        """Flash alone: its room (K,), the bytes booked and whether slots are full (2, K)."""
        return self._room[FLASH], self._used[FLASH], self._full[FLASH]

    def flash_busy(self, start: int, end: int) -> bool:
        """Return whether kernels ``start`` to ``end - 1`` have no free slot outwards."""
        return bool(self._full[FLASH, _OUT, start:end].all())

    def out_by(self, link: int, start: int, size: float) -> int:
        """Return the kernel in which so many bytes have left, from ``start`` on."""
        return int(_forward(self._room[link], *self._of(link, _OUT), start, size))

    def back_from(self, link: int, end: int, size: float) -> int:
        """Return the kernel from which so many bytes can return until ``end``."""
        return int(_backward(self._room[link], *self._of(link, _IN), end, size))

    def book(self, link: int, start: int, slot: int, size: float) -> None:
        """Book bytes that leave from ``start`` on and return from ``slot`` on."""
        for way, first in ((_OUT, start), (_IN, slot)):
            _book(self._room, self._used[:, way], self._full[:, way], link, first, size)

    def _of(self, link: int, way: int) -> tuple[Any, Any]:
        return self._used[link, way], self._full[link, way]


@compiled
def _forward(room: Any, used: Any, full: Any, start: int, size: float) -> int:
    """Return the slot in which so many bytes have passed; the last slot if they never have."""
    for slot in range(start, len(room)):
        if not full[slot]:
            size -= room[slot] - used[slot]
        if size <= 0:
            return slot
    return len(room) - 1


@compiled
def _backward(room: Any, used: Any, full: Any, end: int, size: float) -> int:
    """Return the slot from which so many bytes can pass until ``end``; the first if from none."""
    for slot in range(end - 1, -1, -1):
        if not full[slot]:
            size -= room[slot] - used[slot]
        if size <= 0:
            return slot
    return 0


@compiled
def _book(room: Any, used: Any, full: Any, link: int, slot: int, size: float) -> None:
    """Book bytes from a slot on; arrays are (2, K)."""
    other = 1 - link
    while size > 0 and slot < room.shape[1]:
        if not full[link, slot]:
            left = room[link, slot] - used[link, slot]
            fills = size > left
            part = left if fills else size
            used[link, slot] += part
            if fills:
                used[link, slot] = room[link, slot]
                full[link, slot] = True
            if link == FLASH:
                used[other, slot] += part
                if used[other, slot] >= room[other, slot]:
                    full[other, slot] = True
            elif fills:
                used[other, slot] = room[other, slot]
                full[other, slot] = True
            else:
                used[other, slot] += max(
                    used[link, slot] - (room[link, slot] - room[other, slot]), 0.0
                )
                if used[other, slot] >= room[other, slot]:
                    used[other, slot] = room[other, slot]
                    full[other, slot] = True
            size -= part
        slot += 1


@dataclass(frozen=True)
class PeriodColumns:
    """Inactive periods: first and end kernel, whether it wraps, bytes and microseconds, (I,)."""

    start: Ints
    end: Ints
    looped: Bools
    size: Floats
    duration_us: Floats


class ReliefOrder:
    """Periods by relief: bytes times the time that the tier is overfull while they are away.

    With ``library``, all reliefs are computed again each time, and the sort of the original's
    library decides between equal ones, also between those without relief. Without, equal reliefs
    are taken by bytes times duration, and a period without relief is not taken.
    """

    def __init__(self, periods: PeriodColumns, start_us: Floats, *, library: bool) -> None:
        self._periods, self._start_us, self._library = periods, start_us, library
        count = len(periods.start)
        self._relief = np.full(count, np.inf)
        self._closed = np.zeros(count, np.bool_)
        self._order = np.arange(count)
        self._tie = periods.size * periods.duration_us

    def take(self, resident: Floats, flash: tuple[Any, ...], capacity: float) -> int:
        """Return the period to evict next and close it; -1 where there is none."""
        columns = (self._periods.start, self._periods.end, self._periods.looped, self._periods.size)
        account = resident, self._start_us, capacity
        if not len(self._order):
            return -1
        if self._library:
            _reliefs(columns, self._relief, self._closed, account, flash)
            sort_highest_first(self._order, self._relief, self._tie)
            at = int(self._order[0])
            found = not self._closed[at]
        else:
            at = int(_highest(columns, self._relief, self._closed, self._tie, account, flash))
            found = at >= 0
        if not found:
            return -1
        self._closed[at] = True
        return at


@compiled
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
    out = _forward(room, used[0], full[0], starts[at], half)
    back = _backward(room, used[1], full[1], ends[at], half)
    for slot in range(out, back):
        if resident[slot] > capacity:
            total += sizes[at] * (start_us[slot + 1] - start_us[slot])
    return total


@compiled
def _overfull_us(account: Any) -> tuple[Any, Any]:
    """Return the time in which the tier is overfull before each kernel, twice (kernels + 1,).

    First of periods within the step, then, as the original has it, of those over its end.
    """
    resident, start_us, capacity = account
    kernels = len(resident)
    within, over = np.zeros(kernels + 1), np.zeros(kernels + 1)
    for slot in range(kernels):
        within[slot + 1], over[slot + 1] = within[slot], over[slot]
        if resident[slot] > capacity:
            within[slot + 1] += start_us[slot + 1] - start_us[slot]
            over[slot + 1] += start_us[slot] - start_us[slot - 1 if slot > 0 else kernels]
    return within, over


@compiled
def _summed_relief(columns: Any, at: int, overfull: Any, flash: Any) -> float:
    """Return the relief of a period as :func:`_relief` does, but for rounding."""
    starts, ends, looped, sizes = columns
    within, over = overfull
    room, used, full = flash
    if looped[at]:
        return float(sizes[at] * (within[-1] - within[starts[at]] + over[ends[at]]))
    half = sizes[at] // 2
    out = _forward(room, used[0], full[0], starts[at], half)
    back = _backward(room, used[1], full[1], ends[at], half)
    return float(sizes[at] * (within[back] - within[out])) if out < back else 0.0


@compiled
def _reliefs(columns: Any, relief: Any, closed: Any, account: Any, flash: Any) -> None:
    """Compute the relief (I,) of all periods; closed ones have none."""
    for at in range(len(relief)):
        relief[at] = 0.0 if closed[at] else _relief(columns, at, account, flash)


@compiled
def _highest(columns: Any, relief: Any, closed: Any, tie: Any, account: Any, flash: Any) -> int:
    """Return the open period of most relief, -1 if none has any.

    Bookings never raise the relief of a period within the step, so that ``relief`` (I,) of earlier
    calls are upper limits: only the highest are computed again.
    """
    looped, overfull = columns[2], _overfull_us(account)
    current = np.zeros(len(relief), np.bool_)
    for at in range(len(relief)):
        if looped[at] and not closed[at]:
            relief[at] = _summed_relief(columns, at, overfull, flash)
            current[at] = True
    open_ones = np.flatnonzero((relief > 0) & ~closed)
    best = -1
    for at in open_ones[np.argsort(-relief[open_ones])]:
        if best >= 0 and relief[at] < relief[best]:
            break  # and so are the limits of all that follow
        if not current[at]:
            relief[at] = _summed_relief(columns, at, overfull, flash)
        if relief[at] > 0 and (
            best < 0
            or relief[at] > relief[best]
            or (relief[at] == relief[best] and tie[at] > tie[best])
        ):
            best = at
    return int(best)
