# SPDX-License-Identifier: MIT
"""Predicted and realised savings of moves, and pages that moved back (ping-pong).

Moves are followed for ``WINDOW_TICKS``. Pages that lie together within 2 MiB and move together are
one move: of a hot set of gigabytes, single pages would have no sample for ticks. Of each tick at
most ``ROWS_PER_TICK`` moves are followed and at most ``SAMPLES_PER_TICK`` samples evaluated, drawn
at random and weighted by what was left out, so that the sums stay unbiased. A tick costs
milliseconds where many pages move (bench/stages/metrics.py).

A prediction is the plan's own: the rate of each page, which includes the target's priority, times
the difference of the unloaded latencies of the two nodes (``Topology.latency_ns``). Both sums cover
the same moves in the same ticks, so that their ratio shows how well heat predicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_PAGES
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Topology
from hmd.metrics.status import Savings
from hmd.metrics.tick_record import TickRecord
from hmd.migrate.status import MoveOutcome, MoveStatus
from hmd.policy.plan import Plan

WINDOW_TICKS = 240
RETURN_TICKS = 10
"""A page that moves back this soon did not repay its move; later its program has changed."""
ROWS_PER_TICK = 256
SAMPLES_PER_TICK = 16384
MAX_NAMED = 1 << 20
"""Moves that a dry run remembers, to name each page once: 8 MiB."""

_PAGE_BITS = 44
"""Page numbers of a user address space: 56 bits of address at most (5-level paging)."""
_SERIALS = 1 << 63 - _PAGE_BITS
"""Process numbers that fit above a page number; they wrap around after half a million."""

Floats = npt.NDArray[np.float64]
Keys = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Moved:
    """Followed moves, sorted by ``start``; columns of shape ``(n,)``.

    ``start`` and ``end`` are keys of the first page and of the one past the last, ``tick`` when
    they moved, ``climbs`` how many tiers up, ``heat`` the accesses per second of all pages,
    ``gain_s`` the latency saved per access, ``weight`` how many moves each stands for.
    """

    start: Keys
    end: Keys
    tick: Keys
    climbs: npt.NDArray[np.int16]
    heat: Floats
    gain_s: Floats
    weight: Floats

    def take(self, rows: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> _Moved:
        return _Moved(*(getattr(self, name)[rows] for name in self.__slots__))

    def joined(self, other: _Moved) -> _Moved:
        both = _Moved(
            *(np.concatenate([getattr(m, n) for m in (self, other)]) for n in self.__slots__)
        )
        return both.take(np.argsort(both.start, kind="stable"))

    @classmethod
    def none(cls) -> _Moved:
        whole, real = np.empty(0, np.int64), np.empty(0)
        return cls(whole, whole, whole, np.empty(0, np.int16), real, real, real)


@dataclass(frozen=True, slots=True)
class TickSavings:
    """What one tick adds, by process of the tick; columns of shape ``(processes,)``.

    Seconds as in :class:`~hmd.metrics.status.Savings`; pages up and down that a dry run would have
    moved and that it has not named before.
    """

    predicted_saved_s: Floats
    realised_saved_s: Floats
    predicted_lost_s: Floats
    realised_lost_s: Floats
    new_up_pages: Floats
    new_down_pages: Floats


class SavingsTracker:
    """Follows moves; ``savings`` are the sums so far.

    With ``dry_run`` it follows what would have moved instead.
    """

    def __init__(self, topology: Topology, *, dry_run: bool = False) -> None:
        self.savings = Savings()
        self._dry_run = dry_run
        self._seen = np.empty(0, np.int64)
        self._latency_s = np.array([*topology.latency_ns, 0.0]) * 1e-9
        self._tier = np.zeros(len(self._latency_s), np.int16)
        for tier, nodes in enumerate(topology.tiers):
            self._tier[list(nodes)] = tier
        self._processes: tuple[ProcessId, ...] = ()
        self._serials: dict[ProcessId, int] = {}
        self._serial = np.empty(0, np.int64)
        self._fresh = count()
        self._tick = 0
        self._moved = _Moved.none()
        self._random = np.random.default_rng(0)

    def add(self, tick: TickRecord) -> TickSavings:
        """Add one tick: first what its samples show of earlier moves, then its own moves."""
        self._tick += 1
        self._number(tick.processes)
        self._expire()
        added = TickSavings(*np.zeros((6, len(tick.processes))))
        if len(self._moved.start):
            self._accrue(tick, added)
        for plan, outcome in tick.moves(dry_run=self._dry_run):
            if outcome.moved_bytes:
                self._follow(plan, outcome, added)
        return added

    def _number(self, processes: tuple[ProcessId, ...]) -> None:
        """Give each process a number of its own, and drop the moves of exited processes."""
        if processes == self._processes:
            return
        known = self._serials
        self._serials = {
            p: known[p] if p in known else next(self._fresh) % _SERIALS for p in processes
        }
        self._processes = processes
        self._serial = np.fromiter(self._serials.values(), np.int64, len(processes))
        present = np.isin(self._moved.start >> _PAGE_BITS, self._serial)
        self._moved = self._moved.take(present)
        self._seen = self._seen[np.isin(self._seen >> _PAGE_BITS, self._serial)]

    def _expire(self) -> None:
        """Drop the moves that are older than ``WINDOW_TICKS``."""
        kept = self._moved.tick >= self._tick - WINDOW_TICKS
        if not kept.all():
            self._moved = self._moved.take(kept)

    def _slots(self, key: Keys) -> npt.NDArray[np.intp]:
        """Return the tick's process of each key."""
        order = np.argsort(self._serial)
        return order[np.searchsorted(self._serial, key >> _PAGE_BITS, sorter=order)]

    def _accrue(self, tick: TickRecord, added: TickSavings) -> None:
        """Add what earlier moves were predicted to save in this tick, and what its samples show."""
        moved, batch = self._moved, tick.batch
        gain_s = moved.gain_s * moved.weight
        expected = moved.heat * gain_s * tick.tick_s
        drawn, each = self._draw(len(batch))
        page = (batch.address[drawn] // np.uint64(PAGE_BYTES)).astype(np.int64)
        key = (self._serial[batch.process[drawn]] << _PAGE_BITS) + page if len(drawn) else page
        row = _row_of(moved, key)
        of_moved = row >= 0
        weight = batch.period[drawn[of_moved]] * each
        served = np.bincount(row[of_moved], weight, len(moved.start)) * gain_s
        saves, slot = gain_s > 0, self._slots(moved.start)
        for name, chosen, seconds in (
            ("predicted_saved_s", saves, expected),
            ("realised_saved_s", saves, served),
            ("predicted_lost_s", ~saves, -expected),
            ("realised_lost_s", ~saves, -served),
        ):
            np.add.at(getattr(added, name), slot[chosen], seconds[chosen])
            total = getattr(self.savings, name) + float(seconds[chosen].sum())
            setattr(self.savings, name, total)

    def _draw(self, samples: int) -> tuple[npt.NDArray[np.intp], float]:
        """Return which samples to evaluate, and how many each stands for."""
        if samples <= SAMPLES_PER_TICK:
            return np.arange(samples), 1.0
        each = samples / SAMPLES_PER_TICK
        drawn = ((np.arange(SAMPLES_PER_TICK) + self._random.random()) * each).astype(np.intp)
        return drawn, each

    def _follow(self, plan: Plan, outcome: MoveOutcome, added: TickSavings) -> None:
        """Follow a tick's moves, and end earlier ones whose pages these move again."""
        new = self._moves(plan, outcome)
        old = self._moved
        if self._dry_run:
            self._count_new(new, added)
        new = _merged(new)
        if len(old.start) and len(new.start):
            again = _row_of(new, old.start)
            # A huge page may have been split since: a move of any part ends the whole.
            hit = _row_of(old, new.start)
            again[hit[hit >= 0]] = np.flatnonzero(hit >= 0)
            ended = np.flatnonzero(again >= 0)
            soon = old.tick[ended] >= self._tick - RETURN_TICKS
            back = ended[soon & (old.climbs[ended] * new.climbs[again[ended]] < 0)]
            pages = (old.end[back] - old.start[back]) * old.weight[back]
            self.savings.returned_pages += float(pages.sum())
            old = old.take(again < 0)
        moves = len(new.start)
        if moves > ROWS_PER_TICK:
            new.weight *= moves / ROWS_PER_TICK
            new = new.take(self._random.choice(moves, ROWS_PER_TICK, replace=False))
        self._moved = old.joined(new)

    def _count_new(self, named: _Moved, added: TickSavings) -> None:
        """Count the pages of moves that no plan has named before, up to ``MAX_NAMED`` moves."""
        at = np.searchsorted(self._seen, named.start)
        seen = np.append(self._seen, -1)[at] == named.start
        new = named.take(np.flatnonzero(~seen))
        if len(self._seen) > MAX_NAMED:
            return
        for column, up in ((added.new_up_pages, True), (added.new_down_pages, False)):
            rows = new.climbs > 0 if up else new.climbs < 0
            np.add.at(column, self._slots(new.start[rows]), (new.end - new.start)[rows])
        self._seen = np.union1d(self._seen, new.start)

    def _moves(self, plan: Plan, outcome: MoveOutcome) -> _Moved:
        """Return a plan's executed moves of followed processes, sorted by ``start``."""
        done = MoveStatus.WOULD_MOVE if self._dry_run else MoveStatus.MOVED
        serial = np.array([self._serials.get(p, -1) for p in plan.processes], np.int64)
        known = (serial[plan.process] >= 0) & (plan.from_node >= 0)
        rows = np.flatnonzero((outcome.status == done) & known)
        source = plan.from_node[rows].astype(np.int64)
        target = plan.to_node[rows].astype(np.int64)
        page = (plan.address[rows] // np.uint64(PAGE_BYTES)).astype(np.int64)
        start = (serial[plan.process[rows]] << _PAGE_BITS) + page
        pages = plan.pages[rows].astype(np.int64)
        new = _Moved(
            start=start,
            end=start + pages,
            tick=np.full(len(rows), self._tick),
            climbs=self._tier[source] - self._tier[target],
            heat=plan.heat[rows].astype(np.float64) * pages,
            gain_s=self._latency_s[source] - self._latency_s[target],
            weight=np.ones(len(rows)),
        )
        return new.take(np.argsort(start, kind="stable"))


def _merged(moved: _Moved) -> _Moved:
    """Return moves sorted by ``start``, with neighbours of one chunk that moved alike as one."""
    same = moved.start[1:] == moved.end[:-1]
    same &= moved.start[1:] // CHUNK_PAGES == moved.start[:-1] // CHUNK_PAGES
    same &= (moved.climbs[1:] == moved.climbs[:-1]) & (moved.gain_s[1:] == moved.gain_s[:-1])
    if not same.any():
        return moved
    first = np.flatnonzero(np.append(True, ~same))
    one = moved.take(first)
    one.end = moved.end[np.append(first[1:], len(moved.end)) - 1]
    one.heat = np.add.reduceat(moved.heat, first)
    return one


def _row_of(moved: _Moved, key: Keys) -> npt.NDArray[np.intp]:
    """Return the row that contains each key's page, -1 for none; shape of ``key``."""
    row = np.searchsorted(moved.start, key, side="right") - 1
    return np.where((row >= 0) & (key < moved.end[row]), row, -1)
