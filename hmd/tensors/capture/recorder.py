# SPDX-License-Identifier: MIT
"""Dispatch modes that log the operations of a step: forward, backward and optimizer alike.

Operators arrive below autograd (``torch.utils._python_dispatch``). What they read and write follows
from their schemas: an argument with a writable alias is written, a result that shares a storage
with an argument is a view. Views move no data and are no kernels.

Floating-point operations are counted by the formulas of :mod:`torch.utils.flop_counter`; what
these do not cover is bound by memory. The module of an operation is the one whose forward pass
runs, or ran when autograd created the node that now runs backward (sequence numbers of autograd).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from hmd.tensors.capture.step_log import Operation, StepLog, StepPhase, StorageUse
from hmd.tensors.memory_system import Roofline
from hmd.tensors.trace import READ, WRITE


class StorageTable:
    """Storages in the order in which they were first seen."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._references: list[StorageWeakRef] = []
        self._sizes: list[int] = []
        self._devices: list[str] = []

    def number(self, tensor: torch.Tensor) -> int | None:
        """Return a tensor's storage; None of a tensor without one, or without bytes."""
        try:
            storage = tensor.untyped_storage()
            size = int(storage.nbytes())
        except (NotImplementedError, RuntimeError):
            # Opaque tensors have no storage of their own.
            return None
        if not size:
            return None
        reference = StorageWeakRef(storage)
        number = self._numbers.get(reference.cdata)
        if number is None:
            number = len(self._references)
            self._numbers[reference.cdata] = number
            self._references.append(reference)
            self._sizes.append(size)
            self._devices.append(str(tensor.device))
        self._sizes[number] = max(self._sizes[number], size)
        return number

    def numbers(self, values: object) -> Iterator[int]:
        """Yield the storages of the tensors in nested lists, tuples and dictionaries."""
        for tensor in tensors_in(values):
            number = self.number(tensor)
            if number is not None:
                yield number

    def size(self, number: int) -> int:
        """Return the most bytes that a storage had."""
        return self._sizes[number]

    def device(self, number: int) -> str:
        """Return the device of a storage, as ``cuda:0``."""
        return self._devices[number]

    def exists(self, number: int) -> bool:
        """Return whether anything still refers to a storage."""
        return not self._references[number].expired()


def tensors_in(values: object) -> Iterable[torch.Tensor]:
    """Yield the tensors in nested lists, tuples and dictionaries; of sparse ones, their parts."""
    for each in pytree.tree_leaves(values):
        if not isinstance(each, torch.Tensor):
            continue
        if each.layout == torch.sparse_coo:
            yield from (each._indices(), each._values())
        elif each.layout in (torch.sparse_csr, torch.sparse_bsr):
            yield from (each.crow_indices(), each.col_indices(), each.values())
        else:
            yield each


