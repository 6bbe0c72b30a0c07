"""The planner ``g10``: smart tensor eviction and prefetching of G10 (arXiv:2310.09443, section 4).

Re-made from its description. Intermediate tensors are allocated shortly before their birth and
freed at death. Then inactive periods are evicted one by one, most relief first, while the kernels'
account of resident bytes exceeds 0.99 of the fastest tier; periods go to flash, or to the host
where flash is busy. At last each fetch moves earlier while there is room. Slots are kernels;
gigabytes are of 2^30 bytes, as in the original. Equal reliefs, fetches and moves of one kernel stay
in the order in which the original's sort leaves them (``library_sort``); in steps of many periods
and kernels, their order is that of tensors, and evicting ends where no period has relief.

``g10@FACTOR`` fills so many times the target: the original has 1.394 for BERT with a batch of 512
and flash below 6.3 GB/s.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hmd.tensors.library_sort import library_order
from hmd.tensors.move_plan import WHOLE, Move, MovePlan, plan_of
from hmd.tensors.period_relief import FLASH, PCIE, LinkAccount, PeriodColumns, ReliefOrder
from hmd.tensors.planner import StepProblem
from hmd.tensors.tensor_trace import Ints
from hmd.units import GIB

_GPU, _HOST, _NOWHERE = 0, 1, -1
TARGET: Final = 0.99
"""Share of the fastest tier that the original fills."""

LINKS: Final = GIB / 1e9
"""Share of the links that the original books: it counts gigabytes of 2^30 bytes."""

_ALLOCATION_US_PER_BYTE: Final = 0.814e-6
_FAULT_US, _FLASH_US = 45.0, 20.0
_WORTH: Final = 2.5
"""A period must last so many times as long as one transfer."""

_LIBRARY_WORK: Final = 10_000_000
"""Periods times kernels up to which ties are broken as the original's library breaks them."""


def plan_step(problem: StepProblem, factor: float = 1.0) -> MovePlan:
    """Return G10's moves: evictions, fetches, allocations and frees; for GPU, host and flash."""
    return plan_to_target(problem, TARGET * factor)


def plan_to_target(
    problem: StepProblem, target: float, *, exact: bool = False, links: float = LINKS
) -> MovePlan:
    """Return G10's moves for another share of the fastest tier, and of the links' bandwidths.

    ``exact``: a fetch moves earlier only where all of it has room, unlike in the original, and ties
    are broken by size and time.
    """
    planner = _G10Planner(problem, target, exact, links)
    planner.allocate()
    planner.evict()
    planner.fetch_early()
    return planner.plan()


class _G10Planner:
    """The account of one step: resident bytes per kernel, booked link bytes per kernel."""

    def __init__(self, problem: StepProblem, target: float, exact: bool, links: float) -> None:
        trace, system = problem.trace, problem.system
        self.problem, self.trace, self.life = problem, trace, problem.life
        self.none, self.flash = problem.none, problem.none - 1
        self.capacity = system.tiers[_GPU].capacity
        self.target = target * self.capacity
        self.exact = exact
        work = len(self.life.periods.tensor) * trace.kernels
        self.library = not exact and work <= _LIBRARY_WORK
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
        self.fetches: list[tuple[int, int, int, int]] = []

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
        order = ReliefOrder(columns, self.start_us, library=self.library)
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

    def fetch_early(self) -> None:
        """Move each fetch to an earlier kernel while the account stays below the target."""
        fetches = sorted(self.fetches)
        if self.library:
            order = library_order(np.array([fetch[0] for fetch in self.fetches]))
            fetches = [self.fetches[at] for at in order.tolist()]
        for slot, tensor, tier, cleared in fetches:
            at, size = slot, float(self.trace.tensor_bytes[tensor])
            added = size if self.exact else 0.0
            while at > cleared + 1 and self.resident[at - 1] + added < self.target:
                at -= 1
                self.resident[at] += size
            self.moves.append((at, tensor, tier, _GPU, WHOLE))

    def plan(self) -> MovePlan:
        """Return the plan of the moves so far."""
        moves, kernels = self.moves, self.trace.kernels
        if self.library:
            order = library_order(np.array([move[0] for move in moves]))
            moves = [moves[at] for at in order.tolist()]
        # What the last kernel reads is freed when the next step begins, before its other moves.
        frees = [(0, *move[1:]) for move in moves if move[0] == kernels]
        return plan_of([*frees, *(move for move in moves if move[0] < kernels)])
