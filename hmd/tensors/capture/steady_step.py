"""The tensor trace of recorded steps: the structure of one, and kernel times over those like it."""

from __future__ import annotations

from collections import Counter

import numpy as np

from hmd.tensors.capture.operation_log import Operation, StepLog, StepPhase
from hmd.tensors.tensor_trace import READ, WRITE, Ints, TensorKind, TensorTrace, TensorTraceError

_BORN_KINDS = {
    StepPhase.INPUT: TensorKind.INPUT,
    StepPhase.FORWARD: TensorKind.ACTIVATION,
    StepPhase.BACKWARD: TensorKind.GRADIENT,
    StepPhase.UPDATE: TensorKind.WORKSPACE,
}


def steady_trace(logs: list[StepLog], device: str, *, name: str, source: str) -> TensorTrace:
    """Return the trace of the last of the steps that are alike most often.

    Kernel times are medians over the steps that are like it. Raises TensorTraceError where no
    operation used a storage on the device.
    """
    steps = [log.on_device(device) for log in logs]
    if not steps or not steps[-1].operations:
        raise TensorTraceError(f"{name}: the step has no operations on {device}")
    signatures = [log.signature() for log in steps]
    common = Counter(signatures).most_common(1)[0][0]
    alike = [log for log, signature in zip(steps, signatures, strict=True) if signature == common]
    times = np.array([[each.nanoseconds for each in log.operations] for log in alike])
    repeats = f"{len(alike)} of {len(logs)} steps alike"
    ticks = np.rint(np.median(times, axis=0)).astype(np.int64)
    return _trace(alike[-1], ticks, name, f"{source}, {repeats}")


def _trace(log: StepLog, ticks: Ints, name: str, source: str) -> TensorTrace:
    storages = list(dict.fromkeys(use.storage for each in log.operations for use in each.uses))
    row = {storage: number for number, storage in enumerate(storages)}
    names = tuple(dict.fromkeys(each.name for each in log.operations))
    code = {each: number for number, each in enumerate(names)}
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
        use_start=np.cumsum([0, *(len(each.uses) for each in log.operations)]),
        use_tensor=np.array([row[use.storage] for use in uses], np.int64),
        use_mode=np.array([use.mode for use in uses], np.int64),
    )


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
    """Return whether a storage lives before and after the step."""
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
