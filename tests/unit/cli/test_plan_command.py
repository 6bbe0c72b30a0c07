# SPDX-License-Identifier: MIT
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmd.base.errors import Exit
from hmd.base.units import MIB
from hmd.cli.main import main
from hmd.tensors.trace import TensorTrace, write_trace
from tests.unit.tensors.conftest import RW, R, W, make_trace

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
        (["--planner", "none"], Exit.USAGE),
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
        (["--within", "5%", "--moves", "plan.json"], Exit.USAGE),
        (["--within", "5%", "--compare"], Exit.USAGE),
        (["--within", "5%", "--sweep", "tape"], Exit.USAGE),
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
        ('{"moves": [], "recompute": [[5, 0]]}', "plans that recompute tensors are not read"),
        ('{"moves": [[1, 0, "gpu", "none"]]}', "kernel 1, tensor 0: freed, and read later"),
        (f'{{"moves": [[{10**30}, 0, "none", "gpu"]]}}', "whole numbers"),
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


def recorded_on(device: str, work: float = 0.0) -> TensorTrace:
    """Return the step of the fixture with names, as if recorded on a device."""
    forward = [(2.0, [(0, W)]), (2.0, [(1, W)]), (2.0, [(2, W)]), (2.0, [(3, W)])]
    backward = [(2.0, [(tensor, R)]) for tensor in (3, 2, 1, 0)]
    trace = make_trace([8, 8, 8, 8], forward + backward)
    return replace(
        trace,
        device=device,
        tensor_names=("layers.0", "layers.1", "layers.2", "layers.3"),
        module_names=("layers",),
        kernel_module=np.zeros(trace.kernels, np.int64),
        kernel_work=np.full((2, trace.kernels), work).astype(np.int64),
    )


def test_plan_of_cpu_times_for_a_gpu_warns(
    step: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_trace(recorded_on("cpu"), Path(step[0]))
    assert main(["plan", *step, "--planner", "lru-free"]) == Exit.OK
    printed = capsys.readouterr()
    assert "kernel times are those of the CPU that recorded them" in printed.err
    assert "processor: {tflops: N, gbps: N}" in printed.err
    assert "kernel times of cpu" in printed.out.replace("\n", " ")
    write_trace(recorded_on("cuda:0, some GPU"), Path(step[0]))
    assert main(["plan", *step, "--planner", "lru-free"]) == Exit.OK
    assert capsys.readouterr().err == ""


def test_plan_of_cpu_times_takes_the_roofline_of_the_system(
    step: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_trace(recorded_on("cpu", 3e9), Path(step[0]))
    with Path(step[2]).open("a") as system:
        system.write("processor: {tflops: 10, gbps: 1000}\n")
    assert main(["plan", *step, "--planner", "lru-free", "--json"]) == Exit.OK
    printed = capsys.readouterr()
    (row,) = json.loads(printed.out)["rows"]
    # Eight kernels of 3e9 bytes at 1000 GB/s.
    assert row["ideal_seconds"] == pytest.approx(8 * 3e-3)
    assert row["kernel_times"] == "a roofline of 10 TFLOP/s and 1000 GB/s"
    assert printed.err == ""


def test_plan_within_finds_the_least_capacity(
    step: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *step, "--within", "5%", "--planner", "g10", "--json"]) == Exit.OK
    document = json.loads(capsys.readouterr().out)
    found = document["within"]
    assert found["tier"] == "gpu"
    assert 8 * MIB < found["bound_bytes"] <= found["capacity_bytes"] <= 32 * MIB
    loss = {row["tiers"]["gpu"]: row["seconds"] / row["ideal_seconds"] for row in document["rows"]}
    assert loss[found["capacity_bytes"]] <= 1.05
    assert all(share > 1.05 for size, share in loss.items() if size < found["capacity_bytes"])
    assert main(["plan", *step, "--within", "5%", "--planner", "g10"]) == Exit.OK
    assert "of gpu suffice for 5.0 %" in capsys.readouterr().out


def test_plan_moves_name_tensors(step: list[str], tmp_path: Path) -> None:
    write_trace(recorded_on("cuda:0"), Path(step[0]))
    plan = str(tmp_path / "plan.json")
    assert main(["plan", *step, "--moves", plan]) == Exit.OK
    document = json.loads(Path(plan).read_text())
    assert document["tensors"]["0"] == "layers.0"
    assert {str(move[1]) for move in document["moves"]} == set(document["tensors"])
    assert main(["plan", *step, "--plan", plan]) == Exit.OK


def test_plan_picture_has_names_links_rates_and_the_time_in_its_unit(
    step: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    drawn: list[Any] = []
    import matplotlib.pyplot

    monkeypatch.setattr(matplotlib.pyplot, "close", drawn.append)
    write_trace(recorded_on("cuda:0"), Path(step[0]))
    assert main(["plan", *step, "--picture", str(tmp_path / "plan.png")]) == Exit.OK
    (figure,) = drawn
    _, links, stalls, moved = figure.axes
    # The link carries 8 GB/s each way.
    assert max(line.get_ydata().max() for line in links.lines) <= 8.001
    assert max(line.get_ydata().max() for line in links.lines) > 1
    (filled,) = stalls.collections
    assert filled.get_paths()[0].vertices[:, 1].max() <= 100.001
    assert "ms" in figure.get_suptitle()
    assert {each.get_text() for each in moved.get_yticklabels()} & {"layers.0", "layers.1"}


def test_sweep_picture_keeps_its_curves_inside_and_has_small_units(
    step: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    drawn: list[Any] = []
    import matplotlib.pyplot

    monkeypatch.setattr(matplotlib.pyplot, "close", drawn.append)
    options = ["--sweep", "gpu", "--steps", "2", "--planner", "lru-free"]
    assert main(["plan", *step, *options, "--picture", str(tmp_path / "sweep.png")]) == Exit.OK
    ((axis,),) = (figure.axes for figure in drawn)
    assert axis.get_xlabel() == "capacity of gpu (MiB)"
    assert axis.get_ylabel() == "time of the step (ms)"
    highest = max(line.get_ydata().max() for line in axis.lines)
    assert highest < axis.get_ylim()[1]
    assert axis.get_xlim()[1] > max(line.get_xdata().max() for line in axis.lines)


def test_tensors_info_names_the_largest_tensors(
    step: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_trace(recorded_on("cpu"), Path(step[0]))
    assert main(["tensors", "info", step[0], "--json"]) == Exit.OK
    found = json.loads(capsys.readouterr().out)
    assert found["largest"][0] == {
        "tensor": 0, "name": "layers.0", "kind": "activation", "bytes": 8 * MIB,
    }  # fmt: skip
    assert found["kernel_times"] == "cpu"


def test_median_reuse_distance_is_of_bytes_not_of_uses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counters = [(1.0, [(0, RW)])] * 9
    trace = make_trace([1, 64, 8], [(1.0, [(1, W)]), *counters, (1.0, [(2, W)]), (1.0, [(1, R)])])
    write_trace(trace, tmp_path / "step.npz")
    assert main(["tensors", "info", str(tmp_path / "step.npz"), "--json"]) == Exit.OK
    found = json.loads(capsys.readouterr().out)
    assert found["median_reuse_distance_bytes"] == 9 * MIB
