# SPDX-License-Identifier: MIT
"""The residency model: where tensors are during a step, as an integer program over spans and gaps.

After AutoTM (Hildebrand et al., ASPLOS 2020): per tensor a flow over its uses, per kernel the
capacity of the fastest tier. Times are in milliseconds, sizes in MiB. Moves happen in windows of at
most ``window`` kernels next to a use, spread over the window by the kernels' times. Where kernels
cannot compute from slower tiers, every use is in the fastest, what does not fit costs its transfer,
and moves that are late cost their delay. Where they can, only what comes in is late: what leaves
waits for its link, and takes room meanwhile.

The moves that carry a residency out: pieces of tensors per kernel, births and frees.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from bench.tensors.publications.integer_program import IntegerProgram, ProgramSolution
from hmd.base.units import MIB
from hmd.tensors.lifetimes import TensorSpans, tensor_spans
from hmd.tensors.move_plan import ANY, WHOLE, Move, free_moves
from hmd.tensors.planner import StepProblem
from hmd.tensors.trace import Bools, Floats, Ints

_SLACK: Final = 2.0
"""A window is so many times as long as a move, where it has the kernels."""


@dataclass(frozen=True, slots=True)
class ResidencyOptions:
    """What a residency may be.

    ``window`` is the number of kernels next to a use in which a tensor may move, 15 in AutoTM.
    ``capacity`` and ``bandwidth`` are the shares of the fastest tier and of the links that the
    model may use.
    """

    window: int = 15
    capacity: float = 1.0
    bandwidth: float = 1.0


@dataclass(frozen=True, slots=True)
class MoveWindow:
    """The kernels in which a move takes place, and the share of the tensor that each carries."""

    kernels: Ints
    shares: Floats


def gap_kernels(spans: TensorSpans, kernels: int) -> Ints:
    """Return the number of kernels between the spans of each gap, (G,)."""
    between = spans.first[spans.after] - spans.last[spans.before] - 1
    return between + np.where(spans.wraps > 0, kernels, 0)


def gap_windows(
    problem: StepProblem, spans: TensorSpans, options: ResidencyOptions
) -> tuple[tuple[MoveWindow, MoveWindow], ...]:
    """Return the windows out of and back into the fastest tier of each gap."""
    trace, system = problem.trace, problem.system
    rates = [system.bandwidth(1, inwards=way) for way in (False, True)]
    latency = system.latency_seconds(1)
    windows = []
    for row, length in enumerate(gap_kernels(spans, trace.kernels).tolist()):
        before, after = int(spans.before[row]), int(spans.after[row])
        size = float(trace.tensor_bytes[spans.tensor[before]])
        start, end = (int(spans.last[before]) + 1) % trace.kernels, int(spans.first[after])
        out_s, in_s = (latency + size / rate for rate in rates)
        half = max(length // 2, 1)
        leaving = _take(problem, (start, 1), min(half, options.window), _SLACK * out_s)
        most = min(length - len(leaving), options.window)
        coming = _take(problem, (end - 1, -1), most, _SLACK * in_s)[::-1]
        windows.append((_window(problem, leaving), _window(problem, coming)))
    return tuple(windows)


def _take(problem: StepProblem, way: tuple[int, int], most: int, least_s: float) -> Ints:
    """Return kernels along ``way``, a start and a step, until they take ``least_s``."""
    kernels: list[int] = []
    total = 0.0
    while len(kernels) < most and (total < least_s or not kernels):
        kernel = (way[0] + way[1] * len(kernels)) % problem.trace.kernels
        kernels.append(kernel)
        total += float(problem.trace.kernel_seconds[kernel])
    return np.array(kernels, np.int64)


def _window(problem: StepProblem, kernels: Ints) -> MoveWindow:
    times = problem.trace.kernel_seconds[kernels] + 1e-12
    return MoveWindow(kernels, times / times.sum())


@dataclass
class _Terms:
    """Bytes that a column adds to a row of kernels: column, value, first kernel, end kernel."""

    rows: list[tuple[int, float, int, int]] = field(default_factory=list)

    def add(self, column: int, value: float, start: int, end: int) -> None:
        """Add ``value`` in kernels ``start`` to ``end - 1``; an empty range adds nothing."""
        if start != end:
            self.rows.append((column, value, start, end))


@dataclass(frozen=True)
class Residency:
    """A solved model. ``fast`` (S,) and ``away`` (G, lower tiers) are shares of tensors."""

    spans: TensorSpans
    windows: tuple[tuple[MoveWindow, MoveWindow], ...]
    fast: Floats
    away: Floats
    seconds: float
    gap: float


class ResidencyModel:
    """The program of one problem; ``movable`` (G,) marks the gaps in which tensors may leave."""

    def __init__(
        self, problem: StepProblem, options: ResidencyOptions, movable: Bools | None = None
    ) -> None:
        self.problem = problem
        self.spans = tensor_spans(problem.trace, problem.life)
        self._options = options
        gaps = len(self.spans.before)
        self._movable = np.ones(gaps, np.bool_) if movable is None else movable
        self._times = problem.trace.kernel_seconds * 1e3
        self._size = problem.trace.tensor_bytes / MIB
        self._program = IntegerProgram()
        self._constant = float(self._times.sum())
        system = problem.system
        self._lower = 1 if system.in_place else len(system.tiers) - 1
        self.windows = gap_windows(problem, self.spans, options)
        self._fast = self._add_spans()
        self._stay, self._away = self._add_gaps()
        self._occupied = self._add_occupancy()
        self._add_bandwidth()

    def solve(self, limit_s: float, relative_gap: float = 1e-3) -> Residency:
        """Return the best residency found; raises as :meth:`IntegerProgram.solve`."""
        solution: ProgramSolution = self._program.solve_whole(limit_s, relative_gap)
        values, in_place = solution.values, self.problem.system.in_place
        spans, gaps = len(self.spans), len(self.spans.before)
        fast = values[self._fast] if in_place else np.ones(spans)
        if in_place:
            leaves = fast[self.spans.before] - values[self._stay]
            away = leaves[:, None]
        else:
            away = values[self._away].reshape(gaps, self._lower)
        seconds = (solution.objective + self._constant) / 1e3
        bound = (solution.bound + self._constant) / 1e3
        return Residency(self.spans, self.windows, fast, away, seconds, (seconds - bound) / seconds)

    # Columns

    def _add_spans(self) -> Ints:
        """Add a column per span: the share that is in the fastest tier, where that is a choice."""
        system, spans = self.problem.system, self.spans
        if not system.in_place:
            return np.empty(0, np.int64)
        # Uses price the bytes that are slow; a column earns what its bytes save.
        price = self._use_price()
        per_span = np.add.reduceat(price, spans.start_use[:-1])
        self._constant += float(per_span.sum())
        return self._program.add_whole_columns(-per_span, 1.0)

    def _use_price(self) -> Floats:
        """Return the time that each use takes longer from the second tier, (uses of spans,)."""
        fast, slow = self.problem.system.tiers[:2]
        rate = [
            1 / ((there or 1) * 1e9) - 1 / ((here or 1) * 1e9)
            for there, here in ((slow.read, fast.read), (slow.write, fast.write))
        ]
        tensor = np.repeat(self.spans.tensor, np.diff(self.spans.start_use))
        mode = self.spans.use_mode
        bytes_used = self.problem.trace.tensor_bytes[tensor]
        per_byte = (mode & 1) * rate[0] + (mode >> 1) * rate[1]
        return np.asarray(bytes_used * 1e3 * per_byte + slow.access_us / 1e3, np.float64)

    def _add_gaps(self) -> tuple[Ints, Ints]:
        """Add the columns of gaps: shares that stay (in place), or that leave per lower tier."""
        spans, program = self.spans, self._program
        gaps = len(spans.before)
        if not self.problem.system.in_place:
            # Moves cost a little even where links are idle: a plan has no idle moves.
            cost = np.repeat(self._size[spans.tensor[spans.before]], self._lower) * 1e-6
            upper = np.repeat(self._movable, self._lower).astype(np.float64)
            away = program.add_whole_columns(cost, upper)
            rows = program.add_rows(np.zeros(gaps), np.ones(gaps))
            program.add_entries(np.repeat(rows, self._lower), away, 1.0)
            return np.empty(0, np.int64), away
        # What leaves after a span, and what comes before one, cost almost nothing.
        cost = self._size[spans.tensor[spans.before]] * 1e-6
        stay = program.add_whole_columns(-2 * cost, 1.0)
        program.add_cost(self._fast[spans.before], cost)
        program.add_cost(self._fast[spans.after], cost)
        for other in (spans.before, spans.after):
            rows = program.add_rows(np.where(self._movable, -np.inf, 0.0), np.zeros(gaps))
            program.add_entries(rows, stay, 1.0)
            program.add_entries(rows, self._fast[other], -1.0)
        return stay, np.empty(0, np.int64)

    # Rows

    def _add_occupancy(self) -> Ints:
        """Add the bytes of the fastest tier, and of limited lower tiers, kernel by kernel.

        Returns the rows of the fastest tier, (kernels,), none where nothing can move.
        """
        system = self.problem.system
        fast, lower = _Terms(), [_Terms() for _ in range(self._lower)]
        constant = np.zeros(self.problem.trace.kernels)
        for row in range(len(self.spans)):
            size = float(self._size[self.spans.tensor[row]])
            first, end = int(self.spans.first[row]), int(self.spans.last[row]) + 1
            if system.in_place:
                fast.add(int(self._fast[row]), size, first, end)
            else:
                constant[first:end] += size
        for gap in range(len(self.spans.before)):
            self._gap_terms(gap, fast, lower, constant)
        room = system.tiers[0].capacity / MIB * self._options.capacity
        limits = self._limit(fast, room, constant, spill=True)
        for tier, terms in enumerate(lower):
            capacity = system.tiers[tier + 1].capacity / MIB
            if not system.in_place and capacity < self._size.sum():
                self._limit(terms, capacity, np.zeros_like(constant), spill=False)
        return limits

    def _gap_terms(self, gap: int, fast: _Terms, lower: list[_Terms], constant: Floats) -> None:
        """Add what a gap contributes to occupancy: what stays, and what has not left or is back."""
        spans = self.spans
        before, after = int(spans.before[gap]), int(spans.after[gap])
        kernels = len(constant)
        start, end = (int(spans.last[before]) + 1) % kernels, int(spans.first[after])
        size = float(self._size[spans.tensor[before]])
        out, back = self.windows[gap]
        pieces = [
            *((start, (int(k) + 1) % kernels, share) for k, share in _late(out, start)),
            *((int(k), end, float(share)) for k, share in _late(back, end)),
        ]
        if self.problem.system.in_place:
            stay = int(self._stay[gap])
            fast.add(stay, size, start, end)
            for number, (low, high, share) in enumerate(pieces):
                owner = before if number < len(pieces) - len(_late(back, end)) else after
                fast.add(int(self._fast[owner]), size * share, low, high)
                fast.add(stay, -size * share, low, high)
            return
        if start <= end:
            constant[start:end] += size
        else:
            constant[start:] += size
            constant[:end] += size
        for tier in range(self._lower):
            column = int(self._away[gap * self._lower + tier])
            fast.add(column, -size, start, end)
            lower[tier].add(column, size, start, end)
            for low, high, share in pieces:
                fast.add(column, size * share, low, high)

    def _limit(self, terms: _Terms, capacity: float, constant: Floats, *, spill: bool) -> Ints:
        """Limit the sum of terms per kernel; with ``spill``, more costs a transfer out and in.

        Returns the rows of the limit, none where nothing can move.
        """
        if not terms.rows:
            return np.empty(0, np.int64)
        program, kernels = self._program, len(constant)
        system = self.problem.system
        occupied = program.add_columns(np.zeros(kernels), np.inf)
        rows = program.add_rows(np.diff(constant, prepend=0.0), np.diff(constant, prepend=0.0))
        program.add_entries(rows, occupied, 1.0)
        program.add_entries(rows[1:], occupied[:-1], -1.0)
        column, value, start, end = (np.array(part) for part in zip(*terms.rows, strict=True))
        wraps = end < start
        program.add_entries(rows[start], column, -value)
        stops = end < kernels
        program.add_entries(rows[end[stops]], column[stops], value[stops])
        program.add_entries(np.full(int(wraps.sum()), rows[0]), column[wraps], -value[wraps])
        limit = program.add_rows(np.full(kernels, -np.inf), np.full(kernels, capacity))
        program.add_entries(limit, occupied, 1.0)
        if spill:
            per_mib = sum(MIB * 1e3 / system.bandwidth(1, inwards=way) for way in (True, False))
            over = program.add_columns(np.full(kernels, per_mib), np.inf)
            program.add_entries(limit, over, -1.0)
        return limit

    def _add_bandwidth(self) -> None:
        """Limit what each link carries per kernel and direction by the kernel's time."""
        system, program = self.problem.system, self._program
        kernels = self.problem.trace.kernels
        links = [
            (number, way)
            for number, link in enumerate(system.links)
            for way in ((True,) if link.half_duplex else (True, False))
        ]
        rows = {
            key: program.add_rows(np.full(kernels, -np.inf), self._times.copy()) for key in links
        }
        if system.in_place:
            self._add_slow_time(list(rows.values()))
        late = program.add_columns(np.ones(kernels), np.inf)
        for each in rows.values():
            program.add_entries(each, late, -1.0)
        if system.in_place:
            self._carry_over(rows)
        for gap in range(len(self.spans.before)):
            for window, inwards in zip(self.windows[gap], (False, True), strict=True):
                self._add_load(gap, window, rows, inwards=inwards)

    def _carry_over(self, rows: dict[tuple[int, bool], Ints]) -> None:
        """Let what a link has not carried out yet leave later, and occupy the fastest tier so long.

        ``rows`` are those of the links' time per kernel. The step repeats: what is left of its last
        kernel goes on in its first. What comes in is needed by its kernel, and is late.
        """
        if not len(self._occupied):
            return
        for (number, inwards), times in rows.items():
            link = self.problem.system.links[number]
            if inwards or link.half_duplex:
                continue
            waiting = self._program.add_columns(np.zeros(len(times)), np.inf)
            self._program.add_entries(times, waiting, -1.0)
            self._program.add_entries(np.roll(times, -1), waiting, 1.0)
            mib_per_ms = link.outwards * 1e6 * self._options.bandwidth / MIB
            self._program.add_entries(np.roll(self._occupied, -1), waiting, mib_per_ms)

    def _add_load(
        self, gap: int, window: MoveWindow, rows: dict[tuple[int, bool], Ints], *, inwards: bool
    ) -> None:
        system, spans = self.problem.system, self.spans
        size = float(self._size[spans.tensor[spans.before[gap]]])
        for tier in range(1, self._lower + 1):
            for number in system.path(tier):
                link = system.links[number]
                rate = link.inwards if inwards or link.half_duplex else link.outwards
                per_mib = MIB / (rate * 1e6 * self._options.bandwidth)
                at = rows[number, inwards or link.half_duplex][window.kernels]
                # Each kernel of the window begins a transaction.
                load = size * per_mib * window.shares + system.latency_seconds(tier) * 1e3
                if system.in_place:
                    owner = (spans.after if inwards else spans.before)[gap]
                    self._program.add_entries(at, self._fast[owner], load)
                    self._program.add_entries(at, self._stay[gap], -load)
                else:
                    column = self._away[gap * self._lower + tier - 1]
                    self._program.add_entries(at, column, load)

    def _add_slow_time(self, limits: list[Ints]) -> None:
        """Let links carry more while a kernel takes longer because it computes from slow memory."""
        price = self._use_price()
        span = np.repeat(np.arange(len(self.spans)), np.diff(self.spans.start_use))
        kernel = self.spans.use_kernel
        extra = np.bincount(kernel, price, self.problem.trace.kernels).astype(np.float64)
        for rows in limits:
            self._program.raise_rows(rows, extra)
            self._program.add_entries(rows[kernel], self._fast[span], price)


