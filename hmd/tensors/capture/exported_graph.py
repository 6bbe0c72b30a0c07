# SPDX-License-Identifier: MIT
"""The step of a torch.export graph, without running it: shapes alone pass through the operators.

The graph's forward pass, the backward pass that autograd derives from it, and an optimizer's update
run on fake tensors (``torch._subclasses``), which have shapes, types and devices but no data. What
is too large for this machine can thus be recorded on it; only the weights are read.
"""

from __future__ import annotations

import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from hmd.base.errors import HmdError, UsageError
from hmd.tensors.capture.recorder import RooflineRecorder, tensors_in
from hmd.tensors.capture.script import EnoughSteps, RecordedSteps, StepRecorder
from hmd.tensors.memory_system import Roofline
from hmd.tensors.trace import TensorTrace

OPTIMIZERS: Final = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
_STEPS: Final = RecordedSteps(warmup=1, measured=1)
"""The first step creates the optimizer's state; all others are alike."""


class ExportedGraphError(HmdError):
    """A file holds no exported graph, or the graph has no step that can be recorded."""


def record_graph(file: Path, optimizer: str, roofline: Roofline) -> TensorTrace:
    """Return the trace of a training step of the graph that ``torch.export.save`` wrote.

    The loss is the graph's first output of one element, or else the sum of its outputs. Raises
    UsageError for a file that does not exist, ExportedGraphError for one that cannot be recorded.
    """
    if not file.is_file():
        raise UsageError(f"tensors record: no graph {file}")
    if not zipfile.is_zipfile(file):
        raise ExportedGraphError(f"{file} is no graph of torch.export.save")
    recorder = StepRecorder(_STEPS, lambda storages: RooflineRecorder(storages, roofline))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the graph's author, not of who records it
            program = torch.export.load(file)
            _run_steps(program, optimizer, recorder)
    except EnoughSteps:
        pass
    except HmdError:
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ExportedGraphError(f"{file}: {type(error).__name__}: {reason}") from None
    trace = recorder.trace(file.stem, f"hmd tensors record --graph {file.name}, {optimizer}")
    return replace(trace, device=str(roofline))


def _run_steps(program: Any, optimizer: str, recorder: StepRecorder) -> None:
    """Run steps on fake tensors until the recorder has enough."""
    if program.example_inputs is None:
        raise ExportedGraphError("the graph was saved without its example inputs")
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    module = program.module()
    _without_data(module, mode)
    weights = [each for each in module.parameters() if each.requires_grad]
    if not weights:
        raise ExportedGraphError("the graph has no parameter that is trained")
    inputs, named = pytree.tree_map_only(
        torch.Tensor, lambda each: _input(each, mode, weights[0].device), program.example_inputs
    )
    # One kernel per tensor and operation, as the recording of scripts has them by default on a CPU.
    update = OPTIMIZERS[optimizer](weights, lr=1e-3, foreach=False)
    for part in module.modules():
        recorder.note_module(part)
    with mode, recorder:
        while True:
            update.zero_grad()
            _loss(module(*inputs, **named)).backward()
            update.step()


def _without_data(module: Any, mode: FakeTensorMode) -> None:
    """Put fake tensors in place of a module's parameters and buffers; tied ones stay tied.

    A saved graph has a tied parameter once per name, with one storage. Parameters on the device
    meta all have one storage in it, and each is counted as one of its own, on the CPU.
    """
    made: dict[object, Any] = {}
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None and _identity(weight) not in made:
                fake = _input(weight.detach(), mode, torch.device("cpu"))
                parameter = torch.nn.Parameter(fake, requires_grad=weight.requires_grad)
                made[_identity(weight)] = parameter
            part._parameters[name] = None if weight is None else made[_identity(weight)]
        for name, buffer in part._buffers.items():
            if buffer is not None and _identity(buffer) not in made:
                made[_identity(buffer)] = _input(buffer, mode, torch.device("cpu"))
            part._buffers[name] = None if buffer is None else made[_identity(buffer)]


def _identity(tensor: torch.Tensor) -> object:
    """Return what tied parameters have in common."""
    if tensor.device.type == "meta" or not tensor.numel():
        return id(tensor)
    place = tensor.untyped_storage().data_ptr(), tensor.storage_offset()
    return *place, tuple(tensor.size()), tuple(tensor.stride()), tensor.dtype


def _input(tensor: torch.Tensor, mode: FakeTensorMode, device: torch.device) -> torch.Tensor:
    """Return a tensor without data; one that had none is on another device."""
    if tensor.device.type != "meta":
        return mode.from_tensor(tensor)
    with mode:
        return torch.empty_like(tensor, device=device)


def _loss(outputs: object) -> torch.Tensor:
    able = [each for each in tensors_in(outputs) if each.requires_grad]
    if not able:
        raise ExportedGraphError("no output of the graph depends on its parameters")
    single = [each for each in able if each.numel() == 1]
    if single:
        return single[0].sum()
    return torch.stack([each.sum() for each in able]).sum()
