# SPDX-License-Identifier: MIT
from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

from bench.tensors.publications.integer_program import IntegerProgram


def market_split(columns: int, rows: int) -> IntegerProgram:
    """Return a program that takes a solver days: halve several sums of random numbers at once."""
    numbers = np.random.default_rng(0).integers(0, 100, (rows, columns)).astype(float)
    program = IntegerProgram()
    chosen = program.add_whole_columns(np.zeros(columns), 1.0)
    more, less = (program.add_columns(np.ones(rows), np.inf) for _ in range(2))
    half = np.floor(numbers.sum(axis=1) / 2)
    sums = program.add_rows(half, half)
    for row in range(rows):
        program.add_entries(np.full(columns, sums[row]), chosen, numbers[row])
    program.add_entries(sums, more, 1.0)
    program.add_entries(sums, less, -1.0)
    return program


def test_program_that_takes_days_ends_with_solution_and_gap() -> None:
    pytest.importorskip("highspy")
    found = market_split(60, 6).solve_whole(limit_s=0.3)
    assert np.isin(np.rint(found.values[:60] * 1e6) / 1e6, (0, 1)).all()
    assert found.objective > found.bound
    assert found.gap > 0.5


def test_small_program_is_solved_to_its_optimum() -> None:
    pytest.importorskip("highspy")
    program = IntegerProgram()
    taken = program.add_whole_columns(np.array([-5.0, -4.0, -3.0]), 1.0)
    limit = program.add_rows(np.array([-np.inf]), np.array([5.0]))
    program.add_entries(np.full(3, limit[0]), taken, np.array([4.0, 3.0, 2.0]))
    found = program.solve_whole(limit_s=60.0)
    assert found.values.tolist() == pytest.approx([0, 1, 1])
    assert found.objective == pytest.approx(-7)
    assert found.gap == pytest.approx(0, abs=1e-6)


def test_solver_that_prints_a_banner_is_not_admitted() -> None:
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    (solver,) = (Requirement(each) for each in extras["ilp"])
    assert solver.specifier.contains("1.15.1")
    assert not solver.specifier.contains("1.16.0")