def _late(window: MoveWindow, edge: int) -> list[tuple[int, float]]:
    """Return kernels and shares of a window, without those at the edge of its gap."""
    return [
        (kernel, share)
        for kernel, share in zip(window.kernels.tolist(), window.shares.tolist(), strict=True)
        if kernel != edge
    ]


def residency_moves(residency: Residency, problem: StepProblem) -> list[Move]:
    """Return the moves that carry a residency out, frees of dead tensors included."""
    trace, system = problem.trace, problem.system
    spans = residency.spans
    moves = free_moves(problem.life, problem.none)
    for gap, (out, back) in enumerate(residency.windows):
        before, after = int(spans.before[gap]), int(spans.after[gap])
        tensor = int(spans.tensor[before])
        size = int(trace.tensor_bytes[tensor])
        page = system.granularity_bytes
        leaving = residency.away[gap]
        for tier, share in enumerate(leaving.tolist(), 1):
            moves += _pieces(out, tensor, (0, tier), share * size, page)
        if system.in_place:
            coming = float(residency.fast[after] - residency.fast[before] + leaving[0])
        else:
            coming = float(leaving.sum())
        moves += _pieces(back, tensor, (ANY, 0), coming * size, page)
    if system.in_place:
        moves += _births(residency, problem)
        moves += _first_fetches(residency, problem)
    elif problem.rules.overlap:
        moves += _allocations(problem)
    return moves


