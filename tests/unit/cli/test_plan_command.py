# SPDX-License-Identifier: MIT
from __future__ import annotations

import json
from pathlib import Path

import pytest

from hmd.base.errors import Exit
from hmd.base.units import MIB
from hmd.cli.main import main
from hmd.tensors.trace import write_trace
from tests.unit.tensors.conftest import R, W, make_trace

SYSTEM = """\
name: small
tiers: [{name: gpu, capacity: 24MiB}, {name: host, capacity: 1GiB}, {name: ssd}]
links:
  - {name: pcie, between: [gpu, switch], in: 8, out: 8}
  - {name: dram, between: [switch, host], in: 8, out: 8}
  - {name: flash, between: [switch, ssd], in: 2, out: 2}
"""


@pytest.fixture
def step(tmp_path: Path) -> list[str]:
    """Return the arguments that name a trace and a memory system."""
    forward = [(2.0, [(0, W)]), (2.0, [(1, W)]), (2.0, [(2, W)]), (2.0, [(3, W)])]
    backward = [(2.0, [(tensor, R)]) for tensor in (3, 2, 1, 0)]
    write_trace(make_trace([8, 8, 8, 8], forward + backward), tmp_path / "step.npz")
    (tmp_path / "small.yaml").write_text(SYSTEM)
    return [str(tmp_path / "step.npz"), "--tiers", str(tmp_path / "small.yaml")]


def test_plan_json_has_price_above_bound(
    step: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *step, "--json"]) == Exit.OK
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["planner"] == "portfolio"
    assert row["seconds"] >= row["bound_seconds"] >= row["ideal_seconds"]


def test_plan_moves_written_in_plan_format(step: list[str], tmp_path: Path) -> None:
    assert main(["plan", *step, "--moves", str(tmp_path / "plan.json")]) == Exit.OK
    moves = json.loads((tmp_path / "plan.json").read_text())["moves"]
    assert {"gpu", "host", "none"} <= {tier for move in moves for tier in move[2:4]}
    assert all(len(move) in (4, 5) for move in moves)


def test_plan_compare_lists_every_planner(
    step: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *step, "--compare"]) == Exit.OK
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("lru", "lru-free", "g10", "portfolio"))


def test_plan_sweep_times_do_not_rise_with_capacity(
    step: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *step, "--sweep", "gpu", "--steps", "3", "--json"]) == Exit.OK
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 3
    assert rows[0]["seconds"] >= rows[-1]["seconds"]


def test_plan_picture_is_written(step: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert main(["plan", *step, "--picture", str(tmp_path / "plan.png")]) == Exit.OK
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_plan_sweep_picture_is_written(step: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = ["--sweep", "gpu", "--steps", "2", "--planner", "lru-free"]
    assert main(["plan", *step, *options, "--picture", str(tmp_path / "sweep.svg")]) == Exit.OK
    assert "<svg" in (tmp_path / "sweep.svg").read_text()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--planner", "best"], Exit.USAGE),
        (["--planner", "g10@none"], Exit.USAGE),
        (["--compare", "--picture", "plan.png"], Exit.USAGE),
        (["--sweep", "gpu", "--moves", "plan.json"], Exit.USAGE),
        (["--rules", "loose"], Exit.USAGE),
        (["--sweep", "tape"], Exit.USAGE),
        (["--compare", "--sweep", "gpu"], Exit.USAGE),
        (["--steps", "3"], Exit.USAGE),
        (["--plan", "plan.json", "--planner", "g10"], Exit.USAGE),
        (["--compare", "--planner", "g10"], Exit.USAGE),
        (["--moves", "/nowhere/plan.json"], Exit.MISSING),
        (["--picture", "/nowhere/plan.png"], Exit.MISSING),
        (["--picture", "plan.gif"], Exit.USAGE),
        (["--tiers", "nowhere.yaml"], Exit.CONFIG),
    ],
)
def test_plan_wrong_options_have_their_exit_code(
    step: list[str], options: list[str], code: Exit, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *step, *options]) == code
    assert capsys.readouterr().err.count("\n") == 1


def test_tensors_info_json_has_peak_and_kinds(
    step: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tensors", "info", step[0], "--json"]) == Exit.OK
    found = json.loads(capsys.readouterr().out)
    assert found["peak_bytes"] == 4 * 8 * MIB
    assert found["kinds"] == {"activation": {"tensors": 4, "bytes": 4 * 8 * MIB}}
    assert found["inactive_periods"] == 3


def test_tensors_info_table_and_picture(
    step: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert main(["tensors", "info", step[0], "--picture", str(tmp_path / "step.png")]) == Exit.OK
    assert "32.0 MiB" in capsys.readouterr().out
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")


def test_written_plan_has_the_same_price_when_read(
    step: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    assert main(["plan", *step, "--moves", str(plan), "--json"]) == Exit.OK
    (planned,) = json.loads(capsys.readouterr().out)["rows"]
    assert main(["plan", *step, "--plan", str(plan), "--json"]) == Exit.OK
    (read,) = json.loads(capsys.readouterr().out)["rows"]
    assert (read["planner"], read["plan_seconds"]) == ("plan.json", 0.0)
    assert [read[key] for key in ("seconds", "moved_bytes", "bound_seconds")] == [
        planned[key] for key in ("seconds", "moved_bytes", "bound_seconds")
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"moves": [[0, 99, "none", "gpu"]]}', "kernel 0, tensor 99: no tensor 99"),
        ('{"moves": [[99, 0, "none", "gpu"]]}', "kernel 99, tensor 0: no kernel 99"),
        ('{"moves": [[0, 0, "none", "disk"]]}', "no tier 'disk'"),
        ('{"moves": [[0, 0, "none"]]}', r"write [kernel, tensor, from, to(, bytes)]"),
        ('{"moves": [[0.5, 0, "none", "gpu"]]}', "whole numbers"),
        ('{"moves": [[0, 0, ["gpu"], "gpu"]]}', "no tier ['gpu']"),
        ('{"moves": 3}', "moves is a list"),
        ('{"moves": [], "recompute": 3}', "recompute is a list"),
        ('{"moves": [[1, 0, "gpu", "none"]]}', "kernel 1, tensor 0: freed, and read later"),
        (f'{{"moves": [[{10**30}, 0, "none", "gpu"]]}}', "whole numbers"),
        (f'{{"moves": [], "recompute": [[0, {10**30}]]}}', "write [kernel, tensor]"),
        (f'{{"moves": [[{"9" * 5000}]]}}', "a number of the JSON has too many digits"),
        ("[" * 100_000, "the JSON is nested too deeply"),
        ("[", "no plan"),
        ("[]", "no plan"),
    ],
)
def test_wrong_plan_refused_in_one_line(
    text: str, message: str, step: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(text)
    assert main(["plan", *step, "--plan", str(plan)]) == Exit.FAILURE
    printed = capsys.readouterr()
    assert message in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")
