"""The planner ``g10``: smart tensor eviction and prefetching of G10 (arXiv:2310.09443, section 4).

Re-made from its description. Intermediate tensors are allocated shortly before their birth and
freed at death. Then inactive periods are evicted one by one, most relief first, while the kernels'
account of resident bytes exceeds 0.99 of the fastest tier; periods go to flash, or to the host
where flash is busy. At last each fetch moves earlier while there is room. Slots are kernels;
gigabytes are of 2^30 bytes, as in the original. Where no period has relief, the original picks one
in undefined order; here that is the end.

``g10@FACTOR`` fills so many times the target: the original has 1.394 for BERT with a batch of 512
and flash below 6.3 GB/s.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from hmd.tensors.move_plan import WHOLE, Move, MovePlan, plan_of
from hmd.tensors.planner import StepProblem
from hmd.tensors.step_state import compiled
from hmd.tensors.tensor_trace import Ints
from hmd.units import GIB

_GPU, _HOST, _NOWHERE = 0, 1, -1
_OUT, _IN = 0, 1
TARGET: Final = 0.99
"""Share of the fastest tier that the original fills."""

LINKS: Final = GIB / 1e9
"""Share of the links that the original books: it counts gigabytes of 2^30 bytes."""

_ALLOCATION_US_PER_BYTE: Final = 0.814e-6
_FAULT_US, _FLASH_US = 45.0, 20.0
_WORTH: Final = 2.5
"""A period must last so many times as long as one transfer."""


def plan_step(problem: StepProblem, factor: float = 1.0) -> MovePlan:
    """Return G10's moves: evictions, fetches, allocations and frees; for GPU, host and flash."""
    return plan_to_target(problem, TARGET * factor)


def plan_to_target(
    problem: StepProblem, target: float, *, exact: bool = False, links: float = LINKS
) -> MovePlan:
    """Return G10's moves for another share of the fastest tier, and of the links' bandwidths.

    ``exact``: a fetch moves earlier only where all of it has room, and small tensors go to the
    host, unlike in the original.
    """
    planner = _G10Planner(problem, target, exact, links)
    planner.allocate()
    planner.evict()
    planner.fetch_early()
    return plan_of(planner.moves)


class _G10Planner:
    """The account of one step: resident bytes per kernel, free link bytes per kernel."""

    def __init__(self, problem: StepProblem, target: float, exact: bool, links: float) -> None:
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
        # Free bytes: link (PCIe, flash), direction, kernel.
        self.free = np.stack(
            [np.stack([self.time_us * rate] * 2) for rate in (self.pcie, self.ssd)]
        )
        total = float(trace.tensor_bytes.sum() + trace.tensor_bytes[0])
        self.resident = np.full(trace.kernels, total)
        self.moves: list[Move] = []
        self.fetches: list[tuple[int, int, int, int]] = []

    def allocate(self) -> None:
        """Allocate intermediates just before birth and free them at death, while over target."""
        trace, kernels = self.trace, self.trace.kernels
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
            if death < kernels:
                self.moves.append((death, tensor, _GPU, self.none, WHOLE))
                self.resident[death:] -= size

    def evict(self) -> None:
        """Evict inactive periods, most relief first, until the account fits."""
        periods, trace = self.life.periods, self.trace
        size = trace.tensor_bytes[periods.tensor].astype(np.float64)
        relief = np.full(len(size), np.inf)
        columns = (periods.start, periods.end, periods.looped, size, periods.seconds * 1e6)
        for _ in range(len(size)):
            if self.resident.max() <= self.target:
                return
            at = _best(columns, relief, self.resident, self.time_us, self.free[1], self.capacity)
            if relief[at] <= 0:
                return
            relief[at] = -np.inf
            start, end = int(periods.start[at]), int(periods.end[at])
            looped = bool(periods.looped[at])
            length = end - start + (trace.kernels if looped else 0)
            inside = np.arange(start, start + length) % trace.kernels
            if length <= 1 or not (self.resident[inside] > self.target).any():
                continue
            if columns[4][at] <= _WORTH * self._transfer_us(float(size[at]))[1]:
                return  # the original does not get past a period that is too short
            tier = self._destination(float(size[at]), start, columns[4][at])
            if tier != _NOWHERE:
                self._book(int(periods.tensor[at]), tier, start, end, inside, looped)

    def _destination(self, size: float, start: int, duration_us: float) -> int:
        """Return the tier that a period is evicted to, _NOWHERE if only a full host suits.

        Where a transfer to flash takes less than a slot, the original takes flash; ``exact`` plans
        take the host, where small tensors do not queue behind large ones. Room in the host is that
        of all kernels.
        """
        flash_us, _ = self._transfer_us(size)
        has_room = bool(self.host_free.min() >= size)
        if duration_us <= _WORTH * flash_us:
            return _HOST if has_room else _NOWHERE
        slots = self.free[1, _OUT, start : self._slot_of(self.start_us[start] + flash_us)]
        busy = (len(slots) > 0 or self.exact) and not (slots > 0).any()
        return _HOST if busy and has_room else self.flash

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
        link = 1 if tier == self.flash else 0
        if looped:
            transfer = self._transfer_us(size)[1 - link]
            slot = self._slot_of((self.start_us[end] - 1.5 * transfer) % self.start_us[-1])
            cleared = self._slot_of((self.start_us[start] + transfer) % self.start_us[-1])
            first, last = (int(np.flatnonzero(inside == each)[0]) for each in (cleared, slot))
            self.resident[inside[first + 1 : last]] -= size
        else:
            cleared = _forward(self.free[link, _OUT], start, end, size)
            slot = _backward(self.free[link, _IN], start, end, size)
            if slot <= cleared:
                return
            _take(self.free, link, _OUT, start, cleared, size)
            _take(self.free, link, _IN, end - 1, slot, size)
            self.resident[cleared + 1 : slot] -= size
            self.fetches.append((slot, tensor, tier, cleared))
        self.moves.append((start, tensor, _GPU, tier, WHOLE))
        if looped:
            self.moves.append((slot, tensor, tier, _GPU, WHOLE))
        if tier == _HOST:
            self.host_free[inside] -= size

    def fetch_early(self) -> None:
        """Move each fetch to an earlier kernel while the account stays below the target."""
        for slot, tensor, tier, cleared in sorted(self.fetches):
            at, size = slot, float(self.trace.tensor_bytes[tensor])
            added = size if self.exact else 0.0
            while at > cleared + 1 and self.resident[at - 1] + added < self.target:
                at -= 1
                self.resident[at] += size
            self.moves.append((at, tensor, tier, _GPU, WHOLE))


