# SPDX-License-Identifier: MIT
"""Tables of the comparison: both clocks, ranges of runs, classes, the host's part."""

from __future__ import annotations

from typing import Any

import pytest

from bench.compare.tables import (
    classes,
    contention,
    huge_paged,
    moved,
    ratios,
    speedups,
    summary,
    swept,
)

OURS = "hmd:histogram"


def case(system: str, seconds: list[float], ratio: str = "1:2") -> dict[str, Any]:
    runs = [{"modelled_seconds": s, "guest_seconds": 60 * s} for s in seconds]
    median = sorted(seconds)[(len(seconds) - 1) // 2]
    return {
        "program": "drift",
        "ratio": ratio,
        "system": system,
        "modelled_seconds": median,
        "guest_seconds": 60 * median,
        "migrated_bytes": 60 << 20,
        "host_wait_seconds": 6 * median,
        "asleep_seconds": 0.05 if system == "damon" else None,
        "runs": runs,
    }


@pytest.fixture
def results() -> dict[str, Any]:
    figures = {
        f"geomean_vs_{mean}": 1.25 for mean in ("best_peer", "kernel", "first_touch", "all_fast")
    } | {"worst_vs_first_touch": None}
    document = {
        "programs": ["drift"],
        "class": {"drift": "moving hot set"},
        "ratios": ["1:2"],
        "systems": ["all-fast", "first-touch", "damon", OURS],
        "cases": [
            case("all-fast", [1.0], "whole"),
            case("first-touch", [3.0]),
            case("damon", [2.0, 1.5, 2.5]),
            case(OURS, [1.2]),
            {"program": "drift", "ratio": "1:2", "system": "oracle", "modelled_seconds": 1.5}
            | {"guest_seconds": None, "migrated_bytes": 0},
        ],
        "policies": {
            OURS: {
                "by_class": {"moving hot set": {"modelled": figures, "guest": figures}},
                "by_ratio": {"1:2": {"modelled": figures, "guest": figures}},
            }
        },
    }
    return {"policies": document}


def cells(table: str, row: int) -> list[str]:
    return [cell.strip() for cell in table.splitlines()[row + 2].strip("|").split("|")]


def test_speedups_both_clocks_with_range_of_runs(results: dict[str, Any]) -> None:
    assert cells(speedups(results), 0) == [
        *("drift", "1:2", "3.000, 180"),
        *("1.50 (1.20 to 2.00), 1.50", "**2.50**, 2.50"),
        *("3.00, 3.00", "2.00"),
    ]


def test_speedups_reference_without_runs_has_no_column(results: dict[str, Any]) -> None:
    assert "all-fast" in speedups(results)
    assert "all-slow" not in speedups(results)
    document = results["policies"]
    document["cases"] = [c for c in document["cases"] if c["system"] not in ("all-fast", "oracle")]
    head = [cell.strip() for cell in speedups(results).splitlines()[0].strip("|").split("|")]
    assert head == ["program", "ratio", "first-touch, s", "damon", OURS]
    assert len(cells(speedups(results), 0)) == len(head)


def test_speedups_missing_case_dash(results: dict[str, Any]) -> None:
    del results["policies"]["cases"][2]
    assert cells(speedups(results), 0)[3] == "-"


def test_moved_per_modelled_and_guest_second(results: dict[str, Any]) -> None:
    assert cells(moved(results), 0) == ["1:2", "30.0, 0.5", "50.0, 0.8"]


def test_classes_name_their_programs(results: dict[str, Any]) -> None:
    row = cells(classes(results), 0)
    assert row == [OURS, "moving hot set", "drift", *["1.250, 1.250"] * 4, "-, -"]


def test_classes_without_runs_of_all_fast_have_no_column_of_it(results: dict[str, Any]) -> None:
    its = results["policies"]["policies"][OURS]["by_class"]["moving hot set"]["modelled"]
    its["geomean_vs_all_fast"] = None
    assert "over all fast" not in classes(results)
    assert cells(classes(results), 0)[-1] == "-, -"


def test_summary_columns_of_missing_references_left_out(results: dict[str, Any]) -> None:
    policy = results["policies"]["policies"][OURS]
    figures = policy["by_ratio"]["1:2"]["modelled"]
    policy |= {"modelled": figures, "guest": figures, "moved_vs_kernel_tiering": 0.5}
    policy["geomean_vs_oracle"] = None
    row = cells(summary(results), 0)
    assert row == [OURS, *["1.250, 1.250"] * 3, "-, -", "1.250, 1.250", "0.500"]


def test_swept_full_and_free_node_side_by_side(results: dict[str, Any]) -> None:
    document = results["policies"]
    document["systems"] += ["first-touch@swept", f"{OURS}@swept"]
    document["cases"] += [case("first-touch@swept", [2.5]), case(f"{OURS}@swept", [1.0])]
    assert cells(swept(results), 0) == ["drift", "1:2", "1.00, 1.20", "2.50, 3.00"]
    assert "swept" not in speedups(results)


def test_huge_paged_beside_pages_of_4_kib(results: dict[str, Any]) -> None:
    large = [case(f"first-touch{end}", [took]) for end, took in (("", 3.0), ("@thp", 2.0))]
    results["policies"]["huge_pages"] = [*large, case(f"{OURS}@thp", [1.0])]
    assert cells(huge_paged(results), 0) == ["drift", "1:2", "1.00, 1.50", "-, 3.00"]
    assert "thp" not in speedups(results)


def test_contention_share_of_guest_time(results: dict[str, Any]) -> None:
    assert cells(contention(results), 2) == ["damon", "2.0", "120", "60.0", "10.0 %", "2.5 % (1)"]
    # Not known: a result of an earlier version.
    assert cells(contention(results), 3)[-1] == "-"


def test_ratios_one_row_per_policy_and_ratio(results: dict[str, Any]) -> None:
    assert cells(ratios(results), 0) == [OURS, "1:2", "1", *["1.250, 1.250"] * 3, "-, -"]


def test_speedups_ratio_with_first_touch_alone_left_out(results: dict[str, Any]) -> None:
    document = results["policies"]
    document["ratios"].append("1:8")
    before = speedups(results)
    document["cases"].append(case("first-touch", [3.0], "1:8"))
    assert speedups(results) == before