def _births(residency: Residency, problem: StepProblem) -> list[Move]:
    """Return the moves that allocate tensors in the second tier when they are born."""
    spans, life, size = residency.spans, problem.life, problem.trace.tensor_bytes
    moves: list[Move] = []
    for row in range(len(spans)):
        tensor = int(spans.tensor[row])
        slow = (1 - float(residency.fast[row])) * float(size[tensor])
        if life.birth[tensor] == spans.first[row] and slow >= 1:
            moves.append((int(spans.first[row]), tensor, problem.none, 1, round(slow)))
    return moves


def _allocations(problem: StepProblem) -> list[Move]:
    """Return the moves that allocate tensors so early that their first kernel does not fault."""
    trace, system, life = problem.trace, problem.system, problem.life
    begins = np.concatenate([[0.0], np.cumsum(trace.kernel_seconds)])
    moves: list[Move] = []
    for tensor in np.flatnonzero(life.birth > 0).tolist():
        birth = int(life.birth[tensor])
        needed = float(trace.tensor_bytes[tensor]) * system.allocation_seconds_per_byte
        kernel = int(np.searchsorted(begins[:birth], begins[birth] - needed, "right")) - 1
        moves.append((max(kernel, 0), tensor, problem.none, 0, WHOLE))
    return moves


