# SPDX-License-Identifier: MIT
"""What people train, recorded or refused with a reason; skipped where PyTorch is not installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from hmd.base.errors import Exit
from hmd.cli.main import main
from hmd.tensors.lifetimes import vitality
from hmd.tensors.trace import READ, WRITE, TensorKind, TensorTrace, read_trace

if find_spec("torch") is None:
    pytest.skip("no PyTorch", allow_module_level=True)

LOOP = """\
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
{model}
def train(steps):
    for number in range(steps):
        optimizer.zero_grad()
{step}
{run}
"""

STACK = "model = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)])\n"
ADAM = "optimizer = torch.optim.Adam(model.parameters(), foreach=False)"


def record(folder: Path, model: str, step: str, run: str = "train(9)", *options: str) -> int:
    script = folder / "train.py"
    lines = "\n".join(f"        {line}" for line in step.splitlines())
    script.write_text(LOOP.format(model=model, step=lines, run=run))
    output = str(folder / "step.npz")
    return main(["tensors", "record", "--steps", "2", *options, "-o", output, str(script)])


def recorded(folder: Path, model: str, step: str, run: str = "train(9)") -> TensorTrace:
    assert record(folder, model, step, run) == Exit.OK
    return read_trace(folder / "step.npz")


def kernels(trace: TensorTrace) -> list[str]:
    return [trace.kernel_names[each] for each in trace.kernel_name]


def sizes(trace: TensorTrace, kind: TensorKind) -> list[int]:
    return sorted(trace.tensor_bytes[trace.tensor_kind == kind].tolist())


def test_tied_weights_are_one_tensor_with_one_state(tmp_path: Path) -> None:
    model = (
        "model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64, bias=False))\n"
        "model[1].weight = model[0].weight\n" + ADAM
    )
    trace = recorded(tmp_path, model, "model(torch.arange(8)).sum().backward()\noptimizer.step()")
    assert sizes(trace, TensorKind.WEIGHT) == [64 * 32 * 4]
    assert [each for each in sizes(trace, TensorKind.OPTIMIZER) if each > 4] == [64 * 32 * 4] * 2
    assert "0.weight" in trace.tensor_names


def test_checkpointed_layers_run_again_and_hold_less(tmp_path: Path) -> None:
    wide = STACK.replace("nn.Linear(32, 32), nn.Tanh()", "nn.Linear(32, 256), nn.Tanh(), "
                         "nn.Linear(256, 32)")  # fmt: skip
    end = "x.sum().backward()\noptimizer.step()"
    layers = "x = torch.ones(512, 32)\nfor part in model:\n    x = "
    plain = recorded(tmp_path, wide + ADAM, f"{layers}part(x)\n{end}")
    setup = "from torch.utils.checkpoint import checkpoint\n" + wide + ADAM
    call = "checkpoint(part, x, use_reentrant=False)"
    again = recorded(tmp_path, setup, f"{layers}{call}\n{end}")
    assert kernels(plain).count("tanh") == 4
    assert kernels(again).count("tanh") > 4
    assert vitality(again).peak_bytes < vitality(plain).peak_bytes
    assert all(again.kernel_label(k).endswith("1: tanh") for k, name in enumerate(kernels(again))
               if name == "tanh")  # fmt: skip


def test_views_and_operations_in_place_use_the_storage_that_they_share(tmp_path: Path) -> None:
    trace = recorded(
        tmp_path,
        "model = nn.Linear(32, 64)\n" + ADAM,
        "hidden = model(torch.ones(16, 32))\n"
        "left, right = hidden.view(16, 2, 32).unbind(1)\n"
        "(left.mul(2).add_(1) * right).sum().backward()\noptimizer.step()",
    )
    names = kernels(trace)
    assert not {"view", "unbind", "select"} & set(names)
    (add,) = [k for k, name in enumerate(names) if name == "add_" and "gradient" not in
              trace.tensor_name(int(trace.uses(k)[0]))][:1]  # fmt: skip
    part = slice(trace.use_start[add], trace.use_start[add + 1])
    assert READ | WRITE in trace.use_mode[part].tolist()
    assert names.count("addmm") == 1


def test_sparse_embedding_gradient_is_read_by_the_update(tmp_path: Path) -> None:
    model = (
        "model = nn.Embedding(4096, 64, sparse=True)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    )
    step = "model(torch.arange(512)).square().sum().backward()\noptimizer.step()"
    trace = recorded(tmp_path, model, step)
    gradients = np.flatnonzero(trace.tensor_kind == TensorKind.GRADIENT)
    values = gradients[trace.tensor_bytes[gradients] == 512 * 64 * 4]
    assert len(values)
    update = [k for k, name in enumerate(kernels(trace)) if name == "add_"][-1]
    assert set(trace.uses(update).tolist()) & set(values.tolist())
    assert 4096 * 64 * 4 not in trace.tensor_bytes[gradients].tolist()


def test_autocast_step_has_weights_in_two_precisions(tmp_path: Path) -> None:
    step = (
        "with torch.autocast('cpu', torch.bfloat16):\n"
        "    loss = model(torch.ones(16, 32)).float().sum()\n"
        "loss.backward()\noptimizer.step()"
    )
    trace = recorded(tmp_path, STACK + ADAM, step)
    assert sizes(trace, TensorKind.WEIGHT).count(32 * 32 * 4) == 4
    assert (trace.tensor_bytes == 32 * 32 * 2).sum() >= 4
    assert "_to_copy" in kernels(trace)


def test_accumulated_gradients_live_over_all_passes(tmp_path: Path) -> None:
    step = "for _ in range(3):\n    model(torch.ones(16, 32)).sum().backward()\noptimizer.step()"
    trace = recorded(tmp_path, STACK + ADAM, step)
    assert kernels(trace).count("tanh") == 12
    life = vitality(trace)
    gradient = trace.tensor_names.index("gradient of 0.0.weight")
    assert life.birth[gradient] < kernels(trace).index("tanh_backward") + 20
    assert (
        trace.use_kernel[trace.use_tensor == gradient].max() >= kernels(trace).index("addcdiv_") - 8
    )
    # Each pass adds to one storage.
    assert trace.tensor_names.count("gradient of 0.0.weight") == 1


def test_two_forward_passes_of_a_step_are_both_recorded(tmp_path: Path) -> None:
    step = (
        "loss = model(torch.ones(16, 32)).sum() + model(torch.zeros(16, 32)).sum()\n"
        "loss.backward()\noptimizer.step()"
    )
    trace = recorded(tmp_path, STACK + ADAM, step)
    assert kernels(trace).count("tanh") == kernels(trace).count("tanh_backward") == 8


def test_batches_of_different_lengths_are_said_and_the_largest_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = "model(torch.ones(16 * (number + 1), 32)).sum().backward()\noptimizer.step()"
    trace = recorded(tmp_path, STACK + ADAM, step)
    printed = capsys.readouterr().err
    assert "the recorded steps differ: 1 of 2 are alike" in printed
    assert printed.count("\n") == 1
    # The steps after the warm-up have 48 and 64 rows.
    assert 64 * 32 * 4 in trace.tensor_bytes.tolist()
    assert 48 * 32 * 4 not in trace.tensor_bytes.tolist()


@pytest.mark.parametrize("call", ["optimizer.step(closure)", "optimizer.step(closure=closure)"])
def test_closure_of_a_step_is_forward_and_backward(tmp_path: Path, call: str) -> None:
    step = (
        "def closure():\n"
        "    optimizer.zero_grad()\n"
        "    loss = model(torch.ones(512, 32)).sum()\n"
        "    loss.backward()\n"
        "    return loss\n" + call
    )
    trace = recorded(tmp_path, STACK + ADAM, step)
    activations = trace.tensor_bytes[trace.tensor_kind == TensorKind.ACTIVATION]
    assert (activations == 512 * 32 * 4).sum() >= 4
    assert "gradient of 3.0.weight" in trace.tensor_names


def in_a_process(folder: Path) -> subprocess.CompletedProcess[str]:
    """Record the script again where no test follows the threads' exceptions."""
    words = ["tensors", "record", "--steps", "2", "-o", str(folder / "step.npz")]
    command = [sys.executable, "-m", "hmd", *words, str(folder / "train.py")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_training_in_a_thread_is_recorded_in_one_only(tmp_path: Path) -> None:
    step = "model(torch.ones(16, 32)).sum().backward()\noptimizer.step()"
    beside = recorded(tmp_path, STACK + ADAM, step)
    script = tmp_path / "train.py"
    start = "t = threading.Thread(target=train, args=({},))\nt.start()\nt.join()\n"
    loop = script.read_text().replace("train(9)", "import threading\n")
    script.write_text(loop + start.format(9))
    done = in_a_process(tmp_path)
    assert (done.returncode, done.stderr) == (Exit.OK, "")
    assert kernels(read_trace(tmp_path / "step.npz")) == kernels(beside)
    script.write_text(loop + start.format(2) * 2)
    done = in_a_process(tmp_path)
    assert done.returncode == Exit.FAILURE
    assert "optimizers step in several threads" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.filterwarnings("ignore")
def test_compiled_model_refused_unless_compiling_is_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCH_COMPILE_DISABLE", raising=False)
    step = "torch.compile(model)(torch.ones(16, 32)).sum().backward()\noptimizer.step()"
    assert record(tmp_path, STACK + ADAM, step) == Exit.FAILURE
    printed = capsys.readouterr().err
    assert (
        "torch.compile makes kernels that are not seen here: set TORCH_COMPILE_DISABLE=1" in printed
    )
    assert printed.count("\n") == 1
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    assert "tanh" in kernels(recorded(tmp_path, STACK + ADAM, step))


def test_weights_on_meta_have_roofline_times(tmp_path: Path) -> None:
    model = "with torch.device('meta'):\n    model = nn.Linear(4096, 4096)\n" + ADAM
    step = "model(torch.ones(64, 4096, device='meta')).sum().backward()\noptimizer.step()"
    trace = recorded(tmp_path, model, step)
    assert 4096 * 4096 * 4 in sizes(trace, TensorKind.WEIGHT)
    assert trace.device == "a roofline of 19.5 TFLOP/s and 1555 GB/s"
    multiply = kernels(trace).index("addmm")
    assert trace.kernel_work[0, multiply] == 2 * 64 * 4096 * 4096
    assert trace.kernel_ticks[multiply] == round(trace.kernel_work[0, multiply] / 19.5e3)


def test_module_and_parameter_names_follow_the_program(tmp_path: Path) -> None:
    step = "model(torch.ones(16, 32)).sum().backward()\noptimizer.step()"
    trace = recorded(tmp_path, STACK + ADAM, step)
    labels = [trace.kernel_label(each) for each in range(trace.kernels)]
    assert {"0.0: addmm", "3.1: tanh", "3.1: tanh_backward", "2.0: mm"} <= set(labels)
    assert {
        "0.0.weight", "gradient of 3.0.bias", "exp_avg_sq of 1.0.weight", "activation of 2.1: tanh",
    } <= set(trace.tensor_names)  # fmt: skip
    assert trace.device == "cpu"


def test_options_behind_the_script_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("pass\n")
    assert main(["tensors", "record", str(script), "-o", "x.npz"]) == Exit.USAGE
    assert "-o stands behind SCRIPT" in capsys.readouterr().err
