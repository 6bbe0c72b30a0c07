# SPDX-License-Identifier: MIT
"""A lower bound of a step's time on a memory system, without recomputation.

When kernel k begins, all but the capacity of tier 0 of what is alive has left it, and all but the
capacity of tiers 0 and 1 has gone below tier 1, at the rates of the links; persistent tensors count
from their first use. What is used in kernels k to j must be in tier 0 by then: its bytes above the
capacity of the tiers before tier t return from t or below between the starts of k and j, at the
rate of those links. Later kernels take their times from there.

Where kernels compute while their pages arrive, all this is done by a kernel's end, not its start:
the kernels after it take their times from there. Plans that lose data that is read later are
outside the bound.

Sparse mixed-integer programs, solved by HiGHS (the extra ``ilp``).

Columns and rows are added in blocks; entries are added per row. All columns are minimised.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hmd.base.errors import missing_extra
from hmd.tensors.lifetimes import Vitality, vitality
from hmd.tensors.memory_system import MemorySystem, PricingRules
from hmd.tensors.trace import Floats, Ints, TensorTrace


def lower_bound_seconds(trace: TensorTrace, system: MemorySystem, rules: PricingRules) -> float:
    """Return a time that no plan of a step undercuts where kernels compute from tier 0 alone.

    Where they compute in place, kernels gain most from tier 0 with all operands there: the ideal.
    """
    if system.in_place:
        return trace.ideal_seconds
    life = vitality(trace)
    # What is left to compute once a kernel has what it needs, and when that is at the earliest.
    after = np.cumsum(trace.kernel_seconds[::-1])[::-1]
    if rules.overlap:
        after = np.append(after[1:], 0.0)
    earliest = _earliest(trace, life, system, rules)
    bound = max(trace.ideal_seconds, float((earliest + after).max()))
    return max(bound, _with_returns(trace, system, rules, earliest, after))


def _earliest(
    trace: TensorTrace, life: Vitality, system: MemorySystem, rules: PricingRules
) -> Floats:
    """Return when each kernel has what it needs at the earliest, (K,), in seconds.

    That is its start, or its end where it computes meanwhile, by what must have left tier 0.
    """
    live = _live_since_first_use(trace, life)
    needed = np.zeros(trace.kernels)
    kept = 0
    for tier in range(1, len(system.tiers)):
        kept += system.tiers[tier - 1].capacity
        rate = _rate_below(system, tier, inwards=False)
        needed = np.maximum(needed, (live - kept) / rate)
    ends = np.cumsum(trace.kernel_seconds)
    computed = ends if rules.overlap else ends - trace.kernel_seconds
    return computed + np.maximum.accumulate(np.maximum(needed - computed, 0.0))


def _rate_below(system: MemorySystem, first: int, *, inwards: bool) -> float:
    """Return the most bytes per second between tier 0 and the tiers from ``first`` on."""
    tiers = range(first, len(system.tiers))
    shared = set.intersection(*(set(system.path(tier)) for tier in tiers))
    total = sum(system.bandwidth(tier, inwards=inwards) for tier in tiers)
    rates = [
        link.inwards if inwards or link.half_duplex else link.outwards
        for number, link in enumerate(system.links)
        if number in shared
    ]
    return min([total, *(rate * 1e9 for rate in rates)])


def _live_since_first_use(trace: TensorTrace, life: Vitality) -> Ints:
    change = np.zeros(trace.kernels + 1, np.int64)
    used = life.first >= 0
    np.add.at(change, life.first[used], trace.tensor_bytes[used])
    mortal = used & (life.death >= 0)
    np.add.at(change, life.death[mortal], -trace.tensor_bytes[mortal])
    return np.cumsum(change[:-1])


def _with_returns(
    trace: TensorTrace,
    system: MemorySystem,
    rules: PricingRules,
    earliest: Floats,
    after: Floats,
) -> float:
    """Return the bound by what must return after each of the kernels with most bytes alive.

    What such a kernel uses itself must be there at its start, but need not be at its end.
    """
    life = vitality(trace)
    live = _live_since_first_use(trace, life)
    tiers = range(1, len(system.tiers))
    kept = np.cumsum([tier.capacity for tier in system.tiers])
    rates = [_rate_below(system, tier, inwards=True) for tier in tiers]
    best = 0.0
    order = np.lexsort((trace.use_kernel, trace.use_tensor))
    tensor, kernel = trace.use_tensor[order], trace.use_kernel[order]
    peaks = np.argsort(-(earliest + after), kind="stable")[:8]
    for peak in {int(np.argmax(live)), *peaks.tolist()}:
        alive = (life.first >= 0) & (life.first <= peak)
        alive &= (life.death > peak) | (life.death < 0)
        later = kernel > peak if rules.overlap else kernel >= peak
        owners, at = np.unique(tensor[later], return_index=True)
        uses = kernel[later][at]
        keep = alive[owners]
        size = np.bincount(uses[keep], trace.tensor_bytes[owners[keep]], trace.kernels)
        used = np.cumsum(size)
        for tier, rate in zip(tiers, rates, strict=True):
            returned = np.maximum(used - kept[tier - 1], 0) / rate
            best = max(best, float((earliest[peak] + returned + after)[peak:].max()))
    return best


_FEASIBLE: Final = 2
"""HiGHS's status of a solution that satisfies all rows."""

