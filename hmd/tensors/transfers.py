# SPDX-License-Identifier: MIT
"""When evicted parts of tensors leave, where to, and when they return; the step repeats.

Two ways lead to a plan. ``TransferDraft`` takes Belady's choice of what leaves and books links and
room kernel by kernel, with the lengths that kernels are expected to have, stalls included:
departures at once and in order, returns as early as there is room, those that are used first
choosing first, in pieces. ``schedule_transfers`` solves a linear program of the bytes that links
carry in each slot, which minimises the kernels' waits, and assigns the bytes to tensors: what
leaves first is what may leave first; what returns first is what is used first, of what has left.

In the program the bytes of all tensors together flow: what is away per tier follows from what
leaves and returns, and no more leaves than gaps have opened, no less returns than gaps close. Which
tensor a byte belongs to is decided per gap, so that the program grows with kernels plus gaps. Its
sizes are in MiB, its times in milliseconds. Slot k is the time between the starts of kernels k and
k + 1; the last one is followed by the first.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from hmd.base.numba_kernels import generic_kernel
from hmd.base.units import MIB
from hmd.tensors.eviction import EvictedParts, StepUses, choose_evictions, written_first
from hmd.tensors.lifetimes import TensorSpans, tensor_spans
from hmd.tensors.linear_program import LinearProgram
from hmd.tensors.move_plan import ANY, WHOLE, Move, MovePlan, plan_of
from hmd.tensors.planner import StepProblem
from hmd.tensors.trace import Bools, Floats, Ints

_STEPS: Final = 3
"""Walks: pieces that leave in the second have returned by the end of the third."""


def scheduled_pieces(gaps: tuple[Ints, Ints], pages: Floats, flow: tuple[Floats, Floats]) -> Ints:
    """Return gap, slot of leaving, slot of returning, end and pages of each piece, (5, P).

    ``gaps`` are start and end kernels, (G,) each, an end at or before its start in the next step;
    ``pages`` (G,) leave in each gap, and ``flow`` (K,) each are pages that leave and return per
    slot. What has not left when its gap ends stays; what the flow does not return in time is
    fetched at the end. Slots count from the step in which the piece leaves.
    """
    start, end = gaps
    leaves, returns = flow
    kernels = len(leaves)
    length = np.where(end <= start, end + kernels, end) - start
    opened: list[list[int]] = [[] for _ in range(kernels)]
    for gap in np.flatnonzero(pages >= 1).tolist():
        opened[int(start[gap])].append(gap)
    for row in opened:
        row.sort(key=lambda gap: int(length[gap]))
    waiting: deque[tuple[int, int, int]] = deque()  # gap, end, pages
    away: list[tuple[int, int, int, int]] = []  # end, left, gap, pages
    found: list[tuple[int, int, int, int, int]] = []
    out = back = 0.0
    for slot in range(_STEPS * kernels):
        kernel = slot % kernels
        if slot < 2 * kernels:
            waiting.extend(
                (gap, slot + int(length[gap]), int(pages[gap])) for gap in opened[kernel]
            )
        while away and away[0][0] <= slot:
            due, left, gap, count = heapq.heappop(away)
            found.append((gap, left, due, due, count))
        back += returns[kernel]
        while away and back >= 1:
            due, left, gap, count = heapq.heappop(away)
            part = min(count, int(back))
            found.append((gap, left, slot, due, part))
            back -= part
            if count > part:
                heapq.heappush(away, (due, left, gap, count - part))
        out += leaves[kernel]
        while waiting and out >= 1:
            gap, due, count = waiting.popleft()
            if due <= slot:
                continue
            part = min(count, int(out))
            out -= part
            heapq.heappush(away, (due, slot, gap, part))
            if count > part:
                waiting.appendleft((gap, due, count - part))
        if not waiting:
            out = min(out, 0.99)
        if not away:
            back = min(back, 0.99)
    rows = np.array(found, np.int64).reshape(-1, 5)
    rows = rows[(rows[:, 1] >= kernels) & (rows[:, 1] < 2 * kernels)]
    rows[:, 1:4] -= kernels
    return rows.T.copy()


_MOVED: Final = 1e-5
"""Cost of moving a MiB in milliseconds: of plans that wait equally, the one that moves least."""


@dataclass(frozen=True, slots=True)
class TransferSchedule:
    """Parts that leave in one slot and return in one.

    ``parts`` start in the slot in which they leave; ``fetched`` (E,) is the slot in which each
    returns, ``to_last`` (E,) marks those of the slowest tier, ``seconds`` (K,) are slots' lengths.
    """

    parts: EvictedParts
    fetched: Ints
    to_last: Bools
    seconds: Floats


def schedule_transfers(
    problem: StepProblem, shares: tuple[float, float, float], limit_s: float, *, interior: bool
) -> TransferSchedule:
    """Return the schedule of least waiting in these shares of the two fastest tiers and the links.

    Destinations are the second tier and the slowest. ``interior`` is as in
    :meth:`LinearProgram.solve`. Raises MissingError without highspy, and
    ArithmeticError where there is no solution within ``limit_s`` seconds of CPU time.
    """
    return _TransferProgram(problem, shares).solve(limit_s, interior)


class _TransferProgram:
    """The program; columns per tier and kernel are arrays (D, K) of column numbers."""

    def __init__(self, problem: StepProblem, shares: tuple[float, float, float]) -> None:
        self._problem = problem
        self._host, self._links = shares[1:]
        self._spans: TensorSpans = tensor_spans(problem.trace, problem.life, 1)
        self._kernels = problem.trace.kernels
        last = len(problem.system.tiers) - 1
        self._tiers = (1, last) if last > 1 else (1,)
        self._program = LinearProgram()
        self._times = problem.trace.kernel_seconds * 1e3
        spans = self._spans
        self._size = problem.trace.tensor_bytes[spans.tensor[spans.before]] / MIB
        self._start = (spans.last[spans.before] + 1) % self._kernels
        self._end = spans.first[spans.after]
        self._waits = self._program.add_columns(np.ones(self._kernels), np.inf)
        self._shares = self._add_gaps()
        self._flows = [self._add_tier(number) for number in range(len(self._tiers))]
        self._add_room(shares[0])
        self._add_links()

    def solve(self, limit_s: float, interior: bool) -> TransferSchedule:
        """Return the schedule of the best solution."""
        values, _ = self._program.solve(limit_s, interior=interior)
        page = self._problem.system.granularity_bytes
        pieces = [
            scheduled_pieces(
                (self._start, self._end),
                np.rint(values[self._shares[number]] * self._size * MIB / page),
                (values[leaves] * MIB / page, values[returns] * MIB / page),
            )
            for number, (leaves, returns, _) in enumerate(self._flows)
        ]
        gap, left, fetched, end, pages = np.concatenate(pieces, axis=1)
        tensor = self._spans.tensor[self._spans.before[gap]]
        return TransferSchedule(
            EvictedParts(tensor, left, end, end, pages * page),
            fetched,
            np.repeat(np.arange(len(pieces)) == 1, [each.shape[1] for each in pieces]),
            np.maximum((self._times + values[self._waits]) / 1e3, 1e-9),
        )

    def _add_gaps(self) -> Ints:
        """Add the share of each gap's tensor that leaves to each tier, (D, G)."""
        program, gaps = self._program, len(self._size)
        columns = [program.add_columns(_MOVED * self._size, 1.0) for _ in self._tiers]
        rows = program.add_rows(np.full(gaps, -np.inf), np.ones(gaps))
        for each in columns:
            program.add_entries(rows, each, 1.0)
        return np.stack(columns)

    def _add_tier(self, number: int) -> tuple[Ints, Ints, Ints]:
        """Add what leaves to a tier, returns from it, and is away in it; (K,) each.

        ``away`` is as kernel k begins, ``waiting`` what may still leave after slot k, and ``early``
        what has returned before slot k although its gap is open.
        """
        program, zero = self._program, np.zeros(self._kernels)
        tier = self._problem.system.tiers[self._tiers[number]]
        leaves, returns = (program.add_columns(zero, np.inf) for _ in range(2))
        away = program.add_columns(zero, self._host * tier.capacity / MIB)
        waiting, early = (program.add_columns(zero, np.inf) for _ in range(2))
        column = self._shares[number]
        now = np.arange(self._kernels)
        after = (now + 1) % self._kernels

        rows = program.add_rows(zero, zero)  # away[k + 1] = away[k] + leaves[k] - returns[k]
        for part, sign in ((away[after], 1), (away, -1), (leaves, -1), (returns, 1)):
            program.add_entries(rows, part, sign)
        rows = program.add_rows(zero, zero)  # waiting[k] = waiting[k - 1] + opened[k] - leaves[k]
        for part, sign in ((waiting, 1), (waiting[now - 1], -1), (leaves, 1)):
            program.add_entries(rows, part, sign)
        program.add_entries(rows[self._start], column, -self._size)
        rows = program.add_rows(zero, zero)  # early[k + 1] = early[k] + returns[k] - closed[k + 1]
        for part, sign in ((early[after], 1), (early, -1), (returns, -1)):
            program.add_entries(rows, part, sign)
        program.add_entries(rows[self._end - 1], column, self._size)
        # As kernel 0 begins, what the gaps that are open then evict is in one of the three places.
        row = program.add_rows(np.zeros(1), np.zeros(1))
        program.add_entries(row, np.array([away[0], waiting[-1], early[0]]), 1.0)
        open_now = (self._end <= self._start) & (self._end > 0)
        program.add_entries(row, column[open_now], -self._size[open_now])
        return leaves, returns, away

    def _add_room(self, margin: float) -> None:
        """Limit what is in the fastest tier as kernels begin: all that lives but what is away."""
        life, system = self._problem.life, self._problem.system
        unused = self._problem.trace.tensor_persistent & (life.first < 0)
        live = life.live_bytes - int(self._problem.trace.tensor_bytes[unused].sum())
        room = (margin * system.tiers[0].capacity - live) / MIB
        rows = self._program.add_rows(-room, np.full(self._kernels, np.inf))
        for _, _, away in self._flows:
            self._program.add_entries(rows, away, 1.0)

    def _add_links(self) -> None:
        """Limit what each link carries per slot by the kernel's time and its wait."""
        system = self._problem.system
        for number, link in enumerate(system.links):
            flows = [
                (flow, self._latency_ms(tier))
                for tier, flow in zip(self._tiers, self._flows, strict=True)
                if number in system.path(tier)
            ]
            out, back = ([(flow[way], ms) for flow, ms in flows] for way in (0, 1))
            if link.half_duplex:
                self._limit(out + back, link.inwards)
            else:
                self._limit(out, link.outwards)
                self._limit(back, link.inwards)

    def _latency_ms(self, tier: int) -> float:
        """Return the latency of transactions per MiB, those of a tensor of mean size."""
        if not len(self._size):
            return 0.0
        return self._problem.system.latency_seconds(tier) * 1e3 / float(self._size.mean())

    def _limit(self, flows: list[tuple[Ints, float]], gigabytes: float) -> None:
        """Limit the sum of flows per slot to what a link of so many GB/s carries.

        Each flow comes with its latency per MiB, in ms.
        """
        rows = self._program.add_rows(np.full(self._kernels, -np.inf), self._times)
        self._program.add_entries(rows, self._waits, -1.0)
        for columns, latency in flows:
            per_mib = MIB / (self._links * gigabytes * 1e6) + latency
            self._program.add_entries(rows, columns, per_mib)


