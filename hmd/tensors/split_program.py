# SPDX-License-Identifier: MIT
"""A linear program of how much of each tensor is fast at each use, where kernels compute in place.

Per use of a tensor, the share that is fast; per gap between two uses, the share that stays fast.
The bytes that leave and come between uses flow over the links kernel by kernel, all tensors
together, so that the program grows with uses plus kernels; which tensor a byte belongs to is
decided when a solution becomes a plan. A kernel takes longer by what its slow bytes take, and links
carry during each kernel as much as its time permits. Sizes are in MiB, times in milliseconds.

As a plan, the step repeats: what is fast at its end is fast at its beginning. As a lower bound, the
fast tier begins with whatever a step wants, and owes nothing at its end; kernels may wait for
links, and what the next use overwrites need not move. No plan that keeps its data and recomputes
nothing undercuts it: at a kernel's begin, its fast bytes, those that stay, those that have not left
and those that came early fit the fast tier; what it finds there has come before it.
"""

from __future__ import annotations

import heapq
from typing import Final

import numpy as np

from hmd.base.units import MIB
from hmd.tensors.lifetimes import Vitality, tensor_spans
from hmd.tensors.linear_program import LinearProgram
from hmd.tensors.memory_system import MemorySystem
from hmd.tensors.move_plan import ANY, WHOLE, Move, MovePlan, free_moves, plan_of
from hmd.tensors.trace import Floats, Ints, TensorTrace

_MOVED: Final = 1e-4
"""Cost of moving a MiB in milliseconds: of equally fast plans, the one that moves least."""

_LEAD_PAGES: Final = 60
"""What comes has come as long before its use as so many pages take: a slot is not a kernel."""

_WHOLE: Final = 0.97
"""A tensor of which this share is fast is fast as a whole."""

_TOLERANCE: Final = 1e-6
"""Relative error of a solution that a bound leaves out."""


