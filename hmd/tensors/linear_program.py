# SPDX-License-Identifier: MIT
"""Sparse linear programs, solved by HiGHS (the extra ``ilp``).

Columns and rows are added in blocks; entries are added per row. All columns are minimised.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from hmd.base.errors import missing_extra
from hmd.tensors.trace import Floats, Ints

FEASIBLE: Final = 2
"""HiGHS's status of a solution that satisfies all rows."""


@dataclass
class LinearProgram:
    """A program under construction."""

    _cost: list[Floats] = field(default_factory=list)
    _upper: list[Floats] = field(default_factory=list)
    _least: list[Floats] = field(default_factory=list)
    _most: list[Floats] = field(default_factory=list)
    _entries: list[tuple[Ints, Ints, Floats]] = field(default_factory=list)
    columns: int = 0
    rows: int = 0

    def add_columns(self, cost: Floats, upper: Floats | float) -> Ints:
        """Add columns from 0 to ``upper``; returns their numbers."""
        count = len(cost)
        numbers = np.arange(self.columns, self.columns + count)
        self._cost.append(np.array(cost, np.float64))
        self._upper.append(np.broadcast_to(np.asarray(upper, np.float64), (count,)))
        self.columns += count
        return numbers

    def add_rows(self, least: Floats, most: Floats) -> Ints:
        """Add rows between ``least`` and ``most``; returns their numbers."""
        numbers = np.arange(self.rows, self.rows + len(least))
        self._least.append(np.asarray(least, np.float64))
        self._most.append(np.array(most, np.float64))
        self.rows += len(least)
        return numbers

    def add_entries(self, rows: Ints, columns: Ints, values: Floats | float) -> None:
        """Add to the matrix; entries of the same row and column are summed."""
        rows, columns = np.broadcast_arrays(np.asarray(rows), np.asarray(columns))
        self._entries.append(
            (rows, columns, np.broadcast_to(np.asarray(values, float), rows.shape))
        )

    def solve(self, limit_s: float, *, interior: bool = False) -> tuple[Floats, float]:
        """Return the values of all columns, and the objective, after ``limit_s`` seconds at most.

        Seconds are of CPU time. With ``interior``, a point between all best ones: it is found in a
        tenth of the time, and spreads what could be anywhere. Raises MissingError without highspy,
        ArithmeticError where no solution was found.
        """
        # Presolving takes longer than solving.
        options = {"presolve": "off", "solver": "ipm", "run_crossover": "off"} if interior else {}
        return self._run(self._solver(options), limit_s)

    def _solver(self, options: dict[str, Any]) -> Any:
        try:
            import highspy
        except ImportError:
            raise missing_extra("this planner", "highspy", "ilp") from None
        solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        # One deterministic thread: the same problem gives the same plan.
        for option, value in {"output_flag": False, "threads": 1, **options}.items():
            solver.setOptionValue(option, value)
        solver.passModel(self._model(highspy))
        return solver

    def _run(self, solver: Any, limit_s: float) -> tuple[Floats, float]:
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
        if len(values) != self.columns or info.primal_solution_status != FEASIBLE:
            raise ArithmeticError("the program has no solution within its CPU time")
        return values, float(info.objective_function_value)

    def _model(self, highspy: Any) -> Any:
        row, column, value = (np.concatenate(part) for part in zip(*self._entries, strict=True))
        key, inverse = np.unique(row * self.columns + column, return_inverse=True)
        summed = np.bincount(inverse, value)
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = self.columns, self.rows
        program.col_cost_ = np.concatenate(self._cost)
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
