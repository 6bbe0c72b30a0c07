# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest

from hmd.tensors.capture.step_log import (
    Operation,
    StepLog,
    StepPhase,
    StorageFacts,
    StorageUse,
    steady_trace,
)
from hmd.tensors.trace import READ, WRITE, TensorKind, TensorTrace, TensorTraceError

WEIGHTS, DATA, HIDDEN, GRADIENTS, SPARE, REMOTE = range(6)


def use(storage: int, mode: int, first: int = 0, end: int = 1024) -> StorageUse:
    return StorageUse(storage, mode, first, end)


def step(forward_ns: int = 100, name: str = "mm") -> StepLog:
    """Return a step of three operations; the data is a slice of a data set of 1 MiB."""
    forward, backward, update = StepPhase.FORWARD, StepPhase.BACKWARD, StepPhase.UPDATE
    operations = [
        Operation(
            name,
            forward_ns,
            forward,
            (
                use(WEIGHTS, READ),
                use(DATA, READ, 4096, 5120),
                use(HIDDEN, WRITE),
                use(SPARE, WRITE),
                use(REMOTE, READ),
            ),
        ),
        Operation("mm", 50, backward, (use(HIDDEN, READ), use(GRADIENTS, WRITE))),
        Operation("remote", 7, update, (use(REMOTE, READ | WRITE),)),
        Operation("add_", 20, update, (use(GRADIENTS, READ), use(WEIGHTS, READ | WRITE))),
    ]
    births = {HIDDEN: forward, SPARE: forward, GRADIENTS: backward}
    facts = {
        storage: StorageFacts(1024, "cuda:0", None, False) for storage in (HIDDEN, GRADIENTS, SPARE)
    }
    facts[WEIGHTS] = StorageFacts(1024, "cuda:0", TensorKind.WEIGHT, True)
    facts[DATA] = StorageFacts(1 << 20, "cuda:0", None, True)
    facts[REMOTE] = StorageFacts(8, "cpu", TensorKind.OPTIMIZER, True)
    return StepLog(operations, births, facts)


def traced(*logs: StepLog) -> TensorTrace:
    return steady_trace(list(logs), "cuda:0", name="made", source="test")


def test_steady_trace_of_steps_alike_has_median_times() -> None:
    trace = traced(step(100), step(900), step(130))
    assert trace.kernel_ticks.tolist() == [130, 50, 20]
    assert trace.source == "test, 3 of 3 steps alike"


def test_steady_trace_ignores_step_that_differs() -> None:
    trace = traced(step(100), step(900, name="other"), step(130))
    assert trace.kernel_ticks.tolist() == [115, 50, 20]
    assert trace.source == "test, 2 of 3 steps alike"


def test_steady_trace_kinds_follow_from_births_and_facts() -> None:
    trace = traced(step())
    found = dict(zip(trace.tensor_storage.tolist(), trace.tensor_kind.tolist(), strict=True))
    assert found == {
        WEIGHTS: TensorKind.WEIGHT,
        DATA: TensorKind.INPUT,
        HIDDEN: TensorKind.ACTIVATION,
        SPARE: TensorKind.WORKSPACE,
        GRADIENTS: TensorKind.GRADIENT,
    }


def test_steady_trace_storages_that_outlive_the_step_persist() -> None:
    trace = traced(step())
    persistent = set(trace.tensor_storage[trace.tensor_persistent].tolist())
    assert persistent == {WEIGHTS, DATA}


def test_steady_trace_input_has_bytes_that_step_touches() -> None:
    trace = traced(step())
    assert trace.tensor_bytes.tolist() == [1024] * 5


def test_steady_trace_leaves_out_other_devices() -> None:
    trace = traced(step())
    assert REMOTE not in trace.tensor_storage
    assert "remote" not in trace.kernel_names


def test_steady_trace_of_device_without_operations_refused() -> None:
    with pytest.raises(TensorTraceError, match="made: the step has no operations on cuda:1"):
        steady_trace([step()], "cuda:1", name="made", source="test")
