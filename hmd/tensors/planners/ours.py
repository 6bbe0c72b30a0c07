"""The planner ``ours``: evict in parts by farthest next use, on links booked with stalled times.

1. Belady's choice of what leaves, in bytes, over a step that repeats (``eviction_choice``).
2. Departures at once and in order, on the links' free bytes; what the host has no room for goes to
   flash, the longest periods first (``transfer_slots``).
3. Fetches as early as there is room, those that are used first choosing first, in pieces.
4. The plan is priced, and planned again with the lengths that its kernels had, stalls included,
   since transfers overlap stalls too. Some margins of the fastest tier are tried; the cheapest plan
   is kept. G10's plan and two variants take part where the system has three tiers. Of steps with
   many thousand kernels only the first plans are tried.

Where kernels compute in place, tensors are split between the tiers by a linear program
(``split_residency``); the cheapest of its plans and those of the other planners is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from hmd.tensors.eviction_choice import (
    EvictedParts,
    StepUses,
    choose_evictions,
    step_uses,
    written_first,
)
from hmd.tensors.lower_bound import lower_bound_seconds
from hmd.tensors.move_plan import ANY, WHOLE, Move, MovePlan, MovePlanError, plan_of
from hmd.tensors.planner import StepProblem, planner_named
from hmd.tensors.planners import g10
from hmd.tensors.split_residency import split_plans
from hmd.tensors.tensor_trace import Bools, Floats, Ints
from hmd.tensors.transfer_slots import book_departures, book_returns, choose_slower, mark_away

_VARIANTS: Final = ((False, 0.99), (True, 0.99), (True, 0.95), (False, 0.95))
"""Plans tried: whether the choice minds the links, and the share of the fastest tier it fills."""

_G10_VARIANTS: Final = (
    (g10.TARGET, False, g10.LINKS),
    (0.94, True, g10.LINKS),
    (0.90, True, 1.18),
)
"""G10's plans tried: share of the fastest tier, whether fetches need all their room, links."""

_ROUNDS: Final = 3
_PRICED_KERNELS: Final = 25_000
"""Kernels simulated over all plans tried, after which no further plan is tried."""

_ENOUGH: Final = 1.0005
"""A plan this close to the lower bound is not improved further."""

_ENOUGH_IN_PLACE: Final = 1.0001
"""The same where kernels compute in place."""

_LINKS: Final = 0.95
"""Share of the links that is booked."""

_HOST: Final = 0.998
"""Share of the second tier that plans fill."""

_BUFFERED: Final = 0.1
"""Share of the fastest tier for what has returned early from the slowest."""

_IN_PLACE: Final = (
    "lru-free",
    "lru",
    "sentinel",
    "autotm-static",
    "autotm-sync",
    "autotm",
    "deeptm",
)
"""Planners whose plans are tried where kernels compute in place, the quick ones first."""

_PIECES: Final = 160
"""Parts are fetched in pieces of the fastest tier's capacity divided by this."""


def plan_step(problem: StepProblem) -> MovePlan:
    """Return the cheapest of the plans tried."""
    best, best_seconds = plan_of([]), np.inf
    share = _ENOUGH_IN_PLACE if problem.system.in_place else _ENOUGH
    enough = share * lower_bound_seconds(problem.trace, problem.system)
    priced = 0
    for plan, seconds in _candidates(problem):
        priced += problem.trace.kernels
        if seconds < best_seconds:
            best, best_seconds = plan, seconds
        if best_seconds <= enough or (priced >= _PRICED_KERNELS and not problem.system.in_place):
            break
    return best


def _candidates(problem: StepProblem) -> Iterator[tuple[MovePlan, float]]:
    """Yield plans with their prices."""
    if problem.system.in_place:
        yield from _in_place(problem)
        return
    yield from _drafts(problem, _VARIANTS[:1])
    if len(problem.system.tiers) > 2:
        for target, exact, links in _G10_VARIANTS:
            plan = g10.plan_to_target(problem, target, exact=exact, links=links)
            yield plan, problem.price(plan).seconds
    yield from _drafts(problem, _VARIANTS[1:])


def _drafts(
    problem: StepProblem, variants: tuple[tuple[bool, float], ...]
) -> Iterator[tuple[MovePlan, float]]:
    """Yield the plans of some variants; each is planned again with its stalled times."""
    uses = step_uses(problem.trace, problem.life)
    for aware, margin in variants:
        seconds = problem.trace.kernel_seconds
        previous = np.inf
        for _ in range(_ROUNDS):
            plan = _Draft(problem, uses, seconds, margin, aware).plan()
            try:
                result = problem.price(plan)
            except MovePlanError:
                break
            yield plan, result.seconds
            if result.seconds > previous * 0.999:
                break
            previous = result.seconds
            lengths = np.diff(np.append(result.begin, result.end[-1]))
            seconds = np.maximum(lengths / problem.trace.ticks_per_second, 1e-9)


def _in_place(problem: StepProblem) -> Iterator[tuple[MovePlan, float]]:
    """Yield plans that split tensors, then those of the other planners: none is always best."""
    try:
        for plan in split_plans(problem):
            yield plan, problem.price(plan).seconds
    except (ArithmeticError, MovePlanError):
        pass
    for name in _IN_PLACE:
        try:
            plan = planner_named(name).plan(problem)
            yield plan, problem.price(plan).seconds
        except (ArithmeticError, MovePlanError):
            continue


