"""A plan that evicts chosen parts of tensors: when they leave, where to, and when they return.

Links are booked kernel by kernel with the lengths that kernels are expected to have, stalls
included: departures at once and in order, returns as early as there is room, those that are used
first choosing first, in pieces (:mod:`hmd.tensors.transfer_slots`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hmd.tensors.eviction_choice import EvictedParts, StepUses, choose_evictions, written_first
from hmd.tensors.move_plan import ANY, WHOLE, Move, MovePlan, plan_of
from hmd.tensors.planner import StepProblem
from hmd.tensors.tensor_trace import Bools, Floats, Ints
from hmd.tensors.transfer_slots import book_departures, book_returns, choose_slower, mark_away

_LINKS: Final = 0.95
"""Share of the links that is booked."""

HOST_SHARE: Final = 0.998
"""Share of the second tier that plans fill."""

_BUFFERED: Final = 0.1
"""Share of the fastest tier for what has returned early from the slowest."""

_PIECES: Final = 160
"""Parts are fetched in pieces of the fastest tier's capacity divided by this."""


@dataclass
class TransferDraft:
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
        return self.booked(parts, self._to_flash(parts))

    def booked(self, parts: EvictedParts, to_flash: Bools) -> MovePlan:
        """Return the moves that evict parts as soon as they may leave, on booked links."""
        system = self.problem.system
        capacity = self.margin * system.tiers[0].capacity
        lowest = len(system.tiers) - 1
        out, back = (
            [self._rate(tier, inwards=way) for tier in (1, lowest)] for way in (False, True)
        )
        left = book_departures(parts, to_flash, self.seconds, (out[0], out[1]))
        occupied = self._occupied(self._allocations())
        mark_away(parts, left, occupied)
        limits = (self.seconds, _LINKS * back[0], _LINKS * back[1], capacity)
        fetched = book_returns(parts, left, to_flash, occupied, limits)
        return self.scheduled(parts, to_flash, fetched)

    def scheduled(self, parts: EvictedParts, to_flash: Bools, fetched: Ints) -> MovePlan:
        """Return the moves that evict parts when they start, and fetch them with given kernels."""
        moves = self._lives(self._allocations())
        return plan_of(moves + self._transfers(parts, to_flash, fetched))

    def _links(self) -> tuple[Floats, Floats, int] | None:
        """Return what the fastest link carries per kernel, where the choice minds it."""
        if not self.aware:
            return None
        system, step = self.problem.system, float(self.seconds.sum())
        out, back = (_LINKS * self._rate(1, inwards=way) for way in (False, True))
        early = _BUFFERED * system.tiers[0].capacity / back
        window = max(4, int(early / step * len(self.seconds)))
        return self.seconds * out, self.seconds * back, window

    def _rate(self, tier: int, *, inwards: bool) -> float:
        """Return what a path carries in pieces, bytes per second, latencies included."""
        trace, system = self.problem.trace, self.problem.system
        piece = min(system.tiers[0].capacity / _PIECES, float(trace.tensor_bytes.mean()))
        return system.transfer_rate(tier, piece, inwards=inwards)

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
        rates = tuple(_LINKS * self._rate(last, inwards=way) for way in (False, True))
        room = HOST_SHARE * system.tiers[1].capacity
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
                (int(parts.start[part]) % slots, slots, tensor, 0, lower),
                (int(fetched[part]) % slots, end, tensor, lower, 0),
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
