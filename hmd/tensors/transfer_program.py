"""What to evict, and where to: a linear program of the bytes that links carry kernel by kernel.

The bytes of all tensors together flow: what is away per tier follows from what leaves and returns
per kernel, and no more leaves than gaps have opened, no less returns than gaps close. Kernels wait
where links need longer; the program minimises the waits. Which tensor a byte belongs to is decided
per gap, not per kernel, so that the program grows with kernels plus gaps, and parts of tensors
leave. Sizes are in MiB, times in milliseconds. Slot k is the time between the starts of kernels k
and k + 1; the last one is followed by the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hmd.tensors.eviction_choice import EvictedParts
from hmd.tensors.integer_program import IntegerProgram
from hmd.tensors.planner import StepProblem
from hmd.tensors.tensor_spans import TensorSpans, tensor_spans
from hmd.tensors.tensor_trace import Bools, Floats, Ints
from hmd.tensors.transfer_pieces import scheduled_pieces
from hmd.units import MIB

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
    problem: StepProblem, shares: tuple[float, float, float], limit_s: float
) -> TransferSchedule:
    """Return the schedule of least waiting in these shares of the two fastest tiers and the links.

    Destinations are the second tier and the slowest. Raises MissingError without highspy, and
    ArithmeticError where there is no solution within ``limit_s`` seconds of CPU time.
    """
    return _TransferProgram(problem, shares).solve(limit_s)


class _TransferProgram:
    """The program; columns per tier and kernel are arrays (D, K) of column numbers."""

    def __init__(self, problem: StepProblem, shares: tuple[float, float, float]) -> None:
        self._problem = problem
        self._host, self._links = shares[1:]
        self._spans: TensorSpans = tensor_spans(problem.trace, problem.life, 1)
        self._kernels = problem.trace.kernels
        last = len(problem.system.tiers) - 1
        self._tiers = (1, last) if last > 1 else (1,)
        self._program = IntegerProgram()
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

    def solve(self, limit_s: float) -> TransferSchedule:
        """Return the schedule of the best solution."""
        values = self._program.solve(limit_s).values
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
