# SPDX-License-Identifier: MIT
"""Rows of the planners' benchmark, their commands and the picture of sweeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.tensors import planners as tensors
from bench.tensors.planners import claimed_margins, command_of
from bench.tensors.sweeps_plot import PUBLISHED, draw, sweeps, swept


@pytest.mark.parametrize(
    ("row", "command"),
    [
        ({"trace": "bert-512", "tiers": "g10"}, "python -m bench.tensors.planners traces bert-512"),
        (
            {"trace": "bert-512", "tiers": "host 16 GiB"},
            "python -m bench.tensors.planners host bert-512",
        ),
        (
            {"trace": "mlp_mixer", "tiers": "dram-pm, dram 20%"},
            "python -m bench.tensors.in_place mlp_mixer 0.2",
        ),
        ({"trace": "bert-256", "noise": 0.05}, "python -m bench.tensors.planners noise bert-256"),
    ],
)
def test_row_names_the_command_that_repeats_it(row: dict[str, str], command: str) -> None:
    assert command_of(row) == command


def step_row(planner: str, seconds: float) -> dict[str, object]:
    case = {"trace": "bert-256", "rules": "strict", "tiers": "g10", "planner": planner}
    return case | {"seconds": seconds, "ideal_seconds": 1.0, "bound_seconds": 1.0}


def test_publish_replaces_rows_of_the_same_case_and_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published, measured = tmp_path / "published.json", tmp_path / "measured.json"
    published.write_text(
        json.dumps({"note": "kept", "rows": [step_row("g10", 2.0), step_row("portfolio", 1.6)]})
    )
    measured.write_text(json.dumps({"rows": [step_row("portfolio", 1.25)]}))
    monkeypatch.setattr(tensors, "PUBLISHED", published)
    monkeypatch.setattr(tensors, "OUT", measured)
    tensors.main(["publish"])
    document = json.loads(published.read_text())
    assert document["note"] == "kept"
    assert [row["seconds"] for row in document["rows"]] == [2.0, 1.25]
    assert document["worst_vs_g10"] == 1.6
    assert document["portfolio_geomean_share_of_ideal"] == pytest.approx(0.8)


def test_margins_are_those_of_the_case_where_they_are_largest() -> None:
    times = {"autotm": (1.5, 1.2), "sentinel": (2.0, 1.2), "deeptm": (1.25, 1.2)}
    rows = [
        step_row(planner, seconds[at]) | {"tiers": f"dram-pm, dram {at}%"}
        for planner, seconds in times.items()
        for at in range(2)
    ]
    # A case in which one planner is measured, and one of another memory system.
    rows += [step_row("autotm", 9.0) | {"tiers": "dram-pm, dram 2%"}, step_row("deeptm", 0.1)]
    found = claimed_margins(rows)
    assert found["deeptm_over_autotm_percent"] == pytest.approx(20.0)
    assert found["deeptm_over_sentinel_percent"] == pytest.approx(60.0)
    assert found["bound_over_autotm_percent"] == pytest.approx(800.0)
    assert found["portfolio_over_autotm_percent"] == 0.0


def test_tiers_of_rows_give_sweep_and_size() -> None:
    assert swept("host 16 GiB") == ("host, GiB", 16.0)
    assert swept("flash 6.4 GB/s") == ("flash, GB/s", 6.4)
    assert swept("dram-pm, dram 20%") == ("DRAM, % of the peak", 20.0)
    assert swept("g10") is None


def test_published_sweeps_have_no_point_above_the_bound() -> None:
    found = sweeps(json.loads(PUBLISHED.read_text()))
    assert ("host, GiB", "bert-512") in found
    for lines in found.values():
        bound = dict(lines["bound"])
        for planner, points in lines.items():
            assert len(points) == len(dict(points))
            assert all(share <= bound[size] * 1.0005 for size, share in points), planner


def test_picture_of_sweeps_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(json.loads(PUBLISHED.read_text()), tmp_path / "sweeps.png")
    assert (tmp_path / "sweeps.png").read_bytes().startswith(b"\x89PNG")