def choose_slower(
    parts: EvictedParts,
    seconds: Floats,
    rates: tuple[float, float],
    room: float,
    buffered: float,
) -> Bools:
    """Return which parts go below the second tier, (E,), so that ``room`` bytes suffice for it.

    The longest periods first, where the slower tier's link has free bytes to take the part before
    it is needed and to return it before its use; ``rates`` are its bytes per second out and in.
    What has returned early occupies the fastest tier: at first the link returns parts at most as
    early as it carries ``buffered`` bytes; then twice and four times as early, the shortest periods
    first. What does not fit then goes there without a booking.
    """
    slots = len(seconds)
    start = np.concatenate([[0.0], np.cumsum(np.tile(seconds, 3))])
    order = np.argsort(start[parts.start] - start[parts.end], kind="stable")
    change = np.zeros(3 * slots + 1)
    np.add.at(change, parts.start, parts.size.astype(np.float64))
    np.add.at(change, parts.end, -parts.size.astype(np.float64))
    held = np.cumsum(change)[: 3 * slots].reshape(3, slots).sum(axis=0)
    free = np.stack([seconds * rates[0], seconds * rates[1]])
    chosen = np.zeros(len(order), np.bool_)
    columns = (parts.start, parts.end, parts.needed, parts.size)
    for early, rows in ((1.0, order), (2.0, order[::-1]), (4.0, order[::-1]), (-1.0, order)):
        limits = (room, early * buffered / rates[1])
        _choose(rows.copy(), columns, held, free, start, limits, chosen)
    return chosen


