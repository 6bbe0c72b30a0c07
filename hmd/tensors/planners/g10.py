# SPDX-License-Identifier: MIT
"""The planner ``g10``: smart tensor eviction and prefetching of G10 (arXiv:2310.09443, section 4).

Re-made from its description. Intermediate tensors are allocated shortly before their birth and
freed at death. Then inactive periods are evicted one by one, most relief first, while the kernels'
account of resident bytes exceeds 0.99 of the fastest tier; periods go to flash, or to the host
where flash is busy. At last each fetch moves earlier while there is room. Slots are kernels;
gigabytes are of 2^30 bytes, as in the original. Equal reliefs are taken by bytes times duration,
equal fetches and moves by tensor, and evicting ends where no period has relief; the original leaves
equal elements as its library's sort does (bench/tensors/publications/published_g10.py).

The account of the links has the original's peculiarities: what is sent to the host counts twice on
flash once PCIe has less room than flash, and a fetch fills its slots from the first on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from hmd.base.numba_kernels import generic_kernel
from hmd.base.units import GIB
from hmd.tensors.move_plan import WHOLE, Move, MovePlan, plan_of
from hmd.tensors.planner import StepProblem
from hmd.tensors.trace import Bools, Floats, Ints

PCIE: Final = 0
FLASH: Final = 1
_OUT: Final = 0
_IN: Final = 1
_GPU, _HOST, _NOWHERE = 0, 1, -1
TARGET: Final = 0.99
"""Share of the fastest tier that the original fills."""

LINKS: Final = GIB / 1e9
"""Share of the links that the original books: it counts gigabytes of 2^30 bytes."""

_ALLOCATION_US_PER_BYTE: Final = 0.814e-6
_FAULT_US, _FLASH_US = 45.0, 20.0
_WORTH: Final = 2.5
"""A period must last so many times as long as one transfer."""

Fetch = tuple[int, int, int, int]
"""Kernel, tensor, tier, and the kernel by which the tensor has left."""


def plan_step(problem: StepProblem) -> MovePlan:
    """Return G10's moves: evictions, fetches, allocations and frees; for GPU, host and flash."""
    return G10Planner(problem).plan()


