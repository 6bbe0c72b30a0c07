# SPDX-License-Identifier: MIT
"""Runs a training script unchanged, and records the steps between updates of its optimizers.

A step ends when an optimizer ends its update; of several optimizers, the first one that updates
counts. The script is stopped when enough steps are recorded.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from hmd.base.errors import HmdError, UsageError
from hmd.tensors.capture.recorder import DispatchRecorder, StorageTable
from hmd.tensors.capture.step_log import StepLog, StorageFacts, steady_trace
from hmd.tensors.trace import TensorKind, TensorTrace


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """How many steps pass before the recording, one or more, and how many are recorded."""

    warmup: int = 2
    measured: int = 5


class TrainingScriptError(HmdError):
    """A script failed, or made no steps that could be recorded."""


class EnoughSteps(BaseException):
    """Ends the script; no Exception, so that the script does not handle it."""


def record_script(script: Path, words: list[str], steps: RecordedSteps) -> TensorTrace:
    """Return the trace of a script's training step.

    Raises UsageError for a script that cannot be read and TrainingScriptError for one that fails or
    ends too early.
    """
    if not script.is_file():
        raise UsageError(f"tensors record: no script {script}")
    if script.suffix == ".pt2":
        raise UsageError(f"tensors record: {script} is a graph: add --graph")
    recorder = StepRecorder(steps)
    with _as_main(script, words), recorder:
        _run(script)
    return recorder.trace(script.stem, f"hmd tensors record {script.name}")


def _run(script: Path) -> None:
    try:
        runpy.run_path(str(script), run_name="__main__")
    except EnoughSteps:
        return
    except SystemExit as error:
        if error.code not in (None, 0):
            raise TrainingScriptError(f"{script}: exited with status {error.code}") from None
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise TrainingScriptError(
            f"{script}: {type(error).__name__}: {reason}; run it with python for the traceback"
        ) from None


@contextmanager
def _as_main(script: Path, words: list[str]) -> Iterator[None]:
    """Give the script the arguments and the module path that python gives it."""
    arguments, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *words]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv = arguments
        sys.path[:] = path


class StepRecorder:
    """A context in which steps of optimizers are recorded."""

    def __init__(
        self,
        steps: RecordedSteps,
        recorder: Callable[[StorageTable], DispatchRecorder] = DispatchRecorder,
    ) -> None:
        self._steps = steps
        self._storages = StorageTable()
        self._recorder = recorder(self._storages)
        self._hooks = ExitStack()
        self._leader: int | None = None
        self._ended = 0
        self._logs: list[StepLog] = []
        self._kinds: dict[int, TensorKind] = {}
        self._modules: dict[int, Any] = {}
        self._optimizers: dict[int, Any] = {}

    def __enter__(self) -> None:
        for handle in (
            register_optimizer_step_pre_hook(self._update_begins),
            register_optimizer_step_post_hook(self._update_ends),
            register_module_forward_pre_hook(self._module_runs),
        ):
            self._hooks.callback(handle.remove)
        self._hooks.enter_context(self._recorder)

    def __exit__(self, *error: object) -> None:
        self._hooks.close()

    def trace(self, name: str, source: str) -> TensorTrace:
        """Return the trace; raises TrainingScriptError where too few steps were made."""
        if not self._logs:
            raise TrainingScriptError(
                f"{name}: the script ended after {self._ended} calls of an optimizer's step();"
                f" recording needs {self._steps.warmup + 1} or more"
            )
        device = self._weight_device()
        source = f"{source}, torch {torch.__version__}, {device}"
        return steady_trace(self._logs, device, name=name, source=source)

    def note_module(self, module: Any) -> None:
        """Note a module whose parameters and buffers are weights."""
        self._modules[id(module)] = module

    def _module_runs(self, module: Any, inputs: Any) -> None:
        self.note_module(module)

    def _update_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._optimizers[id(optimizer)] = optimizer
        if self._leader is None:
            self._leader = id(optimizer)
        for parameter in _parameters(optimizer):
            if parameter.grad is not None:
                for number in self._storages.numbers(parameter.grad):
                    self._kinds[number] = TensorKind.GRADIENT
        self._recorder.update(begins=True)

    def _update_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._recorder.update(begins=False)
        if id(optimizer) != self._leader:
            return
        self._ended += 1
        if self._ended > self._steps.warmup:
            log = self._recorder.end()
            self._name_kinds()
            self._logs.append(self._with_facts(log))
            if len(self._logs) == self._steps.measured:
                raise EnoughSteps
        if self._ended >= self._steps.warmup:
            self._recorder.begin()

    def _name_kinds(self) -> None:
        """Note the storages of weights and optimizer state."""
        for optimizer in self._optimizers.values():
            for number in self._storages.numbers(dict(optimizer.state)):
                self._kinds[number] = TensorKind.OPTIMIZER
            for number in self._storages.numbers(list(_parameters(optimizer))):
                self._kinds[number] = TensorKind.WEIGHT
        for module in self._modules.values():
            own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
            for number in self._storages.numbers(own):
                self._kinds[number] = TensorKind.WEIGHT

    def _with_facts(self, log: StepLog) -> StepLog:
        for operation in log.operations:
            for use in operation.uses:
                log.facts[use.storage] = StorageFacts(
                    self._storages.size(use.storage),
                    self._storages.device(use.storage),
                    self._kinds.get(use.storage),
                    self._storages.exists(use.storage),
                )
        return log

    def _weight_device(self) -> str:
        """Return the device of the first weight: the one whose memory is planned."""
        leader = self._optimizers[self._leader or 0]
        return str(next(iter(_parameters(leader))).device)


def _parameters(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]
