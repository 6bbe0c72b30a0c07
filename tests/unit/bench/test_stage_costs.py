# SPDX-License-Identifier: MIT
"""The table of stage costs, from the files that the benchmarks write."""

import json
from pathlib import Path

import pytest

from bench.stages.stage_costs import StageCost, stage_costs, table
from hmd.base.errors import MissingError

FILES = {
    "heat": {"figures": [{"name": "plan", "value": 61.2, "unit": "ms"}]},
    "ring": {"ns_per_sample": {"drain": 9.5}},
    "metrics": [{"name": "series", "best": 1950, "middle": 1950, "unit": ""}],
    "scan": {"processes": 10066, "selectors": {"exe": {"settled_ms": 66.0}}},
    "service": {"figures": {"idle": {"best": 0.006, "middle": 0.007, "unit": "share"}}},
    "timing": {"ns_per_access": {"hits in L1 (16 KiB)": 9.4}},
}


@pytest.fixture
def build(tmp_path: Path) -> Path:
    for name, document in FILES.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    return tmp_path


def test_stage_costs_of_all_benchmarks_have_units(build: Path) -> None:
    assert list(stage_costs(build)) == [
        StageCost("plan", 61.2, "ms"),
        StageCost("samples read from a ring, each", 9.5, "ns"),
        StageCost("metrics: series", 1950, ""),
        StageCost("scan of 10,066 processes by exe", 66.0, "ms"),
        StageCost("service: share of a CPU with nothing to move", 0.006, "share"),
        StageCost("timing model: hits in L1 (16 KiB)", 9.4, "ns"),
    ]


def test_table_has_units_and_shares_in_percent(build: Path) -> None:
    lines = table([each._asdict() for each in stage_costs(build)]).splitlines()
    assert "| plan | 61.2 ms |" in lines
    assert "| metrics: series | 1,950 |" in lines
    assert "| service: share of a CPU with nothing to move | 0.6 % |" in lines


def test_stage_costs_missing_benchmark_says_what_to_run(build: Path) -> None:
    (build / "scan.json").unlink()
    with pytest.raises(MissingError, match="run 'make bench' first"):
        list(stage_costs(build))