class G10Planner:
    """The account of one step: resident bytes per kernel, booked link bytes per kernel.

    ``target`` and ``links`` are the shares of the fastest tier and of the links' bandwidths.
    ``exact``: a fetch moves earlier only where all of it has room, unlike in the original.
    """

    def __init__(
        self,
        problem: StepProblem,
        target: float = TARGET,
        links: float = LINKS,
        *,
        exact: bool = False,
    ) -> None:
        trace, system = problem.trace, problem.system
        self.problem, self.trace, self.life = problem, trace, problem.life
        self.none, self.flash = problem.none, problem.none - 1
        self.capacity = system.tiers[_GPU].capacity
        self.target = target * self.capacity
        self.exact = exact
        self.host_free = np.full(trace.kernels, system.tiers[_HOST].capacity, np.float64)
        self.pcie = system.bandwidth(_HOST, inwards=True) * links / 1e6
        self.ssd = system.bandwidth(self.flash, inwards=True) * links / 1e6
        self.latency_us = tuple(system.latency_seconds(tier) * 1e6 for tier in (self.flash, _HOST))
        self.time_us = trace.kernel_seconds * 1e6
        self.start_us = np.concatenate([[0.0], np.cumsum(self.time_us)])
        room = np.stack([self.time_us * rate for rate in (self.pcie, self.ssd)])
        self.links = LinkAccount(room)
        total = float(trace.tensor_bytes.sum() + trace.tensor_bytes[0])
        self.resident = np.full(trace.kernels, total)
        self.moves: list[Move] = []
        self.fetches: list[Fetch] = []

    def allocate(self) -> None:
        """Allocate intermediates just before birth and free them at death, while over target."""
        trace = self.trace
        for tensor in range(1, trace.tensors):
            if self.resident.max() <= self.target:
                return
            birth, death = int(self.life.birth[tensor]), int(self.life.death[tensor])
            if birth < 0:
                continue
            size = int(trace.tensor_bytes[tensor])
            before = self.start_us[birth] - size * _ALLOCATION_US_PER_BYTE
            slot = max(int(np.searchsorted(self.start_us, before, side="right")) - 1, 0)
            self.moves.append((slot, tensor, self.none, _GPU, WHOLE))
            self.resident[:slot] -= size
            self.moves.append((death, tensor, _GPU, self.none, WHOLE))
            self.resident[death:] -= size

    def evict(self) -> None:
        """Evict inactive periods, most relief first, until the account fits."""
        periods, trace = self.life.periods, self.trace
        size = trace.tensor_bytes[periods.tensor].astype(np.float64)
        duration_us = periods.seconds * 1e6
        columns = PeriodColumns(periods.start, periods.end, periods.looped, size, duration_us)
        order = self.relief_order(columns)
        while self.resident.max() > self.target:
            at = order.take(self.resident, self.links.flash, self.capacity)
            if at < 0:
                return
            start, end = int(periods.start[at]), int(periods.end[at])
            looped = bool(periods.looped[at])
            length = end - start + (trace.kernels if looped else 0)
            inside = np.arange(start, start + length) % trace.kernels
            if length <= 1 or not (self.resident[inside] > self.target).any():
                continue
            if duration_us[at] <= _WORTH * self._transfer_us(float(size[at]))[1]:
                return  # the original does not get past a period that is too short
            tier = self._destination(float(size[at]), start, duration_us[at], looped)
            if tier != _NOWHERE:
                self._book(int(periods.tensor[at]), tier, start, end, inside, looped)

    def _destination(self, size: float, start: int, duration_us: float, looped: bool) -> int:
        """Return the tier that a period is evicted to, _NOWHERE if only a full host suits.

        A period over the end of the step that is long enough goes to flash. Others go to the host
        where flash has no free slot in the time that the transfer takes, and where that is less
        than a slot. Room in the host is that of all kernels.
        """
        flash_us, _ = self._transfer_us(size)
        has_room = bool(self.host_free.min() >= size)
        if duration_us <= _WORTH * flash_us:
            return _HOST if has_room else _NOWHERE
        busy = self.links.flash_busy(start, self._slot_of(self.start_us[start] + flash_us))
        return _HOST if busy and has_room and not looped else self.flash

    def _transfer_us(self, size: float) -> tuple[float, float]:
        flash_us, host_us = self.latency_us
        return (
            _FAULT_US + _FLASH_US + flash_us + size / self.ssd,
            _FAULT_US + host_us + size / self.pcie,
        )

    def _slot_of(self, time_us: float) -> int:
        return max(int(np.searchsorted(self.start_us, time_us, side="right")) - 1, 0)

    def _book(
        self, tensor: int, tier: int, start: int, end: int, inside: Ints, looped: bool
    ) -> None:
        size = float(self.trace.tensor_bytes[tensor])
        link = FLASH if tier == self.flash else PCIE
        if looped:
            transfer = self._transfer_us(size)[1 - link]
            slot = self._slot_of((self.start_us[end] - 1.5 * transfer) % self.start_us[-1])
            cleared = self._slot_of((self.start_us[start] + transfer) % self.start_us[-1])
            first, last = (int(np.flatnonzero(inside == each)[0]) for each in (cleared, slot))
            self.resident[inside[first + 1 : last]] -= size
        else:
            cleared = self.links.out_by(link, start, size)
            slot = self.links.back_from(link, end, size)
            if slot <= cleared:
                return
            self.links.book(link, start, slot, size)
            self.resident[cleared + 1 : slot] -= size
            self.fetches.append((slot, tensor, tier, cleared))
        self.moves.append((start, tensor, _GPU, tier, WHOLE))
        if looped:
            self.moves.append((slot, tensor, tier, _GPU, WHOLE))
        if tier == _HOST:
            self.host_free[inside] -= size

    def relief_order(self, periods: PeriodColumns) -> ReliefOrder:
        """Return the order in which periods are evicted."""
        return ReliefOrder(periods, self.start_us)

    def in_order(self, fetches: list[Fetch]) -> list[Fetch]:
        """Return fetches in the order in which they move earlier, those of early kernels first."""
        return sorted(fetches)

    def fetch_early(self) -> None:
        """Move each fetch to an earlier kernel while the account stays below the target."""
        for slot, tensor, tier, cleared in self.in_order(self.fetches):
            at, size = slot, float(self.trace.tensor_bytes[tensor])
            added = size if self.exact else 0.0
            while at > cleared + 1 and self.resident[at - 1] + added < self.target:
                at -= 1
                self.resident[at] += size
            self.moves.append((at, tensor, tier, _GPU, WHOLE))

    def plan(self) -> MovePlan:
        """Allocate, evict, fetch early; return the plan."""
        self.allocate()
        self.evict()
        self.fetch_early()
        return self.plan_of_moves(self.moves)

    def plan_of_moves(self, moves: list[Move]) -> MovePlan:
        """Return a plan; what the last kernel reads is freed first when the next step begins."""
        kernels = self.trace.kernels
        frees = [(0, *move[1:]) for move in moves if move[0] == kernels]
        return plan_of([*frees, *(move for move in moves if move[0] < kernels)])


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
        return int(forward(self._room[link], *self._of(link, _OUT), start, size))

    def back_from(self, link: int, end: int, size: float) -> int:
        """Return the kernel from which so many bytes can return until ``end``."""
        return int(backward(self._room[link], *self._of(link, _IN), end, size))

    def book(self, link: int, start: int, slot: int, size: float) -> None:
        """Book bytes that leave from ``start`` on and return from ``slot`` on."""
        for way, first in ((_OUT, start), (_IN, slot)):
            _book(self._room, self._used[:, way], self._full[:, way], link, first, size)

    def _of(self, link: int, way: int) -> tuple[Any, Any]:
        return self._used[link, way], self._full[link, way]