@generic_kernel
def _choose(
    order: Any, columns: Any, held: Any, free: Any, time: Any, limits: Any, chosen: Any
) -> None:
    start, end, needed, size = columns
    room, early = limits
    slots = len(held)
    for row in order:
        if held.max() <= room:
            return
        if chosen[row]:
            continue
        helps = False
        for slot in range(start[row], end[row]):
            if held[slot % slots] > room:
                helps = True
                break
        if not helps:
            continue
        if early >= 0:
            out, back = start[row], end[row] - 1
            amount = float(size[row])
            while out < needed[row]:
                amount -= free[0, out % slots]
                if amount <= 0:
                    break
                out += 1
            missing = float(size[row])
            while back > out and time[end[row]] - time[back + 1] <= early:
                missing -= free[1, back % slots]
                if missing <= 0:
                    break
                back -= 1
            if amount > 0 or missing > 0:
                continue
            amount = float(size[row])
            for slot in range(start[row], out + 1):
                part = min(amount, free[0, slot % slots])
                free[0, slot % slots] -= part
                amount -= part
            amount = float(size[row])
            for slot in range(end[row] - 1, back - 1, -1):
                part = min(amount, free[1, slot % slots])
                free[1, slot % slots] -= part
                amount -= part
        chosen[row] = True
        for slot in range(start[row], end[row]):
            held[slot % slots] -= size[row]