def touched_range(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte of a tensor in its storage, and the byte after its last."""
    if not tensor.numel():
        return 0, 0
    item, offset = tensor.element_size(), int(tensor.storage_offset())
    last = sum(
        (int(size) - 1) * int(stride)
        for size, stride in zip(tensor.size(), tensor.stride(), strict=True)
    )
    return offset * item, (offset + last + 1) * item


_NEW: Final = ("new_empty", "new_zeros", "new_ones", "new_full")
_OVERWRITES: Final = {"copy_", "zero_", "fill_", "normal_", "uniform_", "bernoulli_", "random_"}
_RUNNING_STATISTICS: Final = {"running_mean", "running_var"}


class DispatchRecorder(TorchDispatchMode):
    """Logs operations between ``begin`` and ``end``, and passes the others through."""

    def __init__(self, storages: StorageTable) -> None:
        super().__init__()
        self._storages = storages
        self._clock = time.perf_counter_ns
        self._log: StepLog | None = None
        self._updating = False
        self._running: list[int] = []
        self._module_of_node: dict[int, int] = {}

    @property
    def operations(self) -> int:
        """How many operations the step has had so far; -1 outside a step."""
        return -1 if self._log is None else len(self._log.operations)

    def begin(self) -> None:
        """Begin a step."""
        _synchronize()
        self._clock = _clock()
        self._module_of_node.clear()
        self._log = StepLog()

    def end(self) -> StepLog:
        """Return the log of the step that began last."""
        log, self._log = self._log, None
        return log or StepLog()

    def update(self, *, begins: bool) -> None:
        """Note that an optimizer begins or ends its update."""
        self._updating = begins

    def module_begins(self, module: int) -> None:
        """Note that the forward pass of a module, by its identity, begins."""
        self._running.append(module)

    def module_ends(self) -> None:
        """Note that the forward pass that began last has ended."""
        if self._running:
            self._running.pop()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._log is None:
            return func(*args, **kwargs)
        given = list(self._argument_uses(func, args, kwargs))
        result, elapsed = self.timed(func, args, kwargs)
        self._add(func, given, result, elapsed, work_of(func, args, kwargs, result))
        return result

    def timed(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> tuple[Any, int]:
        """Return an operator's result and the nanoseconds that it took."""
        begin = self._clock()
        result = func(*args, **kwargs)
        _synchronize()
        return result, self._clock() - begin

    def _module(self) -> str:
        """Return the identity of the module that an operation belongs to, empty for none."""
        node = torch._C._current_autograd_node()
        if self._running:
            module = self._running[-1]
            # The node of an operation is created before the operation runs.
            self._module_of_node[torch.autograd._get_sequence_nr() - 1] = module
            return str(module)
        found = self._module_of_node.get(node._sequence_nr()) if node is not None else None
        return str(found) if found is not None else ""

    def _add(
        self, func: Any, given: list[StorageUse], result: Any, elapsed: int, work: tuple[int, int]
    ) -> None:
        assert self._log is not None
        name = _base_name(func)
        phase = self._phase()
        module = self._module()
        known = {use.storage for use in given}
        # What an operator makes of no tensor, the step does not compute: data and constants.
        is_input = not given and phase == StepPhase.FORWARD and not name.startswith("empty")
        birth = StepPhase.INPUT if is_input else phase
        born = []
        for tensor in tensors_in(result):
            number = self._storages.number(tensor)
            if number is None or number in known:
                continue
            known.add(number)
            self._log.births[number] = birth
            born.append(StorageUse(number, WRITE, 0, self._storages.size(number)))
        if name.startswith(("empty", "new_empty")):
            return
        writes = bool(born) or any(use.mode & WRITE for use in given)
        if not writes and any(True for _ in tensors_in(result)):
            return  # a view
        uses = _merged([*(use for use in given if use.mode), *born])
        if uses:
            self._log.operations.append(Operation(name, elapsed, phase, uses, work, module))

    def _argument_uses(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Iterator[StorageUse]:
        """Yield a use per tensor of the arguments, with mode 0 where only its shape matters."""
        name = _base_name(func)
        shape_only = name.endswith("_like") or name.startswith(_NEW)
        for argument, value in _bound(func, args, kwargs):
            writes = argument.alias_info is not None and argument.alias_info.is_write
            if argument.name in _RUNNING_STATISTICS and "backward" not in name:
                writes = True  # batch normalization updates them although its schema does not say
            replaces = writes and (argument.kwarg_only or name in _OVERWRITES)
            for tensor in tensors_in(value):
                number = self._storages.number(tensor)
                if number is None:
                    continue
                mode = 0 if shape_only else READ
                if writes:
                    whole = tensor.numel() * tensor.element_size() >= self._storages.size(number)
                    mode = WRITE if replaces and whole else READ | WRITE
                yield StorageUse(number, mode, *touched_range(tensor))

    def _phase(self) -> StepPhase:
        if self._updating:
            return StepPhase.UPDATE
        # Autograd runs with gradients off; activation checkpointing repeats its forward with them.
        if torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled():
            return StepPhase.BACKWARD
        return StepPhase.FORWARD


def work_of(func: Any, args: tuple[Any, ...], kwargs: Any, result: Any) -> tuple[int, int]:
    """Return the floating-point operations of an operator, and the bytes of its operands."""
    count = flop_registry.get(func.overloadpacket)
    operations = int(count(*args, **kwargs, out_val=result)) if count else 0
    size = sum(each.numel() * each.element_size() for each in tensors_in((args, kwargs, result)))
    return operations, size


def _synchronize() -> None:
    """Wait for the accelerator, if there is one, so that times are those of kernels."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _clock() -> Callable[[], int]:
    """Return what kernels are timed with, in nanoseconds.

    The time of a lone thread excludes what other programs take from its CPU.
    """
    alone = torch.get_num_threads() == 1 and not torch.accelerator.is_available()
    return time.thread_time_ns if alone else time.perf_counter_ns


def _base_name(func: Any) -> str:
    return str(func._schema.name).rpartition("::")[2]


def _bound(func: Any, args: tuple[Any, ...], kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the arguments of an operator's schema with their values."""
    for number, argument in enumerate(func._schema.arguments):
        if number < len(args):
            yield argument, args[number]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


def _merged(uses: list[StorageUse]) -> tuple[StorageUse, ...]:
    merged: dict[int, StorageUse] = {}
    for use in uses:
        old = merged.get(use.storage, use)
        merged[use.storage] = StorageUse(
            use.storage, old.mode | use.mode, min(old.first, use.first), max(old.end, use.end)
        )
    return tuple(merged.values())


class RooflineRecorder(DispatchRecorder):
    """Records operations with the times of a model, not those that they take here."""

    def __init__(self, storages: StorageTable, roofline: Roofline) -> None:
        super().__init__(storages)
        self._roofline = roofline

    def timed(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> tuple[Any, int]:
        """Return an operator's result and its modelled time in nanoseconds."""
        result = func(*args, **kwargs)
        return result, self._roofline.nanoseconds(*work_of(func, args, kwargs, result))