@generic_kernel
def forward(room: Any, used: Any, full: Any, start: int, size: float) -> int:
    """Return the slot in which so many bytes have passed; the last slot if they never have."""
    for slot in range(start, len(room)):
        if not full[slot]:
            size -= room[slot] - used[slot]
        if size <= 0:
            return slot
    return len(room) - 1


@generic_kernel
def backward(room: Any, used: Any, full: Any, end: int, size: float) -> int:
    """Return the slot from which so many bytes can pass until ``end``; the first if from none."""
    for slot in range(end - 1, -1, -1):
        if not full[slot]:
            size -= room[slot] - used[slot]
        if size <= 0:
            return slot
    return 0


@generic_kernel
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

    Equal reliefs are taken by bytes times duration; a period without relief is not taken.
    """

    def __init__(self, periods: PeriodColumns, start_us: Floats) -> None:
        count = len(periods.start)
        self.columns = periods.start, periods.end, periods.looped, periods.size
        self.start_us = start_us
        self.relief = np.full(count, np.inf)
        self.closed = np.zeros(count, np.bool_)
        self.tie = periods.size * periods.duration_us

    def take(self, resident: Floats, flash: tuple[Any, ...], capacity: float) -> int:
        """Return the period to evict next and close it; -1 where there is none."""
        account = resident, self.start_us, capacity
        at = int(_highest(self.columns, self.relief, self.closed, self.tie, account, flash))
        if at >= 0:
            self.closed[at] = True
        return at


@generic_kernel
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


@generic_kernel
def _summed_relief(columns: Any, at: int, overfull: Any, flash: Any) -> float:
    """Return the relief of a period, between the slots in which half of it is out and back.

    While the first kernel is overfull, periods over the end have a negative relief: beyond the end
    of the step the original pairs a kernel with the time of the one before.
    """
    starts, ends, looped, sizes = columns
    within, over = overfull
    room, used, full = flash
    if looped[at]:
        return float(sizes[at] * (within[-1] - within[starts[at]] + over[ends[at]]))
    half = sizes[at] // 2
    out = forward(room, used[0], full[0], starts[at], half)
    back = backward(room, used[1], full[1], ends[at], half)
    return float(sizes[at] * (within[back] - within[out])) if out < back else 0.0


@generic_kernel
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