@compiled
def _forward(free: Any, start: int, end: int, size: float) -> int:
    """Return the slot in which so many bytes have passed, from ``start`` on; ``end`` if never."""
    for slot in range(start, end):
        size -= free[slot]
        if size <= 0:
            return slot
    return end


@compiled
def _backward(free: Any, start: int, end: int, size: float) -> int:
    """Return the slot from which so many bytes can pass until ``end``; ``start - 1`` if never."""
    for slot in range(end - 1, start - 1, -1):
        size -= free[slot]
        if size <= 0:
            return slot
    return start - 1


@compiled
def _take(free: Any, link: int, way: int, first: int, last: int, size: float) -> None:
    """Book bytes from slot ``first`` to ``last``: flash books PCIe, a full PCIe limits flash."""
    step = 1 if last >= first else -1
    for slot in range(first, last + step, step):
        part = min(size, free[link, way, slot])
        size -= part
        free[0, way, slot] -= part
        if link == 1:
            free[1, way, slot] -= part
        free[1, way, slot] = max(min(free[1, way, slot], free[0, way, slot]), 0.0)


@compiled
def _best(
    columns: Any, relief: Any, resident: Any, time_us: Any, flash: Any, capacity: float
) -> int:
    """Return the period of most relief: bytes times overfull time between both halves.

    Bookings never raise a relief, so that ``relief`` (I,) of earlier calls are upper limits: only
    the highest are computed again. Periods of negative relief are closed.
    """
    starts, ends, looped, sizes, durations = columns
    kernels = len(time_us)
    over = np.zeros(kernels + 1)
    for slot in range(kernels):
        over[slot + 1] = over[slot] + (time_us[slot] if resident[slot] > capacity else 0.0)
    current = np.zeros(len(starts), np.bool_)
    while True:
        best, most, tie = 0, -1.0, -1.0
        for at in range(len(starts)):
            if relief[at] > most or (relief[at] == most and durations[at] * sizes[at] > tie):
                best, most, tie = at, relief[at], durations[at] * sizes[at]
        if current[best]:
            return best
        start, end, size = starts[best], ends[best], sizes[best]
        if looped[best]:
            relief[best] = (over[kernels] - over[start] + over[end]) * size
        else:
            out = _forward(flash[0], start, end, size / 2)
            back = _backward(flash[1], start, end, size / 2)
            relief[best] = max(over[back] - over[out], 0.0) * size if back > out else 0.0
        current[best] = True