def book_departures(
    parts: EvictedParts, to_flash: Bools, seconds: Floats, rates: tuple[float, float]
) -> Ints:
    """Return the slot in which each part has left, (E,), counted as ``start`` is.

    ``rates`` are bytes per second of the shared link and of flash; ``seconds`` (K,) the lengths of
    the slots. A part that cannot leave before it is needed has left just before: its kernel waits.
    """
    free = np.stack([seconds * rates[0], seconds * rates[1]])
    order = np.argsort(parts.start, kind="stable")
    left = parts.start.copy()
    _fill((order, parts.start, parts.needed, parts.size, to_flash), free, left)
    return left


@generic_kernel
def _fill(rows: Any, free: Any, left: Any) -> None:
    order, start, needed, size, to_flash = rows
    slots = free.shape[1]
    for row in order:
        bytes_left = float(size[row])
        link = 1 if to_flash[row] else 0
        slot = start[row]
        while True:
            at = slot % slots
            part = min(bytes_left, free[link, at], free[0, at])
            bytes_left -= part
            free[0, at] -= part
            if link == 1:
                free[1, at] -= part
            if bytes_left <= 0.5 or slot >= needed[row] - 1:
                break
            slot += 1
        left[row] = slot


def book_returns(
    parts: EvictedParts,
    left: Ints,
    to_flash: Bools,
    occupied: Floats,
    limits: tuple[Floats, float, float, float],
) -> Ints:
    """Return the slot with which each part is fetched, (E,).

    At first as late as the links permit, the last used booking first; then earlier while there is
    room, those that are used first choosing first. ``occupied`` (K,) are bytes of the fastest tier
    with every part away from ``left`` until it is used; it is updated. ``limits``: lengths of the
    slots in seconds, bytes per second of the shared link and of flash, capacity in bytes.
    """
    seconds, rate, flash_rate, capacity = limits
    slots = len(occupied)
    free = np.stack([seconds * rate, seconds * flash_rate])
    fetched = parts.end.copy()
    columns = (parts.end, parts.size, to_flash)
    # Flash first: it is the slower one, and the shared link has room for what it carries.
    latest = np.lexsort((-(parts.end % slots), ~to_flash))
    _fill_back(latest, columns, free, left, occupied, fetched)
    _advance(np.argsort(fetched % slots, kind="stable"), columns, left, occupied, capacity, fetched)
    return fetched


@generic_kernel
def _fill_back(order: Any, columns: Any, free: Any, left: Any, occupied: Any, fetched: Any) -> None:
    end, size, to_flash = columns
    slots = len(occupied)
    for row in order:
        missing, slot = float(size[row]), end[row]
        link = 1 if to_flash[row] else 0
        while slot > left[row] + 1 and missing > 0:
            slot -= 1
            at = slot % slots
            part = min(missing, free[link, at], free[0, at])
            missing -= part
            free[0, at] -= part
            if link == 1:
                free[1, at] -= part
            occupied[at] += size[row]
        fetched[row] = slot


@generic_kernel
def _advance(
    order: Any, columns: Any, left: Any, occupied: Any, capacity: float, fetched: Any
) -> None:
    size = columns[1]
    slots = len(occupied)
    for row in order:
        slot = fetched[row]
        while slot > left[row] + 1 and occupied[(slot - 1) % slots] + size[row] <= capacity:
            slot -= 1
            occupied[slot % slots] += size[row]
        fetched[row] = slot


def mark_away(parts: EvictedParts, left: Ints, occupied: Floats) -> None:
    """Subtract each part from the slots between its departure and its use; they may wrap."""
    slots = len(occupied)
    change = np.zeros(3 * slots + 2)
    begin = np.minimum(left + 1, parts.end)
    np.add.at(change, begin, -parts.size.astype(np.float64))
    np.add.at(change, parts.end, parts.size.astype(np.float64))
    away = np.cumsum(change)[: 3 * slots]
    occupied += away.reshape(3, slots).sum(axis=0)


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

    def plan(self) -> MovePlan:
        """Return the moves for these lengths."""
        trace, system = self.problem.trace, self.problem.system
        capacity = self.margin * system.tiers[0].capacity
        allocated = self._allocations()
        chosen = choose_evictions(trace, self.uses, allocated, int(capacity))
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
