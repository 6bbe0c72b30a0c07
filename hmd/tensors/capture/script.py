# SPDX-License-Identifier: MIT
"""Runs a training script unchanged, and records the steps between updates of its optimizers.

A step ends when an optimizer ends its update; of several optimizers, the first one that updates
counts. What a closure computes for ``optimizer.step(closure)`` belongs to the forward and backward
passes. The script is stopped when enough steps are recorded. Dispatch modes belong to a thread:
training in another one than the script's is recorded there, in one thread only.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from hmd.base.errors import HmdError, UsageError
from hmd.tensors.capture.recorder import DispatchRecorder, StorageTable
from hmd.tensors.capture.step_log import StepLog, StorageFacts, steady_trace
from hmd.tensors.memory_system import Roofline
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


def _end_script() -> NoReturn:
    """End the script, or the thread that trains: threads end in silence with SystemExit alone."""
    is_main = threading.current_thread() is threading.main_thread()
    raise EnoughSteps if is_main else SystemExit


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
    with _as_main(script, words), _without_compiling(script), recorder:
        _run(script)
    trace = recorder.trace(script.stem, f"hmd tensors record {script.name}")
    # Tensors on the device meta have no data: no kernel ran.
    return Roofline().times_of(trace) if trace.device == "meta" else trace


def _run(script: Path) -> None:
    try:
        runpy.run_path(str(script), run_name="__main__")
    except EnoughSteps:
        return
    except HmdError:
        raise
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


@contextmanager
def _without_compiling(script: Path) -> Iterator[None]:
    """Refuse a script that compiles its model, unless PyTorch is told not to."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise TrainingScriptError(
            f"{script}: torch.compile makes kernels that are not seen here:"
            " set TORCH_COMPILE_DISABLE=1 to record the step without it"
        )

    compiles = torch.compile
    if os.environ.get("TORCH_COMPILE_DISABLE") != "1":
        torch.compile = refuse
    try:
        yield
    finally:
        torch.compile = compiles


