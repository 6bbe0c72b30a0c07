# SPDX-License-Identifier: MIT
"""Recording of real PyTorch steps; skipped where PyTorch is not installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from hmd.base.errors import Exit
from hmd.cli.main import main
from hmd.tensors.trace import READ, WRITE, TensorKind, TensorTrace, read_trace

if find_spec("torch") is None:
    pytest.skip("no PyTorch", allow_module_level=True)

SCRIPT = """\
import sys
import torch
width = int(sys.argv[1])
model = torch.nn.Sequential(
    torch.nn.Linear(width, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(inplace=True),
    torch.nn.Linear(64, 8))
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
for _ in range({steps}):
    optimizer.zero_grad()
    model(torch.randn(32, width)).sum().backward()
    optimizer.step()
{end}
"""


def run(folder: Path, *words: str, steps: int = 9, end: str = "") -> int:
    script = folder / "train.py"
    script.write_text(SCRIPT.replace("{steps}", str(steps)).replace("{end}", end))
    output = str(folder / "step.npz")
    return main(["tensors", "record", "--steps", "2", "-o", output, str(script), *words])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> TensorTrace:
    folder = tmp_path_factory.mktemp("recorded")
    assert run(folder, "16") == Exit.OK
    return read_trace(folder / "step.npz")


def kernels(trace: TensorTrace) -> list[str]:
    return [trace.kernel_names[each] for each in trace.kernel_name]


def test_recorded_step_has_forward_backward_and_update_once(recorded: TensorTrace) -> None:
    names = kernels(recorded)
    assert names.count("addmm") == 2
    assert names.count("native_batch_norm") == names.count("native_batch_norm_backward") == 1
    assert names.count("addcdiv_") == 6
    assert not {"t", "view", "detach", "expand"} & set(names)
    assert names.index("addmm") < names.index("threshold_backward") < names.index("addcdiv_")


def test_recorded_step_names_weights_state_and_input(recorded: TensorTrace) -> None:
    def sizes(kind: TensorKind) -> list[int]:
        return sorted(recorded.tensor_bytes[recorded.tensor_kind == kind].tolist())

    weights = sorted([16 * 64 * 4, 64 * 4, 64 * 4, 64 * 4, 64 * 8 * 4, 8 * 4])
    assert [each for each in sizes(TensorKind.WEIGHT) if each > 8] == sorted(
        [*weights, 64 * 4, 64 * 4]
    )
    assert [each for each in sizes(TensorKind.OPTIMIZER) if each > 4] == sorted(weights * 2)
    assert 32 * 16 * 4 in sizes(TensorKind.INPUT)


def test_recorded_step_in_place_activation_is_one_storage(recorded: TensorTrace) -> None:
    relu = kernels(recorded).index("relu_")
    uses = slice(recorded.use_start[relu], recorded.use_start[relu + 1])
    assert recorded.use_mode[uses].tolist() == [READ | WRITE]
    (storage,) = recorded.use_tensor[uses].tolist()
    users = {
        kernels(recorded)[each] for each in recorded.use_kernel[recorded.use_tensor == storage]
    }
    assert {"native_batch_norm", "relu_", "addmm", "threshold_backward"} <= users


def test_recorded_step_running_statistics_are_updated(recorded: TensorTrace) -> None:
    norm = kernels(recorded).index("native_batch_norm")
    uses = slice(recorded.use_start[norm], recorded.use_start[norm + 1])
    persistent = recorded.tensor_persistent[recorded.use_tensor[uses]]
    assert recorded.use_mode[uses][persistent].tolist().count(READ | WRITE) == 2


def test_recorded_step_gradients_end_with_the_update(recorded: TensorTrace) -> None:
    gradients = recorded.tensor_kind == TensorKind.GRADIENT
    assert not recorded.tensor_persistent[gradients].any()
    readers = recorded.use_kernel[
        np.isin(recorded.use_tensor, np.flatnonzero(gradients)) & (recorded.use_mode == READ)
    ]
    assert kernels(recorded)[int(readers.max())] in ("addcmul_", "lerp_")


@pytest.mark.parametrize(
    ("words", "steps", "end", "message"),
    [
        (["16"], 2, "", "the script ended after 2 calls of an optimizer's step(); recording needs"),
        (["16"], 0, "", "the script ended after 0 calls"),
        (["sixteen"], 9, "", "ValueError: invalid literal for int()"),
        (["16"], 1, "sys.exit(3)", "exited with status 3"),
    ],
)
def test_script_without_enough_steps_refused_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    steps: int,
    end: str,
    message: str,
) -> None:
    assert run(tmp_path, *words, steps=steps, end=end) == Exit.FAILURE
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


def test_graph_given_as_script_refused_with_the_option_that_reads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.pt2"
    file.write_bytes(b"")
    assert main(["tensors", "record", str(file)]) == Exit.USAGE
    assert "--graph" in capsys.readouterr().err