class SplitProgram:
    """The program of one step; columns per use (V,), gap (G,) and kernel (K,).

    With ``repeats`` it is that of a plan, without that of a lower bound. ``capacity`` and
    ``bandwidth`` are the shares of the fast tier and of the links that it may use. With ``defers``,
    what is evicted between the last use of a step and the first of the next leaves in the next.
    """

    def __init__(
        self,
        trace: TensorTrace,
        life: Vitality,
        system: MemorySystem,
        *,
        repeats: bool,
        capacity: float = 1.0,
        bandwidth: float = 1.0,
        defers: bool = False,
    ) -> None:
        self._trace, self._life, self._system, self._repeats = trace, life, system, repeats
        self._defers = defers
        self._kernels = trace.kernels
        self._spans = spans = tensor_spans(trace, life, 0)
        self._program = program = LinearProgram()
        self._kernel, self._size = spans.first, trace.tensor_bytes[spans.tensor] / MIB
        self._price = self._prices()
        self._before, self._after = spans.before, spans.after
        if not repeats:
            carries = (spans.wraps == 0) & (spans.reads[spans.after] > 0)
            self._before, self._after = spans.before[carries], spans.after[carries]
        zero = np.zeros(self._kernels)
        self._fast = program.add_columns(-self._price, 1.0)
        self._stays = self._add_stays(self._before, self._after)
        self._leaves, self._comes = (
            program.add_columns(zero + _MOVED * repeats, np.inf) for _ in range(2)
        )
        # As kernels begin: what has not left yet, what may come, what came early.
        self._waiting, self._absent, self._early = (
            program.add_columns(zero, np.inf) for _ in range(3)
        )
        self._kept = program.add_columns(zero, np.inf)
        self._add_flows(self._system.tiers[0].capacity / MIB * capacity)
        self._add_links(bandwidth)

    def bound_seconds(self, limit_s: float) -> float:
        """Return what no plan undercuts; raises as :meth:`LinearProgram.solve`."""
        _, objective = self._program.solve(limit_s, interior=True)
        total = float(self._trace.kernel_seconds.sum()) * 1e3 + float(self._price.sum())
        return (objective + total) * (1 - _TOLERANCE) / 1e3

    def plan(self, limit_s: float) -> MovePlan:
        """Return the plan of the best solution; raises as :meth:`LinearProgram.solve`."""
        values, _ = self._program.solve(limit_s, interior=True)
        fast, stays = np.clip(values[self._fast], 0, 1), np.clip(values[self._stays], 0, 1)
        page = self._system.granularity_bytes
        pages = self._size * MIB / page
        # A share that no gap keeps out for good moves at least once a step.
        begin = self._kernel[self._before]
        end = self._kernel[self._after]
        length = self._ahead(begin, end + np.where(end <= begin, self._kernels, 0)) - begin
        tensor = self._spans.tensor
        moves = free_moves(self._life, len(self._system.tiers))
        # What leaves waits for its link in order; where nothing stays, what came late leaves too.
        out = np.rint(np.maximum(fast[self._before] - stays, 0) * pages[self._before])
        gone = stays < 1 - _WHOLE
        for gap in np.flatnonzero(gone | (out > 0)).tolist():
            size = WHOLE if gone[gap] else int(out[gap]) * page
            kernel = (int(begin[gap]) + 1) % self._kernels
            moves.append((kernel, int(tensor[self._before[gap]]), 0, 1, size))
        back = np.rint(np.maximum(fast[self._after] - stays, 0) * pages[self._after])
        came, early = (values[each] * MIB / page for each in (self._comes, self._early))
        found = _assigned(begin, length, back.astype(np.int64), came, float(early[0]))
        for gap, kernel, count in zip(*(each.tolist() for each in found), strict=True):
            moves.append((kernel, int(tensor[self._before[gap]]), ANY, 0, count * page))
        moves += self._births(fast) + self._first_fetches(fast, stays)
        return plan_of(moves)

    def _prices(self) -> Floats:
        """Return how much longer each use takes from the best lower tier, (V,)."""
        fast, *lower = self._system.tiers
        spans = self._spans
        rates = [
            min(1 / (slow or 1) for slow in rates) - 1 / (here or 1)
            for here, rates in (
                (fast.read, [each.read for each in lower]),
                (fast.write, [each.write for each in lower]),
            )
        ]
        per_gb = spans.reads * rates[0] + spans.writes * rates[1]
        uses = spans.reads + spans.writes - ((spans.use_mode[spans.start_use[:-1]]) == 3)
        access = min(each.access_us for each in lower) / 1e3
        return np.asarray(self._size * MIB / 1e6 * per_gb + access * uses, np.float64)

    def _add_stays(self, *uses: Ints) -> Ints:
        """Add shares that stay fast, no more than is fast at each of some uses."""
        stays = self._program.add_columns(np.zeros(len(uses[0])), 1.0)
        for each in uses:
            rows = self._program.add_rows(np.full(len(each), -np.inf), np.zeros(len(each)))
            self._program.add_entries(rows, stays, 1.0)
            self._program.add_entries(rows, self._fast[each], -1.0)
        return stays

    def _add_flows(self, capacity: float) -> None:
        """Tie what leaves, comes and stays to the uses, and limit it to the capacity."""
        program, kernels, repeats = self._program, self._kernels, self._repeats
        zero = np.zeros(kernels)
        waiting, absent, early, kept = (program.add_rows(zero, zero) for _ in range(4))
        from_last = slice(None) if repeats else slice(1, None)
        last = np.arange(kernels)[from_last] - 1
        for rows, state, flow, sign in (
            (waiting, self._waiting, self._leaves, 1.0),
            (absent, self._absent, self._comes, 1.0),
            (early, self._early, self._comes, -1.0),
            (kept, self._kept, None, 0.0),
        ):
            program.add_entries(rows, state, 1.0)
            program.add_entries(rows[from_last], state[last], -1.0)
            if flow is not None:
                program.add_entries(rows[from_last], flow[last], sign)

        def change(pool: Ints, at: Ints, use: Ints, stays: Ints, sign: float) -> None:
            """Add what is fast at a use and does not stay to a pool as kernels ``at`` begin."""
            inside = (at < kernels) | repeats
            rows, use, stays = pool[at[inside] % kernels], use[inside], stays[inside]
            program.add_entries(rows, self._fast[use], -sign * self._size[use])
            program.add_entries(rows, stays, sign * self._size[use])

        def keep(stays: Ints, size: Floats, first: Ints, end: Ints) -> None:
            """Occupy kernels ``first`` to ``end - 1``, around the end of the step if ``end`` is."""
            some = first < end
            stays, size, first, end = stays[some], size[some], first[some], end[some]
            program.add_entries(kept[first % kernels], stays, -size)
            stops = (end < kernels) | repeats
            program.add_entries(kept[end[stops] % kernels], stays[stops], size[stops])

        begin, end = self._kernel[self._before], self._kernel[self._after]
        end = end + np.where(end <= begin, kernels, 0)
        change(waiting, begin + 1, self._before, self._stays, 1.0)
        change(absent, begin + 1, self._after, self._stays, 1.0)
        # A plan has what comes some slots of the simulator ahead of its use.
        due = self._ahead(begin, end)
        change(early, due, self._after, self._stays, -1.0)
        keep(self._fast[self._after], self._size[self._before], due, end)
        keep(self._stays, -self._size[self._before], due, end)
        keep(self._stays, self._size[self._before], begin + 1, end)
        if not repeats:
            spans, persists = self._spans, self._trace.tensor_persistent[self._spans.tensor]
            edge = np.append(spans.tensor[1:] != spans.tensor[:-1], True)
            tail = np.flatnonzero(edge & persists)
            head = np.flatnonzero(np.append(True, edge[:-1]) & persists & (spans.reads > 0))
            here, there = self._add_stays(head), self._add_stays(tail)
            change(early, self._kernel[head], head, here, -1.0)
            change(absent, np.zeros(len(head), np.int64), head, here, 1.0)
            change(waiting, self._kernel[tail] + 1, tail, there, 1.0)
            keep(here, self._size[head], np.zeros(len(head), np.int64), self._kernel[head])
            keep(there, self._size[tail], self._kernel[tail] + 1, np.full(len(tail), kernels))
        else:
            # Chains have no begin: as kernel 0 begins, they hold what is of the gaps around it.
            for states, gaps in (
                ((self._absent, self._early), due > kernels),
                ((self._kept,), (due <= kernels) & (end > kernels)),
            ):
                row = program.add_rows(np.zeros(1), np.zeros(1))
                program.add_entries(row, np.array([each[0] for each in states]), 1.0)
                size = self._size[self._before[gaps]]
                program.add_entries(row, self._fast[self._after[gaps]], -size)
                program.add_entries(row, self._stays[gaps], size)
            around = end > kernels
            stays, use = self._stays[around], self._before[around]
            program.add_entries(row, stays, -self._size[use])
            if self._defers:
                row = program.add_rows(np.zeros(1), np.zeros(1))
                program.add_entries(row, self._waiting[:1], 1.0)
                program.add_entries(row, self._fast[use], -self._size[use])
                program.add_entries(row, stays, self._size[use])
        room = program.add_rows(np.full(kernels, -np.inf), np.full(kernels, capacity))
        for state in (self._waiting, self._early, self._kept):
            program.add_entries(room, state, 1.0)
        program.add_entries(room[self._kernel], self._fast, self._size)

    def _ahead(self, begin: Ints, end: Ints) -> Ints:
        """Return the kernels by which what is used by kernels ``end`` has come, (G,)."""
        if not self._repeats:
            return end
        starts = np.concatenate([[0.0], np.cumsum(np.tile(self._trace.kernel_seconds, 2))])
        lead = (
            _LEAD_PAGES * self._system.granularity_bytes / self._system.bandwidth(1, inwards=True)
        )
        due = np.searchsorted(starts, starts[end] - lead, "left")
        return np.maximum(due, begin + 1)

    def _add_links(self, bandwidth: float) -> None:
        """Limit what links carry out and in during each kernel by its time."""
        program, system = self._program, self._system
        wait = None if self._repeats else program.add_columns(np.ones(self._kernels), np.inf)
        longest = self._trace.kernel_seconds * 1e3
        longest = longest + np.bincount(self._kernel, self._price, self._kernels)
        ways = [(system.bandwidth(1, inwards=way), way) for way in (False, True)]
        half = any(system.links[number].half_duplex for number in system.path(1))
        for rate, inwards in ways[half:]:
            rows = program.add_rows(np.full(self._kernels, -np.inf), longest)
            for flow in (
                (self._leaves, self._comes)
                if half
                else ((self._comes,) if inwards else (self._leaves,))
            ):
                program.add_entries(rows, flow, MIB * 1e3 / rate / bandwidth)
            program.add_entries(rows[self._kernel], self._fast, self._price)
            if wait is not None:
                program.add_entries(rows, wait, -1.0)

    def _births(self, fast: Floats) -> list[Move]:
        """Return the moves that allocate the slow shares of tensors as they are born."""
        spans, size = self._spans, self._trace.tensor_bytes
        born = np.flatnonzero(self._life.birth[spans.tensor] == self._kernel)
        slow = np.rint((1 - fast[born]) * size[spans.tensor[born]]).astype(np.int64)
        none = len(self._system.tiers)
        return [
            (int(self._kernel[use]), int(spans.tensor[use]), none, 1, count)
            for use, count in zip(born.tolist(), slow.tolist(), strict=True)
            if count >= 1
        ]

    def _first_fetches(self, fast: Floats, stays: Floats) -> list[Move]:
        """Return the fetches of persistent tensors that are fast as a whole at one of their uses.

        Parts that never leave have no other fetch; later steps find nothing to fetch there.
        """
        spans = self._spans
        order = np.lexsort((-fast, spans.tensor))
        tensors, at = np.unique(spans.tensor[order], return_index=True)
        use = order[at]
        least = np.ones(self._trace.tensors)
        np.minimum.at(least, spans.tensor[self._before], stays)
        whole = (fast[use] > 0.85) & (least[tensors] > 1 - _WHOLE)
        whole &= self._trace.tensor_persistent[tensors]
        return [
            (kernel, tensor, ANY, 0, WHOLE)
            for kernel, tensor in zip(
                self._kernel[use[whole]].tolist(), tensors[whole].tolist(), strict=True
            )
        ]