class StepRecorder:
    """A context in which steps of optimizers are recorded; ``finish`` is called after the last."""

    def __init__(
        self,
        steps: RecordedSteps,
        recorder: Callable[[StorageTable], DispatchRecorder] = DispatchRecorder,
        finish: Callable[[], None] = _end_script,
    ) -> None:
        self._steps, self._finish = steps, finish
        self._is_recording = False
        self._storages = StorageTable()
        self._recorder = recorder(self._storages)
        self._hooks = ExitStack()
        self._thread = threading.local()
        self._refusal: TrainingScriptError | None = None
        self._leader: int | None = None
        self._leading_thread: threading.Thread | None = None
        self._names: dict[int, str] = {}
        self._gradients: dict[int, int] = {}
        self._ended = 0
        self._logs: list[StepLog] = []
        self._kinds: dict[int, TensorKind] = {}
        self._modules: dict[int, Any] = {}
        self._optimizers: dict[int, Any] = {}

    def __enter__(self) -> None:
        for handle in (
            register_optimizer_step_pre_hook(self._update_begins),
            register_optimizer_step_post_hook(self._update_ends),
            register_module_forward_pre_hook(self._module_begins),
            register_module_forward_hook(self._module_ends, always_call=True),
        ):
            self._hooks.callback(handle.remove)
        self._thread.follows = self._is_recording = True
        self._recorder.__enter__()

    def __exit__(self, *error: object) -> None:
        self._stop()
        self._hooks.close()

    def _stop(self) -> None:
        """Record no more; hooks stay, since PyTorch may be calling one of them."""
        if self._is_recording:
            self._is_recording = False
            self._recorder.__exit__(None, None, None)

    def place_of(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """Return a tensor's storage, as traces name it, and how many operations the step has had.

        None outside a step that is recorded.
        """
        number = self._storages.number(tensor) if self._recorder.operations >= 0 else None
        return None if number is None else (number, self._recorder.operations)

    def storages_of(self, values: object) -> list[int]:
        """Return the storages of tensors, as traces name them."""
        return list(self._storages.numbers(values))

    def trace(self, name: str, source: str) -> TensorTrace:
        """Return the trace; raises TrainingScriptError where too few steps were made."""
        if self._refusal:
            raise self._refusal
        if not self._logs:
            raise TrainingScriptError(
                f"{name}: the script ended after {self._ended} calls of an optimizer's step();"
                f" recording needs {self._steps.warmup + 1} or more"
            )
        device = self._weight_device()
        source = f"{source}, torch {torch.__version__}, {device}"
        timed_on = device
        if device.startswith("cuda"):
            timed_on = f"{device}, {torch.cuda.get_device_name(device)}"
        return steady_trace(self._logs, device, name=name, source=source, timed_on=timed_on)

    def note_module(self, module: Any) -> None:
        """Note a module whose parameters and buffers are weights."""
        self._modules[id(module)] = module

    def _module_begins(self, module: Any, inputs: Any) -> None:
        self._follow_thread()
        self.note_module(module)
        self._recorder.module_begins(id(module))

    def _module_ends(self, module: Any, inputs: Any, output: Any) -> None:
        self._recorder.module_ends()

    def _follow_thread(self) -> None:
        """Record the operations of this thread from now on."""
        if self._is_recording and not hasattr(self._thread, "follows"):
            self._thread.follows = True
            self._recorder.__enter__()

    def _update_begins(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if not self._is_recording:
            return None
        self._follow_thread()
        self._optimizers[id(optimizer)] = optimizer
        if self._leader is None:
            self._leader, self._leading_thread = id(optimizer), threading.current_thread()
        if threading.current_thread() is not self._leading_thread:
            self._refusal = TrainingScriptError(
                "optimizers step in several threads: record a script that trains in one"
            )
            self._finish()
            return None
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if closure is None:
            self._note_gradients(optimizer)
            self._recorder.update(begins=True)
            return None

        def computed(*words: Any) -> Any:
            self._recorder.update(begins=False)
            try:
                return closure(*words)
            finally:
                self._note_gradients(optimizer)
                self._recorder.update(begins=True)

        self._recorder.update(begins=True)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": computed}
        return (args[0], computed, *args[2:]), kwargs

    def _note_gradients(self, optimizer: Any) -> None:
        for parameter in _parameters(optimizer):
            if parameter.grad is not None:
                for number in self._storages.numbers(parameter.grad):
                    self._kinds[number] = TensorKind.GRADIENT
                    for weight in self._storages.numbers(parameter):
                        self._gradients[number] = weight

    def _update_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._recorder.update(begins=False)
        if id(optimizer) != self._leader or not self._is_recording:
            return
        self._ended += 1
        if self._ended > self._steps.warmup:
            log = self._recorder.end()
            self._name_kinds()
            self._logs.append(self._with_facts(log))
            if len(self._logs) >= self._steps.measured:
                self._stop()
                self._finish()
                return
        if self._ended >= self._steps.warmup:
            self._recorder.begin()

    def _name_kinds(self) -> None:
        """Note the storages of weights and optimizer state, with their names."""
        for optimizer in self._optimizers.values():
            for at, parameter in enumerate(_parameters(optimizer)):
                for number in self._storages.numbers(parameter):
                    self._kinds[number] = TensorKind.WEIGHT
                    self._names.setdefault(number, f"parameter {at}")
        for prefix, root in self._roots():
            for name, weight in (*root.named_parameters(), *root.named_buffers()):
                for number in self._storages.numbers(weight):
                    self._kinds[number] = TensorKind.WEIGHT
                    self._names[number] = prefix + name
        for optimizer in self._optimizers.values():
            for parameter, state in optimizer.state.items():
                named = {"": state} if not isinstance(state, dict) else state
                of = next((self._names[each] for each in self._storages.numbers(parameter)), "")
                for key, value in named.items():
                    for number in self._storages.numbers(value):
                        self._kinds[number] = TensorKind.OPTIMIZER
                        self._names[number] = f"{key} of {of}" if of else str(key)
        for gradient, weight in self._gradients.items():
            self._names[gradient] = f"gradient of {self._names.get(weight, 'a parameter')}"

    def _roots(self) -> Iterator[tuple[str, Any]]:
        """Yield the modules that are in no other, with a prefix where there are several."""
        inner = {id(each) for module in self._modules.values() for each in module.children()}
        roots = [module for key, module in self._modules.items() if key not in inner]
        kinds = [type(root).__name__ for root in roots]
        for number, (root, kind) in enumerate(zip(roots, kinds, strict=True)):
            several = f"{kind}{kinds[:number].count(kind) or ''}."
            yield several if len(roots) > 1 else "", root

    def _with_facts(self, log: StepLog) -> StepLog:
        modules = {
            str(id(module)): prefix + name or type(module).__name__
            for prefix, root in self._roots()
            for name, module in root.named_modules()
        }
        log.operations = [
            replace(each, module=modules.get(each.module, "").rstrip("."))
            for each in log.operations
        ]
        for operation in log.operations:
            for use in operation.uses:
                log.facts[use.storage] = StorageFacts(
                    self._storages.size(use.storage),
                    self._storages.device(use.storage),
                    self._kinds.get(use.storage),
                    self._storages.exists(use.storage),
                    self._names.get(use.storage, ""),
                )
        return log

    def _weight_device(self) -> str:
        """Return the device of the first weight: the one whose memory is planned."""
        leader = self._optimizers[self._leader or 0]
        return str(next(iter(_parameters(leader))).device)


def _parameters(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]
