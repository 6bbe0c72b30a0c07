# SPDX-License-Identifier: MIT
"""Recorded training steps: the operations that the dispatcher reported, and their tensor trace.

Storages are numbers that stay the same over the steps of a recording; an operation lists each of
its storages once. The trace has the structure of one step, and kernel times over those like it.
Needs no PyTorch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np

from hmd.tensors.trace import READ, WRITE, Ints, TensorKind, TensorTrace, TensorTraceError


class StepPhase(IntEnum):
    """What a step does when an operation runs, or when a storage is allocated."""

    INPUT = 0
    FORWARD = 1
    BACKWARD = 2
    UPDATE = 3


@dataclass(frozen=True, slots=True)
class StorageUse:
    """One use: the mode is READ, WRITE or both, in ``bytes`` ``first`` to ``end``."""

    storage: int
    mode: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Operation:
    """A kernel: its name without namespace, its time, and what it uses.

    ``work`` counts its floating-point operations and the bytes of its operands; ``module`` is the
    module of the program that it belongs to.
    """

    name: str
    nanoseconds: int
    phase: StepPhase
    uses: tuple[StorageUse, ...]
    work: tuple[int, int] = (0, 0)
    module: str = ""


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """What is known of a storage after the step.

    ``kind`` and ``name`` are known of weights, gradients and optimizer state, which the program's
    modules and optimizers name. ``survives``: the storage still exists after the step.
    """

    size: int
    device: str
    kind: TensorKind | None
    survives: bool
    name: str = ""


StepSignature = tuple[tuple[str, tuple[tuple[int, int], ...]], ...]
"""Per operation its name, and the size and mode of each of its uses."""


@dataclass(slots=True)
class StepLog:
    """One step: operations in order, and the storages that were allocated in it, by phase."""

    operations: list[Operation] = field(default_factory=list)
    births: dict[int, StepPhase] = field(default_factory=dict)
    facts: dict[int, StorageFacts] = field(default_factory=dict)

    def on_device(self, device: str) -> StepLog:
        """Return the step without the uses of storages on other devices."""
        operations = []
        for each in self.operations:
            uses = tuple(use for use in each.uses if self.facts[use.storage].device == device)
            if uses:
                operations.append(replace(each, uses=uses))
        return StepLog(operations, self.births, self.facts)

    def signature(self) -> StepSignature:
        """Return what two steps have in common that do the same: names, sizes and modes."""
        return tuple(
            (each.name, tuple((self.facts[use.storage].size, use.mode) for use in each.uses))
            for each in self.operations
        )


_BORN_KINDS = {
    StepPhase.INPUT: TensorKind.INPUT,
    StepPhase.FORWARD: TensorKind.ACTIVATION,
    StepPhase.BACKWARD: TensorKind.GRADIENT,
    StepPhase.UPDATE: TensorKind.WORKSPACE,
}


def steady_trace(
    logs: list[StepLog], device: str, *, name: str, source: str, timed_on: str = ""
) -> TensorTrace:
    """Return the trace of the last of the steps that are alike most often.

    Of several kinds as frequent, it is of the one that allocates most. Kernel times are medians
    over the steps that are like it, of the device ``timed_on``. Raises TensorTraceError where no
    operation used a storage on the device.
    """
    steps = [log.on_device(device) for log in logs]
    if not steps or not steps[-1].operations:
        raise TensorTraceError(f"{name}: the step has no operations on {device}")
    signatures = [log.signature() for log in steps]
    frequent = Counter(signatures)
    common = max(frequent, key=lambda each: (frequent[each], _allocated_bytes(each)))
    alike = [log for log, signature in zip(steps, signatures, strict=True) if signature == common]
    times = np.array([[each.nanoseconds for each in log.operations] for log in alike])
    repeats = f"{len(alike)} of {len(logs)} steps alike"
    ticks = np.rint(np.median(times, axis=0)).astype(np.int64)
    trace = _trace(alike[-1], ticks, name, f"{source}, {repeats}")
    return replace(trace, device=timed_on)


def _allocated_bytes(signature: StepSignature) -> int:
    return sum(size for _, uses in signature for size, mode in uses if mode == WRITE)


def _trace(log: StepLog, ticks: Ints, name: str, source: str) -> TensorTrace:
    storages = list(dict.fromkeys(use.storage for each in log.operations for use in each.uses))
    row = {storage: number for number, storage in enumerate(storages)}
    names = tuple(dict.fromkeys(each.name for each in log.operations))
    code = {each: number for number, each in enumerate(names)}
    modules = tuple(dict.fromkeys(each.module for each in log.operations))
    module = {each: number for number, each in enumerate(modules)}
    uses = [use for each in log.operations for use in each.uses]
    touched = touched_bytes(log.operations)
    written = {use.storage for use in uses if use.mode & WRITE}
    reread = {use.storage for use in uses if use.mode & READ}
    kinds = {
        each: _kind(log, each, is_written=each in written, is_read=each in reread)
        for each in storages
    }
    return TensorTrace(
        name=name,
        source=source,
        ticks_per_second=1_000_000_000,
        kernel_names=names,
        kernel_name=np.array([code[each.name] for each in log.operations], np.int64),
        kernel_ticks=ticks,
        fault_ticks=np.zeros((0, 0), np.int64),
        tensor_bytes=np.array(
            [
                touched[each] if kinds[each] == TensorKind.INPUT else log.facts[each].size
                for each in storages
            ],
            np.int64,
        ),
        tensor_kind=np.array([kinds[each] for each in storages], np.int64),
        tensor_storage=np.array(storages, np.int64),
        tensor_persistent=np.array([_persists(log, each) for each in storages], np.bool_),
        tensor_names=_names(log, storages, kinds),
        module_names=modules,
        kernel_module=np.array([module[each.module] for each in log.operations], np.int64),
        kernel_work=np.array([each.work for each in log.operations], np.int64).T,
        use_start=np.cumsum([0, *(len(each.uses) for each in log.operations)]),
        use_tensor=np.array([row[use.storage] for use in uses], np.int64),
        use_mode=np.array([use.mode for use in uses], np.int64),
    )


def _names(log: StepLog, storages: list[int], kinds: dict[int, TensorKind]) -> tuple[str, ...]:
    """Return the name of each storage: its parameter's, or that of what first writes or uses it."""
    first: dict[int, Operation] = {}
    for each in log.operations:
        for use in each.uses:
            first.setdefault(use.storage, each)
    names = []
    for storage in storages:
        by = first[storage]
        made = f"{by.module}: {by.name}" if by.module else by.name
        kind = kinds[storage].name.lower()
        names.append(log.facts[storage].name or f"{kind} of {made}")
    return tuple(names)


def touched_bytes(operations: list[Operation]) -> dict[int, int]:
    """Return the bytes between the first and the last that operations use, per storage.

    A batch is often a slice of a data set in one storage, of which the step uses that slice.
    """
    first: dict[int, int] = {}
    end: dict[int, int] = {}
    for each in operations:
        for use in each.uses:
            first[use.storage] = min(first.get(use.storage, use.first), use.first)
            end[use.storage] = max(end.get(use.storage, use.end), use.end)
    return {storage: end[storage] - low for storage, low in first.items()}


def _persists(log: StepLog, storage: int) -> bool:
    return storage not in log.births and log.facts[storage].survives


def _kind(log: StepLog, storage: int, *, is_written: bool, is_read: bool) -> TensorKind:
    known = log.facts[storage].kind
    if known is not None:
        return known
    if storage not in log.births:
        # What a step changes and keeps without an optimizer's knowledge, as averages of weights.
        keeps = is_written and _persists(log, storage)
        return TensorKind.OPTIMIZER if keeps else TensorKind.INPUT
    return _BORN_KINDS[log.births[storage]] if is_read else TensorKind.WORKSPACE