_DIVES: Final = (0.5, 0.75, 0.9, 1.0)
"""Shares of the integer columns that are rounded, one after the other."""


@dataclass(frozen=True, slots=True)
class ProgramSolution:
    """Values of all columns; ``objective`` is theirs, ``bound`` what no solution undercuts."""

    values: Floats
    objective: float
    bound: float

    @property
    def gap(self) -> float:
        """Relative optimality gap: 0 where the solution is the best that there is."""
        return (self.objective - self.bound) / max(abs(self.objective), 1e-12)


@dataclass
class IntegerProgram:
    """A program under construction."""

    _cost: list[Floats] = field(default_factory=list)
    _upper: list[Floats] = field(default_factory=list)
    _whole: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    _least: list[Floats] = field(default_factory=list)
    _most: list[Floats] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    _extra: list[tuple[Ints, Floats]] = field(default_factory=list)
    _entries: list[tuple[Ints, Ints, Floats]] = field(default_factory=list)
    columns: int = 0
    rows: int = 0

    def add_columns(self, cost: Floats, upper: Floats | float, *, whole: bool = False) -> Ints:
        """Add columns from 0 to ``upper``, ``whole`` for integers; returns their numbers."""
        count = len(cost)
        numbers = np.arange(self.columns, self.columns + count)
        self._cost.append(np.asarray(cost, np.float64))
        self._upper.append(np.broadcast_to(np.asarray(upper, np.float64), (count,)))
        self._whole.append(np.full(count, whole))
        self.columns += count
        return numbers

    def add_rows(self, least: Floats, most: Floats) -> Ints:
        """Add rows between ``least`` and ``most``; returns their numbers."""
        numbers = np.arange(self.rows, self.rows + len(least))
        self._least.append(np.asarray(least, np.float64))
        self._most.append(np.array(most, np.float64))
        self._starts.append(self.rows)
        self.rows += len(least)
        return numbers

    def add_entries(self, rows: Ints, columns: Ints, values: Floats | float) -> None:
        """Add to the matrix; entries of the same row and column are summed."""
        rows, columns = np.broadcast_arrays(np.asarray(rows), np.asarray(columns))
        self._entries.append(
            (rows, columns, np.broadcast_to(np.asarray(values, float), rows.shape))
        )

    def add_cost(self, columns: Ints, cost: Floats) -> None:
        """Add to the cost of columns; a column may occur several times."""
        self._extra.append((columns, cost))

    def raise_rows(self, rows: Ints, by: Floats) -> None:
        """Add to the upper limits of rows that were added together."""
        self._most[self._starts.index(int(rows[0]))][:] += by

    def solve(self, limit_s: float, relative_gap: float = 1e-3) -> ProgramSolution:
        """Return the best solution found within about ``limit_s`` seconds of CPU time.

        Raises MissingError without highspy, ArithmeticError where no solution was found.
        """
        try:
            import highspy
        except ImportError:
            raise missing_extra("this planner", "highspy", "ilp") from None
        solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        for option, value in {
            "output_flag": False,
            "mip_rel_gap": relative_gap,
            # One deterministic thread: the same problem gives the same plan.
            "threads": 1,
        }.items():
            solver.setOptionValue(option, value)
        solver.passModel(self._model(highspy))
        whole = np.flatnonzero(np.concatenate(self._whole))
        if not len(whole):
            return self._run(solver, limit_s)
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        relaxed = self._run(solver, limit_s)
        self._start_from(solver, whole, relaxed.values)
        solver.changeColsIntegrality(len(whole), whole, np.full(len(whole), kinds[1]))
        found = self._run(solver, limit_s)
        bound = max(relaxed.objective, float(solver.getInfo().mip_dual_bound))
        return ProgramSolution(found.values, found.objective, bound)

    def _run(self, solver: Any, limit_s: float) -> ProgramSolution:
        begin = time.process_time()

        def stop(event: Any) -> None:
            if time.process_time() - begin > limit_s:
                event.interrupt()

        # HiGHS's own limit is of elapsed time: plans would depend on what else the machine does.
        for each in (solver.cbSimplexInterrupt, solver.cbMipInterrupt):
            each.subscribe(stop)
        try:
            solver.run()
        finally:
            for each in (solver.cbSimplexInterrupt, solver.cbMipInterrupt):
                each.unsubscribe(stop)
        info = solver.getInfo()
        values = np.array(solver.getSolution().col_value)
        if len(values) != self.columns or info.primal_solution_status != _FEASIBLE:
            raise ArithmeticError("the program has no solution within its CPU time")
        objective = float(info.objective_function_value)
        return ProgramSolution(values, objective, objective)

    def _start_from(self, solver: Any, whole: Ints, relaxed: Floats) -> None:
        """Give the solver a first solution: the relaxed one, rounded in steps.

        The most decided columns are rounded first, and the others solved again before they are
        (diving; Achterberg, "Constraint Integer Programming", 2007, section 9.3).
        """
        count = len(whole)
        least, most = np.zeros(count), np.concatenate(self._upper)[whole]
        upper, values = most.copy(), relaxed[whole]
        for share in _DIVES:
            rounded = np.rint(values)
            decided = np.argsort(np.abs(values - rounded), kind="stable")[: int(share * count)]
            least[decided] = most[decided] = rounded[decided]
            solver.changeColsBounds(count, whole, least, most)
            solver.run()
            if solver.getInfo().primal_solution_status != _FEASIBLE:
                break
            values = np.array(solver.getSolution().col_value)[whole]
        found = solver.getInfo().primal_solution_status == _FEASIBLE
        start = solver.getSolution()
        solver.changeColsBounds(count, whole, np.zeros(count), upper)
        if found:
            solver.setSolution(start)

    def _model(self, highspy: Any) -> Any:
        row, column, value = (np.concatenate(part) for part in zip(*self._entries, strict=True))
        key, inverse = np.unique(row * self.columns + column, return_inverse=True)
        summed = np.bincount(inverse, value)
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = self.columns, self.rows
        cost = np.concatenate(self._cost)
        for columns, more in self._extra:
            np.add.at(cost, columns, more)
        program.col_cost_ = cost
        program.col_lower_ = np.zeros(self.columns)
        program.col_upper_ = np.concatenate(self._upper)
        program.row_lower_ = np.concatenate(self._least)
        program.row_upper_ = np.concatenate(self._most)
        matrix = program.a_matrix_
        matrix.format_ = highspy.MatrixFormat.kRowwise
        counts = np.bincount(key // self.columns, minlength=self.rows)
        matrix.start_ = np.concatenate([[0], np.cumsum(counts)])
        matrix.index_, matrix.value_ = key % self.columns, summed
        return program
