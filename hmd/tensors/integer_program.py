# SPDX-License-Identifier: MIT
"""Sparse mixed-integer programs, solved by HiGHS (the extra ``ilp``).

Columns and rows are added in blocks; entries are added per row. All columns are minimised.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hmd.base.errors import missing_extra
from hmd.tensors.trace import Floats, Ints

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

    def solve(
        self, limit_s: float, relative_gap: float = 1e-3, *, interior: bool = False
    ) -> ProgramSolution:
        """Return the best solution found within about ``limit_s`` seconds of CPU time.

        With ``interior``, for a program without integers, a point between all best ones: it is
        found in a tenth of the time, and spreads what could be anywhere.

        Raises MissingError without highspy, ArithmeticError where no solution was found.
        """
        try:
            import highspy
        except ImportError:
            raise missing_extra("this planner", "highspy", "ilp") from None
        solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        whole = np.flatnonzero(np.concatenate(self._whole))
        options: dict[str, Any] = {
            "output_flag": False,
            "mip_rel_gap": relative_gap,
            # One deterministic thread: the same problem gives the same plan.
            "threads": 1,
        }
        if interior:
            # Presolving takes longer than solving.
            options |= {"presolve": "off", "solver": "ipm", "run_crossover": "off"}
        for option, value in options.items():
            solver.setOptionValue(option, value)
        solver.passModel(self._model(highspy))
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
        for each in (solver.cbSimplexInterrupt, solver.cbIpmInterrupt, solver.cbMipInterrupt):
            each.subscribe(stop)
        try:
            solver.run()
        finally:
            for each in (solver.cbSimplexInterrupt, solver.cbIpmInterrupt, solver.cbMipInterrupt):
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
