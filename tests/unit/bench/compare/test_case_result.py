# SPDX-License-Identifier: MIT
"""Results of cases, converted to rows and back."""

from __future__ import annotations

import json

from bench.compare.comparison_case import (
    CaseResult,
    ComparisonCase,
    ComparisonTrial,
    median_run,
    results,
    rows,
)

FOUND = {
    ComparisonCase.parse("sat:1:8:damon"): CaseResult(
        tuple(ComparisonTrial(s, 60 * s, 4096, 0, 0.5, 8192, 0) for s in (1.9, 1.2, 1.5)),
        "d1",
        "abc",
    ),
    ComparisonCase.parse("cg:1:2:first-touch"): CaseResult(
        (ComparisonTrial(0.2, 12.0, 0, 0, 0.25, 4096, 0),), "d2", "abd"
    ),
}


def test_rows_have_documented_keys() -> None:
    found = rows(FOUND)
    assert [row["program"] for row in found] == ["cg", "sat"]
    assert [len(row["runs"]) for row in found] == [1, 3]
    promised = {"program", "ratio", "system", "modelled_seconds", "guest_seconds"}
    for row in found:
        assert promised | {"migrated_bytes"} <= row.keys()


def test_row_has_values_of_the_median_run() -> None:
    sat = rows(FOUND)[1]
    assert (sat["modelled_seconds"], sat["guest_seconds"]) == (1.5, 90.0)


def test_median_run_of_two_is_the_faster() -> None:
    trials = next(iter(FOUND.values())).trials
    assert median_run(trials[:2]).modelled_seconds == 1.2


def test_rows_read_back_equal_results() -> None:
    assert results(json.loads(json.dumps(rows(FOUND)))) == FOUND


def test_results_other_rows_left_out() -> None:
    oracle = {"program": "cg", "ratio": "1:2", "system": "oracle", "modelled_seconds": 0.1}
    assert results([oracle, *rows(FOUND)]) == results(rows(FOUND))
