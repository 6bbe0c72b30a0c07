# SPDX-License-Identifier: MIT
"""docs/results/scale.json: rows by case, ratios of them, the quota, and the picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.scale.tick_cost import (
    QUOTA,
    RESULTS,
    default_cost,
    draw,
    merged,
    publish,
    quota_rows,
    ratios,
)


def row(gib: int, heat_ms: float, **case: Any) -> dict[str, Any]:
    names = {"processes": 1, "page_kib": 4, "pattern": "zipf", "policy": "benefit"}
    cost = {"heat_ms": heat_ms, "decide_ms": 10.0, "rss_mib": 200.0}
    return {"tracked_gib": gib, **names, **cost, **case}


def test_merged_rows_of_same_case_replaced_others_kept_in_order() -> None:
    known = [row(1024, 1.0), row(4, 2.0), row(4, 3.0, policy="age")]
    found = merged(known, [row(4, 5.0), row(4, 6.0, pattern="scattered")])
    assert [(each["tracked_gib"], each["heat_ms"]) for each in found] == [
        (4, 5.0),
        (4, 3.0),
        (4, 6.0),
        (1024, 1.0),
    ]


def test_ratios_of_default_case_only() -> None:
    rows = [row(4, 10.0), row(1024, 30.0), row(1024, 90.0, processes=1000), row(4, 1.0, page_kib=2)]
    assert ratios(rows) == {"ratio_1tib_over_4gib": 2.0}


def test_cost_of_default_case_by_size() -> None:
    rows = [row(4, 10.0, sweep_ms=9.0), row(1024, 30.0, sweep_ms=8.0, processes=1000)]
    rows += [
        row(4, 1.0, page_kib=2048),
        row(4, 1.0, policy="age"),
        row(4, 1.0, pattern="scattered"),
    ]
    assert default_cost(rows) == {
        "4:1": {"sum_ms": 20.0, "sweep_ms": 9.0, "rss_mib": 200.0},
        "1024:1000": {"sum_ms": 40.0, "sweep_ms": 8.0, "rss_mib": 200.0},
    }


def test_publish_other_keys_kept(tmp_path: Path) -> None:
    path = tmp_path / "scale.json"
    publish({"rows": [], "engine_vs_c": 1.0}, path)
    assert publish({"rows": [row(4, 1.0)]}, path) == json.loads(path.read_text())
    assert json.loads(path.read_text()) == {"rows": [row(4, 1.0)], "engine_vs_c": 1.0}


def test_published_quota_is_that_of_the_quota_bench() -> None:
    found = quota_rows()
    assert found and all(each.keys() == {"case", "asked", "used"} for each in found)
    assert len(found) == len(json.loads(QUOTA.read_text())["quota"])
    assert json.loads(RESULTS.read_text())["quota"] == found


def test_draw_rows_of_sizes_pages_and_processes_picture_written(tmp_path: Path) -> None:
    rows = [row(gib, 9.0, page_kib=kib) for gib in (4, 1024) for kib in (4, 2048)]
    draw({"rows": [*rows, row(1024, 9.0, processes=1000)]}, tmp_path / "scale.png", "benefit")
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")
