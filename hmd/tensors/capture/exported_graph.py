# SPDX-License-Identifier: MIT
"""Steps that are recorded without running them: shapes alone pass through the operators.

The forward pass of a module or a torch.export graph, the backward pass that autograd derives from
it, and an optimizer's update run on fake tensors (``torch._subclasses``), which have shapes, types
and devices but no data. What is too large for this machine can thus be recorded on it.
"""

from __future__ import annotations

import copy
import warnings
import zipfile
from collections.abc import Callable, Mapping
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
    """A file holds no exported graph, or a module has no step that can be recorded."""


def record_graph(file: Path, optimizer: str, roofline: Roofline) -> TensorTrace:
    """Return the trace of a training step of the graph that ``torch.export.save`` wrote.

    Raises UsageError for a file that does not exist, ExportedGraphError for one that cannot be
    recorded.
    """
    if not file.is_file():
        raise UsageError(f"tensors record: no graph {file}")
    if not zipfile.is_zipfile(file):
        raise ExportedGraphError(f"{file} is no graph of torch.export.save")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the graph's author, not of who records it
            program = torch.export.load(file)
            if program.example_inputs is None:
                raise ExportedGraphError("the graph was saved without its example inputs")
            inputs, named = program.example_inputs
            trace = record_module(program.module(), inputs, named, optimizer, roofline)
    except HmdError:
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ExportedGraphError(f"{file}: {type(error).__name__}: {reason}") from None
    source = trace.source.replace("record_module", f"hmd tensors record --graph {file.name}")
    return replace(trace, name=file.stem, source=source)


def record_module(
    module: torch.nn.Module,
    inputs: tuple[Any, ...],
    named: Mapping[str, Any],
    optimizer: str,
    roofline: Roofline,
    loss: Callable[[Any], torch.Tensor] | None = None,
) -> TensorTrace:
    """Return the trace of a module's training step, with the times of a roofline.

    The module, its parameters and its inputs stay as they are; their data is not read. ``loss``
    takes the module's result; by default it is the first output of one element, or else the sum of
    the outputs. Raises ExportedGraphError for a module without parameters.
    """
    recorder = StepRecorder(_STEPS, lambda storages: RooflineRecorder(storages, roofline))
    name = type(module).__name__
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = _without_data(module, mode)
    weights = [each for each in fake.parameters() if each.requires_grad]
    if not weights:
        raise ExportedGraphError(f"{name} has no parameter that is trained")
    inputs, named = pytree.tree_map_only(
        torch.Tensor, lambda each: _input(each, mode, weights[0].device), (inputs, dict(named))
    )
    # One kernel per tensor and operation, as the recording of scripts has them by default on a CPU.
    update = OPTIMIZERS[optimizer](weights, lr=1e-3, foreach=False)
    for part in fake.modules():
        recorder.note_module(part)
    try:
        with mode, recorder:
            while True:
                update.zero_grad()
                (loss or _loss)(fake(*inputs, **named)).backward()
                update.step()
    except EnoughSteps:
        pass
    return replace(recorder.trace(name, f"record_module, {optimizer}"), device=str(roofline))


def _without_data(module: torch.nn.Module, mode: FakeTensorMode) -> torch.nn.Module:
    """Return a copy of a module with fake parameters and buffers; tied ones stay tied.

    A saved graph has a tied parameter once per name, with one storage. Parameters on the device
    meta all have one storage in it, and each is counted as one of its own, on the CPU.
    """
    made: dict[object, torch.Tensor] = {}
    copies: dict[int, Any] = {}
    for each in (*module.parameters(), *module.buffers()):
        key = _identity(each)
        if key not in made:
            fake = _input(each.detach(), mode, torch.device("cpu"))
            is_weight = isinstance(each, torch.nn.Parameter)
            made[key] = torch.nn.Parameter(fake, each.requires_grad) if is_weight else fake
        copies[id(each)] = made[key]
    return copy.deepcopy(module, copies)


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
        raise ExportedGraphError("no output depends on the parameters")
    single = [each for each in able if each.numel() == 1]
    return single[0].sum() if single else torch.stack([each.sum() for each in able]).sum()
