# SPDX-License-Identifier: MIT
"""Recomputation: a step in which kernels run again, so that their results need not be kept.

A recomputation ``(kernel, tensor)`` frees the tensor after its last use before the kernel, and runs
the kernel that wrote it again just before. The tensor's later uses are of a new tensor. What the
repeated kernel reads must exist then, so its inputs live longer where they need to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hmd.tensors.move_plan import MovePlanError
from hmd.tensors.trace import READ, WRITE, Ints, TensorTrace

Recomputation = tuple[int, int]
"""Kernel of the original step, and tensor."""

RANDOM_KERNELS = ("native_dropout", "rand", "bernoulli", "normal", "uniform")
"""Kernels whose names begin so do not return the same again."""


def producers(trace: TensorTrace) -> Ints:
    """Return the kernel that can run again for each tensor, (T,); -1 where there is none.

    It is the tensor's only writer, reads nothing that it or a later kernel writes, and is not
    random.
    """
    kernels, tensors, modes = trace.use_kernel, trace.use_tensor, trace.use_mode
    writes = (modes & WRITE) > 0
    count = np.bincount(tensors[writes], minlength=trace.tensors)
    last_write = np.full(trace.tensors, -1, np.int64)
    np.maximum.at(last_write, tensors[writes], kernels[writes])
    spoilt = np.zeros(trace.kernels, np.bool_)
    spoilt[kernels[((modes & READ) > 0) & (last_write[tensors] >= kernels)]] = True
    spoilt |= np.array([name.startswith(RANDOM_KERNELS) for name in trace.kernel_names])[
        trace.kernel_name
    ]
    found = np.where((count == 1) & ~trace.tensor_persistent, last_write, -1)
    alone = np.bincount(kernels[writes], minlength=trace.kernels) == 1
    usable = (found >= 0) & ~spoilt[found] & alone[found]
    return np.where(usable, found, -1)


def recomputed_step(trace: TensorTrace, chosen: Sequence[Recomputation]) -> TensorTrace:
    """Return the step with recomputations; new tensors follow the old ones, in their order.

    Recomputations before one kernel run in the order given. Raises MovePlanError for one that
    cannot be carried out.
    """
    if not chosen:
        return trace
    able = producers(trace)
    rows: list[tuple[int, list[int], list[int]]] = []
    current = np.arange(trace.tensors)
    before: dict[int, list[tuple[int, int]]] = {}
    for number, (kernel, tensor) in enumerate(chosen):
        _check(trace, able, kernel, tensor)
        before.setdefault(kernel, []).append((tensor, trace.tensors + number))
    for kernel in range(trace.kernels):
        for tensor, new in before.get(kernel, ()):
            rows.append(_repeated(trace, int(able[tensor]), current, tensor, new))
            current[tensor] = new
        part = slice(int(trace.use_start[kernel]), int(trace.use_start[kernel + 1]))
        used = current[trace.use_tensor[part]].tolist()
        rows.append((kernel, used, trace.use_mode[part].tolist()))
    source = np.array([kernel for kernel, _, _ in rows])
    origin = np.concatenate([np.arange(trace.tensors), [tensor for _, tensor in chosen]])
    return replace(
        trace,
        kernel_name=trace.kernel_name[source],
        kernel_ticks=trace.kernel_ticks[source],
        fault_ticks=trace.fault_ticks[:, source] if trace.fault_ticks.size else trace.fault_ticks,
        tensor_names=tuple(trace.tensor_names[each] for each in origin)
        if trace.tensor_names
        else (),
        kernel_module=trace.kernel_module[source] if trace.module_names else trace.kernel_module,
        kernel_work=trace.kernel_work[:, source] if trace.kernel_work.size else trace.kernel_work,
        tensor_bytes=trace.tensor_bytes[origin],
        tensor_kind=trace.tensor_kind[origin],
        tensor_storage=trace.tensor_storage[origin],
        tensor_persistent=trace.tensor_persistent[origin],
        use_start=np.cumsum([0, *(len(used) for _, used, _ in rows)]),
        use_tensor=np.array([each for _, used, _ in rows for each in used], np.int64),
        use_mode=np.array([each for _, _, modes in rows for each in modes], np.int64),
    )


def _check(trace: TensorTrace, able: Ints, kernel: int, tensor: int) -> None:
    place = f"{trace.name}: kernel {kernel}, tensor {tensor}"
    if not 0 <= kernel < trace.kernels or not 0 <= tensor < trace.tensors:
        raise MovePlanError(f"{place}: no such kernel or tensor to recompute")
    if able[tensor] < 0:
        raise MovePlanError(f"{place}: no kernel can compute it again")
    if kernel <= able[tensor]:
        raise MovePlanError(f"{place}: computed again before kernel {able[tensor]} computes it")


def _repeated(
    trace: TensorTrace, kernel: int, current: Ints, tensor: int, new: int
) -> tuple[int, list[int], list[int]]:
    """Return a kernel's uses when it runs again: current inputs, and the new tensor."""
    part = slice(int(trace.use_start[kernel]), int(trace.use_start[kernel + 1]))
    uses = trace.use_tensor[part]
    used = [new if each == tensor else int(current[each]) for each in uses.tolist()]
    return kernel, used, trace.use_mode[part].tolist()
