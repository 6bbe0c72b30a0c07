# SPDX-License-Identifier: MIT
"""What the estimator's evaluation says of its cases: coefficients, programs held out, one run."""

from __future__ import annotations

import json

import pytest

from bench.suite.estimator import (
    ABLATIONS,
    GRID,
    PUBLISHED_WINDOWS,
    Errors,
    Intervals,
    Judged,
    left_out,
    summary,
)
from bench.suite.program import load_program, program_names

HELD_OUT = [name for name in program_names() if load_program(name).held_out]


def judged(program: str, best: int, error: float, covered: int = 2) -> Judged:
    """A case with two layouts, for which one of the grid's coefficients is best."""

    def errors(size: float) -> Errors:
        return Errors({"a": size, "b": -size}, regret=size / 10)

    return Judged(
        program=program,
        preset="dram-pm",
        slow_s=2.0,
        fast_s=1.0,
        layouts=2,
        samples=100,
        pairs=10,
        published={windows: errors(0.4) for windows in PUBLISHED_WINDOWS},
        grid=[errors(error if n == best else 2 * error) for n in range(len(GRID))],
        ablated={name: errors(0.3) for name in ABLATIONS},
        sampled={"seed 2": errors(error)},
        intervals=Intervals(covered, 0.05),
        one_run={"slow": error, "fast": -2 * error},
        estimate_s=1e-3,
        sweep_s=1e-4,
        host_s=10.0,
    )


def test_five_programs_of_different_kinds_are_held_out() -> None:
    assert len(HELD_OUT) >= 5
    assert len({load_program(name).source for name in HELD_OUT}) == len(HELD_OUT)


def test_programs_held_out_have_no_part_in_coefficients() -> None:
    known = [judged("bfs", 1, 0.01), judged("gups", 1, 0.01), judged("sat", 2, 0.001)]
    with_held_out = [*known, judged(HELD_OUT[0], 3, 5.0)]
    chosen = left_out(with_held_out)
    # That of the others alone, though it would be far better itself with another.
    assert chosen[HELD_OUT[0]] == 1
    assert chosen["sat"] == 1
    assert {name: left_out(known)[name] for name in ("bfs", "gups")} == {
        name: chosen[name] for name in ("bfs", "gups")
    }


def test_summary_states_programs_held_out_by_themselves() -> None:
    found = summary([judged("bfs", 1, 0.01), judged(HELD_OUT[0], 1, 0.04, covered=1)], {})
    assert found["mean_error"] == pytest.approx(0.025)
    assert found["coverage_95"] == pytest.approx(0.75)
    held_out = found["heldout"]
    assert held_out["programs"] == [HELD_OUT[0]]
    assert held_out["mean_error"] == pytest.approx(0.04)
    assert held_out["coverage_95"] == pytest.approx(0.5)
    json.dumps(found)


def test_summary_counts_one_run_by_the_tier_that_is_known() -> None:
    found = summary([judged("bfs", 1, 0.03), judged("gups", 1, 0.06)], {})["one_run"]
    assert found["slow"]["mean_error"] == pytest.approx(0.045)
    assert found["slow"]["within_5"] == pytest.approx(0.5)
    assert found["fast"]["within_10"] == pytest.approx(0.5)
    assert found["within_10"] == pytest.approx(0.75)
