"""The summary of the guard's results."""

from __future__ import annotations

from typing import Any

import pytest

from bench.guard import summary


def guard_case(none: float, unguarded: float, guarded: float) -> dict[str, Any]:
    times = {"none": none, "unguarded": unguarded, "guarded": guarded}
    return {"program": "drift", "ratio": "1:8", "seconds": times, "moved_mib": {}}


def test_guard_summary_of_two_cases_means_and_worst() -> None:
    found = summary([guard_case(8, 10, 8), guard_case(8, 4, 5)])
    assert found["geomean_vs_unguarded"] == pytest.approx(1.0)
    assert found["worst_vs_unguarded"] == pytest.approx(0.8)
    assert found["worst_vs_none"] == pytest.approx(1.0)
    assert found["worst_of_unguarded_vs_none"] == pytest.approx(0.8)
