"""The table of stage costs, from the files that the benchmarks write."""

import json
from pathlib import Path

import pytest

from bench.stages.stage_costs import StageCost, stage_costs, table
from hmd.errors import MissingError

FILES = {
    "heat": {"figures": [{"name": "plan", "value": 61.2, "unit": "ms", "aim": "<= 50"}]},
    "ring": {"ns_per_sample": {"drain": 9.5}},
    "metrics": [{"name": "series", "best": 1950, "middle": 1950, "unit": "", "aim": ""}],
    "scan": {"processes": 10066, "selectors": {"exe": {"settled_ms": 66.0}}},
    "service": {"figures": {"idle": {"best": 0.006, "middle": 0.007, "unit": "share"}}},
    "timing": {"ns_per_access": {"hits in L1 (16 KiB)": 9.4}},
}


@pytest.fixture
def build(tmp_path: Path) -> Path:
    for name, document in FILES.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    return tmp_path


def test_stage_costs_of_all_benchmarks_have_units_and_bounds(build: Path) -> None:
    assert list(stage_costs(build)) == [
        StageCost("plan", 61.2, "ms", "<= 50"),
        StageCost("samples read from a ring, each", 9.5, "ns", ""),
        StageCost("metrics: series", 1950, "", ""),
        StageCost("scan of 10,066 processes by exe", 66.0, "ms", ""),
        StageCost("service: share of a CPU with nothing to move", 0.006, "share", "<= 0.01"),
        StageCost("timing model: hits in L1 (16 KiB)", 9.4, "ns", "<= 5"),
    ]


@pytest.mark.parametrize(
    ("value", "bound", "kept"),
    [(2.0, "<= 2", True), (2.1, "<= 2", False), (20.0, ">= 20", True), (19.0, ">= 20", False)],
)
def test_stage_cost_bound_kept_or_missed(value: float, bound: str, kept: bool) -> None:
    assert StageCost("one", value, "ms", bound).kept is kept


def test_table_missed_bound_is_marked(build: Path) -> None:
    lines = table([{**each._asdict(), "kept": each.kept} for each in stage_costs(build)])
    assert "| plan | 61.2 ms | at most 50 ms | missed |" in lines.splitlines()
    assert "| metrics: series | 1,950 |  |  |" in lines.splitlines()
    assert "| service: share of a CPU with nothing to move | 0.6 % | at most 1 % | kept |" in lines


def test_stage_costs_missing_benchmark_says_what_to_run(build: Path) -> None:
    (build / "scan.json").unlink()
    with pytest.raises(MissingError, match="run 'make bench' first"):
        list(stage_costs(build))
