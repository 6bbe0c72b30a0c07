# SPDX-License-Identifier: MIT
"""The summary of the learned policy's results."""

from __future__ import annotations

from typing import Any

import pytest

from bench.learned_policy.runs import gap_closed, intervals, mean_speeds, summary


def case(ratio: str, program: str = "drift", **seconds: float) -> dict[str, Any]:
    times = {name.replace("_", " "): value for name, value in seconds.items()}
    by_seed = {name: [value] for name, value in times.items()}
    return {"program": program, "ratio": ratio, "seconds": times, "by_seed": by_seed}


CASES = [
    case("1:2", first_touch=8.0, none=8.4, histogram=5.0, benefit=4.0, learned=3.2),
    case("1:8", first_touch=8.0, none=8.0, histogram=6.4, benefit=8.0, learned=10.0),
]


def test_summary_of_two_cases_means_and_worst() -> None:
    found = summary(CASES)
    assert found["geomean_vs_rule"] == pytest.approx(1.0)
    # The best rule differs by case: 4.0 and 6.4 seconds.
    assert found["geomean_vs_best_untuned"] == pytest.approx((1.25 * 0.64) ** 0.5, abs=1e-4)
    assert found["worst_vs_none"] == pytest.approx(0.8)
    assert found["worst_of_default_vs_none"] == pytest.approx(1.0)
    assert found["gap_closed"] is None
    assert found["heldout"] == CASES
    assert (found["programs"], found["seeds"]) == (1, 1)


def test_summary_of_a_case_without_ours_leaves_its_ratios_out() -> None:
    found = summary([*CASES, case("1:16", first_touch=8.0, none=8.0, benefit=1.0)])
    assert found["geomean_vs_rule"] == pytest.approx(1.0)
    assert found["cases"] == {
        "none": 3, "histogram": 2, "benefit": 3, "learned": 2,
    }  # fmt: skip


def test_summary_of_no_cases_is_without_figures() -> None:
    found = summary([])
    assert (found["geomean"], found["worst_vs_none"], found["gap_closed"]) == ({}, None, None)


def test_mean_speeds_are_over_the_cases_that_have_every_policy() -> None:
    other = case("1:16", first_touch=8.0, none=1.0)
    assert mean_speeds([*CASES, other]) == mean_speeds(CASES)
    assert mean_speeds(CASES)["none"] == pytest.approx((8 / 8.4) ** 0.5, abs=1e-4)


def test_summary_of_a_tuned_rule_compares_its_cases_alone() -> None:
    tuned = case(
        "1:2", first_touch=8.0, none=8.4, histogram=5.0, benefit=4.0, learned=3.2,
        tuned_rule=3.84,
    )  # fmt: skip
    cases = [tuned, CASES[1]]
    found = summary(cases)
    assert found["geomean_vs_tuned"] == pytest.approx(1.2)
    assert found["geomean"] == mean_speeds(CASES)
    assert found["interval"]["tuned rule"]["seeds"] == pytest.approx([8 / 3.84] * 2, abs=1e-4)
    assert summary(CASES)["geomean_vs_tuned"] is None


def test_mean_speeds_of_a_bound_only_where_all_cases_have_it() -> None:
    known = case(
        "1:2", first_touch=8.0, none=8.4, histogram=5.0, benefit=4.0, learned=3.2,
        clairvoyant=2.0,
    )  # fmt: skip
    found = summary([known, CASES[1]])
    assert found["geomean"] == mean_speeds(CASES)
    assert found["interval"]["clairvoyant"]["seeds"] == pytest.approx([4.0] * 2)
    assert found["cases"]["clairvoyant"] == 1
    assert mean_speeds([known])["clairvoyant"] == pytest.approx(4.0)


def test_gap_closed_half_way_from_the_better_rule_to_clairvoyant_is_half() -> None:
    found = case("1:2", first_touch=8.0, histogram=8.0, benefit=4.0, learned=3.2, clairvoyant=8 / 3)
    assert gap_closed([found]) == pytest.approx(0.5)
    assert summary([found])["gap_closed"] == pytest.approx(0.5)


def test_gap_closed_without_a_bound_is_none() -> None:
    assert gap_closed(CASES) is None


def test_intervals_over_seeds_contain_the_mean_and_shrink_with_agreement() -> None:
    apart = case("1:2", first_touch=8.0, ours=8.0 / 1.7)
    apart["by_seed"]["ours"] = [4.0, 4.0, 8.0, 4.0, 8.0]
    alike = case("1:2", first_touch=8.0, ours=4.0)
    alike["by_seed"]["ours"] = [4.0] * 5
    wide, narrow = intervals([apart], "ours"), intervals([alike], "ours")
    assert wide is not None
    assert narrow is not None
    low, high = wide["seeds"]
    assert 1.0 <= low < 1.5 < high <= 2.0
    assert narrow["seeds"] == [2.0, 2.0]


def test_intervals_over_programs_draw_the_ratios_of_one_together() -> None:
    first = [case(ratio, "cg", first_touch=8.0, ours=4.0) for ratio in ("1:2", "1:8")]
    second = [case(ratio, "sat", first_touch=8.0, ours=8.0) for ratio in ("1:2", "1:8")]
    found = intervals(first + second, "ours")
    assert found is not None
    assert found["seeds"] == pytest.approx([2**0.5, 2**0.5], abs=1e-4)
    # Both draws are of one program with a probability of a quarter each.
    assert found["programs"] == [1.0, 2.0]


def test_intervals_of_no_whole_case_are_none() -> None:
    assert intervals([], "ours") is None