@dataclass
class _Draft:
    """One plan in the making, with the lengths that kernels are expected to have."""

    problem: StepProblem
    uses: StepUses
    seconds: Floats
    margin: float
    aware: bool

    def plan(self) -> MovePlan:
        """Return the moves for these lengths."""
        trace, system = self.problem.trace, self.problem.system
        capacity = self.margin * system.tiers[0].capacity
        allocated = self._allocations()
        chosen = choose_evictions(trace, self.uses, allocated, int(capacity), self._links())
        parts = _in_pieces(chosen, system.tiers[0].capacity // _PIECES)
        to_flash = self._to_flash(parts)
        lowest = len(system.tiers) - 1
        out, back = (
            [system.bandwidth(tier, inwards=way) for tier in (1, lowest)] for way in (False, True)
        )
        left = book_departures(parts, to_flash, self.seconds, (out[0], out[1]))
        occupied = self._occupied(allocated)
        mark_away(parts, left, occupied)
        limits = (self.seconds, _LINKS * back[0], _LINKS * back[1], capacity)
        fetched = book_returns(parts, left, to_flash, occupied, limits)
        moves = self._lives(allocated)
        moves += self._transfers(parts, to_flash, fetched)
        return plan_of(moves)

    def _links(self) -> tuple[Floats, Floats, int] | None:
        """Return what the fastest link carries per kernel, where the choice minds it."""
        if not self.aware:
            return None
        system, step = self.problem.system, float(self.seconds.sum())
        out, back = (_LINKS * system.bandwidth(1, inwards=way) for way in (False, True))
        early = _BUFFERED * system.tiers[0].capacity / back
        window = max(4, int(early / step * len(self.seconds)))
        return self.seconds * out, self.seconds * back, window

    def _allocations(self) -> Ints:
        """Return the kernel with which each intermediate is allocated, -1 for none."""
        trace, life = self.problem.trace, self.problem.life
        start = np.concatenate([[0.0], np.cumsum(self.seconds)])
        cost = self.problem.system.allocation_seconds_per_byte
        before = start[np.maximum(life.birth, 0)] - 1.5 * cost * trace.tensor_bytes - 20e-6
        slot = np.maximum(np.searchsorted(start, before, side="right") - 1, 0)
        return np.where(life.birth >= 0, slot, -1)

    def _occupied(self, allocated: Ints) -> Floats:
        """Return the bytes of all that is alive, per kernel, without evictions."""
        trace, uses = self.problem.trace, self.uses
        change = np.zeros(trace.kernels + 1)
        own = allocated >= 0
        np.add.at(change, allocated[own], trace.tensor_bytes[own].astype(np.float64))
        np.add.at(change, uses.alive_until[own], -trace.tensor_bytes[own].astype(np.float64))
        kept = trace.tensor_persistent & (self.problem.life.first >= 0)
        return np.cumsum(change[:-1]) + float(trace.tensor_bytes[kept].sum())

    def _to_flash(self, parts: EvictedParts) -> Bools:
        """Return which parts go to the last tier because the second has no room for them."""
        system = self.problem.system
        last = len(system.tiers) - 1
        if last == 1:
            return np.zeros(len(parts.tensor), np.bool_)
        rates = tuple(_LINKS * system.bandwidth(last, inwards=way) for way in (False, True))
        room = _HOST * system.tiers[1].capacity
        buffered = _BUFFERED * system.tiers[0].capacity
        return choose_slower(parts, self.seconds, (rates[0], rates[1]), room, buffered)

    def _lives(self, allocated: Ints) -> list[Move]:
        """Return allocations before birth and frees at death."""
        trace, life, none = self.problem.trace, self.problem.life, self.problem.none
        moves: list[Move] = []
        rewritten = set(written_first(trace).tolist())
        for tensor in np.flatnonzero(allocated >= 0).tolist():
            moves.append((int(allocated[tensor]), tensor, none, 0, WHOLE))
            end = int(self.uses.alive_until[tensor])
            if end < trace.kernels:
                moves.append((end, tensor, ANY, none, WHOLE))
            elif tensor in rewritten and int(life.birth[tensor]) > int(allocated[tensor]) > 0:
                moves.append((0, tensor, ANY, none, WHOLE))
        return moves

    def _transfers(self, parts: EvictedParts, to_flash: Bools, fetched: Ints) -> list[Move]:
        """Return evictions and fetches; pieces of one tensor that move together are one move."""
        slots, last = self.problem.trace.kernels, len(self.problem.system.tiers) - 1
        size = self.problem.trace.tensor_bytes
        tier = np.where(to_flash, last, 1)
        summed: dict[tuple[int, int, int, int, int], int] = {}
        for part in np.argsort(parts.end, kind="stable").tolist():
            tensor, lower = int(parts.tensor[part]), int(tier[part])
            end = int(parts.end[part]) % slots
            for key in (
                (int(parts.start[part]) % slots, 0, tensor, 0, lower),
                (int(fetched[part]) % slots, 1 + end, tensor, lower, 0),
            ):
                summed[key] = summed.get(key, 0) + int(parts.size[part])
        return [
            (kernel, tensor, source, target, WHOLE if total >= size[tensor] else total)
            for (kernel, _, tensor, source, target), total in sorted(summed.items())
        ]


def _in_pieces(parts: EvictedParts, piece: int) -> EvictedParts:
    """Return the parts cut into pieces of at most so many bytes."""
    piece = max(piece - piece % 4096, 4096)
    count = -(-parts.size // piece)
    row = np.repeat(np.arange(len(count)), count)
    number = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    size = np.minimum(parts.size[row] - number * piece, piece)
    return EvictedParts(
        parts.tensor[row], parts.start[row], parts.end[row], parts.needed[row], size
    )