def _assigned(
    begin: Ints, length: Ints, count: Ints, flow: Floats, early: float
) -> tuple[Ints, Ints, Ints]:
    """Return gap, kernel and pages of each piece of what comes, (3, P).

    ``count`` (G,) pages come in gaps that ``begin`` (G,) with a kernel and end ``length`` (G,)
    kernels later; ``flow`` (K,) is in pages per kernel. What is used first comes first; what has
    not come when its gap ends comes then.
    """
    kernels = len(flow)
    opened: list[list[int]] = [[] for _ in range(kernels)]
    for gap in np.flatnonzero(count).tolist():
        opened[int(begin[gap])].append(gap)
    found: list[tuple[int, int, int]] = []
    # The step repeats: of the gaps around its end, what is early has come, in the same order.
    ends = begin + length - kernels
    around = np.flatnonzero(count * (ends > 0)).tolist()
    waiting = [(int(ends[gap]), gap, int(count[gap])) for gap in around]
    heapq.heapify(waiting)
    credit = early
    for slot in range(2 * kernels):
        kernel = slot % kernels
        credit += float(flow[kernel])
        for gap in opened[kernel]:
            heapq.heappush(waiting, (slot + int(length[gap]), gap, int(count[gap])))
        while waiting and (credit >= 1 or waiting[0][0] <= slot):
            end, gap, left = heapq.heappop(waiting)
            if end <= slot:
                continue
            part = min(left, int(credit))
            credit -= part
            if slot >= kernels:
                found.append((gap, kernel, part))
            if left > part:
                heapq.heappush(waiting, (end, gap, left - part))
        if not waiting:
            credit = min(credit, 0.99)
    rows = np.array(found, np.int64).reshape(-1, 3)
    return rows[:, 0], rows[:, 1], rows[:, 2]
