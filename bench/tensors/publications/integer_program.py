# SPDX-License-Identifier: MIT
"""Mixed-integer programs: linear ones with whole columns, and costs and rows that change later."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from hmd.tensors.linear_program import FEASIBLE, LinearProgram
from hmd.tensors.trace import Floats, Ints

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
class IntegerProgram(LinearProgram):
    """A program under construction."""

    _whole: list[Ints] = field(default_factory=list)
    _starts: dict[int, int] = field(default_factory=dict)

    def add_whole_columns(self, cost: Floats, upper: Floats | float) -> Ints:
        """Add columns of whole numbers from 0 to ``upper``; returns their numbers."""
        numbers = self.add_columns(cost, upper)
        self._whole.append(numbers)
        return numbers

    def add_rows(self, least: Floats, most: Floats) -> Ints:
        """Add rows between ``least`` and ``most``; returns their numbers."""
        self._starts[self.rows] = len(self._most)
        return super().add_rows(least, most)

    def add_cost(self, columns: Ints, cost: Floats) -> None:
        """Add to the cost of columns; a column may occur several times."""
        total = np.concatenate(self._cost)
        np.add.at(total, columns, cost)
        self._cost = [total]

    def raise_rows(self, rows: Ints, by: Floats) -> None:
        """Add to the upper limits of rows that were added together."""
        self._most[self._starts[int(rows[0])]][:] += by

    def solve_whole(self, limit_s: float, relative_gap: float = 1e-3) -> ProgramSolution:
        """Return the best solution found within about ``limit_s`` seconds of CPU time.

        Raises ArithmeticError where no solution was found.
        """
        solver = self._solver({"mip_rel_gap": relative_gap})
        import highspy

        values, objective = self._run(solver, limit_s)
        whole = np.concatenate([np.zeros(0, np.int64), *self._whole])
        if not len(whole):
            return ProgramSolution(values, objective, objective)
        self._start_from(solver, whole, values)
        kinds = np.full(len(whole), highspy.HighsVarType.kInteger)
        solver.changeColsIntegrality(len(whole), whole, kinds)
        values, found = self._run(solver, limit_s)
        bound = max(objective, float(solver.getInfo().mip_dual_bound))
        return ProgramSolution(values, found, bound)

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
            if solver.getInfo().primal_solution_status != FEASIBLE:
                break
            values = np.array(solver.getSolution().col_value)[whole]
        found = solver.getInfo().primal_solution_status == FEASIBLE
        start = solver.getSolution()
        solver.changeColsBounds(count, whole, np.zeros(count), upper)
        if found:
            solver.setSolution(start)
