"""The summary of the learned policy's results."""

from __future__ import annotations

from typing import Any

import pytest

from bench.learned_summary import gap_closed, speed_interval, summary


def case(ratio: str, **seconds: float) -> dict[str, Any]:
    times = {name.replace("_", " "): value for name, value in seconds.items()}
    if "unguarded" in times:
        times["learned, unguarded"] = times.pop("unguarded")
    return {"program": "drift", "ratio": ratio, "seconds": times, "moved_mib": {}}


CASES = [
    case("1:2", first_touch=8.0, none=8.4, histogram=5.0, benefit=4.0, learned=3.2, unguarded=4.2),
    case("1:8", first_touch=8.0, none=8.0, histogram=6.4, benefit=8.0, learned=10.0, unguarded=8.0),
]


def test_summary_of_two_cases_means_and_worst() -> None:
    found = summary(CASES, [])
    assert found["geomean_vs_rule"] == pytest.approx(1.0)
    # The best rule differs by case: 4.0 and 6.4 seconds.
    assert found["geomean_vs_best_untuned"] == pytest.approx((1.25 * 0.64) ** 0.5, abs=1e-4)
    assert found["worst_vs_none"] == pytest.approx(0.8)
    assert found["worst_of_unguarded_vs_none"] == pytest.approx(1.0)
    assert found["worst_of_default_vs_none"] == pytest.approx(1.0)
    assert found["gap_closed"] is None
    assert found["heldout"] == CASES


def test_gap_closed_half_way_from_the_better_rule_to_clairvoyant_is_half() -> None:
    cases = [case("1:2", first_touch=8.0, none=8.0, histogram=8.0, benefit=4.0, learned=3.2)]
    bounds = [case("1:2", first_touch=8.0, clairvoyant=8 / 3)]
    assert gap_closed(cases, bounds) == pytest.approx(0.5)


def test_gap_closed_without_common_cases_is_none() -> None:
    assert gap_closed(CASES, [case("1:16", first_touch=8.0, clairvoyant=4.0)]) is None


def test_speed_interval_of_seeds_by_students_distribution() -> None:
    one = {"seconds": {"first touch": 8.0}, "by_seed": {"ours": [4.0, 4.0, 8.0]}}
    low, high = speed_interval([one], "ours") or (0.0, 0.0)
    # Speeds 2, 2, 1: mean 5/3, standard error 1/3, at 2 degrees of freedom.
    assert (low, high) == pytest.approx((5 / 3 - 4.30 / 3, 5 / 3 + 4.30 / 3), abs=1e-3)


def test_speed_interval_of_one_seed_is_none() -> None:
    one = {"seconds": {"first touch": 8.0}, "by_seed": {"ours": [4.0]}}
    assert speed_interval([one], "ours") is None
