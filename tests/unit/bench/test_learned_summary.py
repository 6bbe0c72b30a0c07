"""The summary of the learned policy's results."""

from __future__ import annotations

from typing import Any

import pytest

from bench.learned import gap_closed, summary


def case(ratio: str, **seconds: float) -> dict[str, Any]:
    times = {name.replace("_", " "): value for name, value in seconds.items()}
    return {"program": "drift", "ratio": ratio, "seconds": times, "moved_mib": {}}


CASES = [
    case("1:2", first_touch=8.0, none=8.4, benefit=4.0, learned=3.2),
    case("1:8", first_touch=8.0, none=8.0, benefit=8.0, learned=10.0),
]


def test_summary_of_two_cases_means_and_worst() -> None:
    found = summary(CASES)
    assert found["geomean_vs_best_untuned"] == pytest.approx(1.0)
    assert found["worst_vs_none"] == pytest.approx(0.8)
    assert found["worst_of_default_vs_none"] == pytest.approx(1.0)
    assert found["heldout"] == CASES


def test_gap_closed_half_way_to_clairvoyant_is_half() -> None:
    bounds = [case("1:2", first_touch=8.0, clairvoyant=8 / 3)]
    assert gap_closed(CASES, bounds) == pytest.approx(0.5)


def test_gap_closed_without_common_cases_is_none() -> None:
    assert gap_closed(CASES, [case("1:16", first_touch=8.0, clairvoyant=4.0)]) is None
