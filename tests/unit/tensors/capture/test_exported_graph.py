# SPDX-License-Identifier: MIT
"""Traces of exported graphs, next to recorded steps; skipped where PyTorch is not installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from hmd.base.errors import Exit
from hmd.cli.main import main
from hmd.tensors.trace import TensorKind, TensorTrace, read_trace

if find_spec("torch") is None:
    pytest.skip("no PyTorch", allow_module_level=True)

import torch

SCRIPT = """\
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(16, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
for _ in range(9):
    optimizer.zero_grad()
    model(torch.ones(32, 16)).sum().backward()
    optimizer.step()
"""


def network(width: int = 64) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(16, width),
        torch.nn.BatchNorm1d(width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, 8),
    )


def exported(folder: Path, model: torch.nn.Module, *inputs: torch.Tensor) -> Path:
    file = folder / "model.pt2"
    torch.export.save(torch.export.export(model, inputs), file)
    return file


def record(graph: Path, *options: str) -> int:
    output = str(graph.with_suffix(".npz"))
    return main(["tensors", "record", "--graph", *options, "-o", output, str(graph)])


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> TensorTrace:
    file = exported(tmp_path_factory.mktemp("exported"), network(), torch.ones(32, 16))
    assert record(file) == Exit.OK
    return read_trace(file.with_suffix(".npz"))


def test_graph_step_has_weights_state_and_kernels_of_recorded_step(
    graph: TensorTrace, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    output = tmp_path / "step.npz"
    assert main(["tensors", "record", "--steps", "1", "-o", str(output), str(script)]) == Exit.OK
    run = read_trace(output)

    def names(trace: TensorTrace, word: str) -> int:
        return sum(word in trace.kernel_names[each] for each in trace.kernel_name)

    for word in ("addmm", "native_batch_norm_backward", "threshold_backward", "addcdiv_", "mm"):
        assert names(graph, word) == names(run, word) > 0
    for kind in (TensorKind.WEIGHT, TensorKind.OPTIMIZER):
        sizes = [sorted(each.tensor_bytes[each.tensor_kind == kind]) for each in (graph, run)]
        assert sizes[0] == sizes[1]
    assert (graph.tensor_persistent == (graph.tensor_kind <= TensorKind.OPTIMIZER))[
        np.isin(graph.tensor_kind, (TensorKind.WEIGHT, TensorKind.OPTIMIZER))
    ].all()


def test_graph_kernels_take_the_time_of_the_roofline(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(512, 512, bias=False))
    file = exported(tmp_path, model, torch.ones(256, 512))
    assert record(file, "--optimizer", "sgd", "--tflops", "0.001", "--gbps", "1000000") == Exit.OK
    trace = read_trace(file.with_suffix(".npz"))
    names = [trace.kernel_names[each] for each in trace.kernel_name]
    times = dict(zip(names, trace.kernel_ticks.tolist(), strict=True))
    assert times["mm"] == pytest.approx(2 * 256 * 512 * 512 / 1e9 * 1e9, rel=1e-3)
    assert not (trace.tensor_kind == TensorKind.OPTIMIZER).any()


def test_graph_of_more_than_this_machine_has_is_recorded(tmp_path: Path) -> None:
    file = tmp_path / "model.pt2"
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(network(), (torch.ones(4, 16),), dynamic_shapes=[{0: rows}])
    program.example_inputs = ((torch.empty(2**30, 16, device="meta"),), {})
    torch.export.save(program, file)
    assert record(file) == Exit.OK
    trace = read_trace(file.with_suffix(".npz"))
    assert trace.tensor_bytes.max() == 2**30 * 64 * 4


@pytest.mark.parametrize("content", ["", "no graph"])
def test_file_without_graph_refused_in_one_line(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.pt2"
    file.write_text(content)
    assert record(file) == Exit.FAILURE
    printed = capsys.readouterr().err
    assert f"{file} is no graph" in printed
    assert printed.count("\n") == 1


def test_graph_without_trained_weights_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = exported(tmp_path, torch.nn.Sequential(torch.nn.ReLU()), torch.ones(4))
    assert record(file) == Exit.FAILURE
    assert "no parameter that is trained" in capsys.readouterr().err


def test_graph_of_meta_weights_equals_that_of_real_ones(tmp_path: Path) -> None:
    found = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            model, rows = network(48), torch.ones(32, 16)
        file = exported(tmp_path, model, rows)
        assert record(file) == Exit.OK
        found.append(read_trace(file.with_suffix(".npz")))
    real, meta = found
    assert meta.tensor_bytes.tolist() == real.tensor_bytes.tolist()
    assert meta.kernel_ticks.tolist() == real.kernel_ticks.tolist()
    assert meta.tensor_names == real.tensor_names


def test_graph_with_tied_weights_has_one_state_for_them(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(100, 16), torch.nn.Linear(16, 100, bias=False))
    model[1].weight = model[0].weight
    file = exported(tmp_path, model, torch.zeros(4, dtype=torch.long))
    assert record(file) == Exit.OK
    trace = read_trace(file.with_suffix(".npz"))
    large = trace.tensor_bytes == 100 * 16 * 4
    assert (large & (trace.tensor_kind == TensorKind.WEIGHT)).sum() == 1
    assert (large & (trace.tensor_kind == TensorKind.OPTIMIZER)).sum() == 2
