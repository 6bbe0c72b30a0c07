# SPDX-License-Identifier: MIT
"""Figures that documents derive from the results: hmd versus DAMON by ratio, and time asleep."""

from __future__ import annotations

from typing import Any

import pytest

from bench.documents.figures import comparison, derived

OURS = "hmd:benefit"


def case(
    program: str, system: str, seconds: float, mib: int = 0, asleep_s: float | None = None
) -> dict[str, Any]:
    return {
        "program": program,
        "ratio": "1:2",
        "system": system,
        "modelled_seconds": seconds,
        "migrated_bytes": mib << 20,
        "asleep_seconds": asleep_s,
    }


@pytest.fixture
def document() -> dict[str, Any]:
    cases = [
        case("cg", "damon", 2.0, 60, 0.5),
        case("cg", OURS, 1.0, 20),
        case("redis", "damon", 1.0, 60, 0.1),
        case("redis", OURS, 2.0, 10),
        # No run of hmd: not compared.
        case("sat", "damon", 9.0, 900),
    ]
    return {"default": OURS, "ratios": ["1:2", "1:8"], "cases": cases}


def test_comparison_programs_under_both_systems_counted(document: dict[str, Any]) -> None:
    found = comparison(document)
    assert found["over_damon"] == {"1:2": pytest.approx(1.0)}
    assert found["damon_bytes"] == {"1:2": 4.0}
    assert found["damon_ahead"] == {"1:2": 1}


def test_comparison_asleep_largest_share_of_known_cases(document: dict[str, Any]) -> None:
    assert comparison(document)["most_asleep"] == {"damon": 0.25}


def test_comparison_nothing_moved_by_hmd_no_ratio_of_bytes(document: dict[str, Any]) -> None:
    for each in document["cases"]:
        if each["system"] == OURS:
            each["migrated_bytes"] = 0
    assert comparison(document)["damon_bytes"] == {}


def test_derived_without_the_comparison_empty() -> None:
    assert derived({"scale": {}}) == {}


def test_learned_guest_over_the_best_peer_of_each_row() -> None:
    rows = [
        {"seconds": {"first-touch": 2.0, "damon": 1.0, "hmd:benefit": 0.5, "hmd:learned": 1.0}},
        {"seconds": {"first-touch": 4.0, "damon": 8.0, "hmd:benefit": 4.0, "hmd:learned": 1.0}},
    ]
    found = derived({"learned": {"guest": rows}})["learned_guest"]
    assert found["over_best_peer"] == pytest.approx(2.0)
    assert found["default_over_best_peer"] == pytest.approx(2**0.5)