def _first_fetches(residency: Residency, problem: StepProblem) -> list[Move]:
    """Return the fetches of persistent tensors that are in the fastest tier in one of their spans.

    Parts that never leave it have no other fetch. From the second step on, these find nothing to
    fetch.
    """
    spans, life = residency.spans, problem.life
    gone = np.ones(len(spans), np.bool_)
    gone[spans.before[residency.away.sum(axis=1) < 1 - 1e-6]] = False
    whole = (residency.fast > 1 - 1e-6) & problem.trace.tensor_persistent[spans.tensor] & ~gone
    rows = np.flatnonzero(whole)
    tensors, at = np.unique(spans.tensor[rows], return_index=True)
    first = np.maximum(spans.first[rows[at]], life.first[tensors])
    return [
        (int(kernel), int(tensor), ANY, 0, WHOLE)
        for kernel, tensor in zip(first.tolist(), tensors.tolist(), strict=True)
    ]


def _pieces(
    window: MoveWindow, tensor: int, ends: tuple[int, int], size: float, page: int
) -> list[Move]:
    """Return the moves of ``size`` bytes in a window, in whole pages per kernel."""
    pages = round(size / page)
    if pages <= 0:
        return []
    done = np.rint(np.cumsum(window.shares) * pages).astype(np.int64)
    counts = np.diff(done, prepend=0)
    return [
        (kernel, tensor, *ends, count * page)
        for kernel, count in zip(window.kernels.tolist(), counts.tolist(), strict=True)
        if count > 0
    ]
