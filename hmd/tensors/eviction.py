# SPDX-License-Identifier: MIT
"""What to evict: farthest next use first, in parts of tensors, over a step that repeats.

Belady's choice (IBM Systems Journal, 1966) at the granularity of bytes: where a kernel needs more
room than the fastest tier has, the resident tensors with the farthest next use leave, only as much
as is needed. Two steps are walked and the second is reported, so that it continues where the first
ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hmd.base.numba_kernels import generic_kernel
from hmd.tensors.lifetimes import Vitality
from hmd.tensors.trace import READ, Ints, TensorTrace


@dataclass(frozen=True, slots=True)
class StepUses:
    """Uses of a step, one per kernel and tensor, with the kernel of the next use; shape (V,).

    ``next_kernel`` counts on into the next step for persistent tensors. ``alive_until`` (T,) is the
    first kernel that need not keep a tensor, the number of kernels for persistent ones.
    """

    start: Ints
    tensor: Ints
    next_kernel: Ints
    alive_until: Ints


@dataclass(frozen=True, slots=True)
class EvictedParts:
    """Parts of tensors that are away between two uses; shape (E,).

    Bytes ``size`` of ``tensor`` may leave from kernel ``start`` on, must have left when kernel
    ``needed`` begins, and are used again by kernel ``end``. Kernels count from the start of the
    step in which the part leaves, so that ``end`` may lie in the next one.
    """

    tensor: Ints
    start: Ints
    end: Ints
    needed: Ints
    size: Ints


def step_uses(trace: TensorTrace, life: Vitality) -> StepUses:
    """Return the uses of a trace, each kernel and tensor once."""
    kernels = trace.kernels
    key = np.unique(trace.use_tensor * kernels + trace.use_kernel)
    tensor, kernel = key // kernels, key % kernels
    following = np.append(kernel[1:], 0)
    same = np.append(tensor[1:] == tensor[:-1], False)
    first = kernel[np.searchsorted(tensor, tensor)]
    next_kernel = np.where(same, following, first + kernels)
    order = np.lexsort((tensor, kernel))
    start = np.searchsorted(kernel[order], np.arange(kernels + 1))
    alive = np.where(trace.tensor_persistent, kernels, np.maximum(life.death, life.last + 1))
    return StepUses(start, tensor[order], next_kernel[order], alive)


def written_first(trace: TensorTrace) -> Ints:
    """Return the tensors whose first use of a step writes without reading: they carry no data."""
    order = np.lexsort((trace.use_mode, trace.use_kernel, trace.use_tensor))
    tensors, at = np.unique(trace.use_tensor[order], return_index=True)
    reads = (trace.use_mode[order][at] & READ) > 0
    return np.asarray(tensors[~reads], np.int64)


def choose_evictions(
    trace: TensorTrace, uses: StepUses, allocated: Ints, capacity: int
) -> EvictedParts:
    """Return what to evict so that ``capacity`` bytes suffice for every kernel.

    ``allocated`` (T,) is the kernel with which each intermediate takes room, -1 for persistent
    tensors and unused ones.
    """
    order = np.argsort(allocated, kind="stable")
    order = order[allocated[order] >= 0]
    begin = np.searchsorted(allocated[order], np.arange(trace.kernels + 1))
    ends = np.argsort(uses.alive_until, kind="stable")
    ends = ends[~trace.tensor_persistent[ends]]
    end_start = np.searchsorted(uses.alive_until[ends], np.arange(trace.kernels + 2))
    rows = np.zeros((max(64 * trace.kernels, 4096), 5), np.int64)
    count = _walk(
        (uses.start, uses.tensor, uses.next_kernel),
        (begin, order, end_start, ends),
        trace.tensor_bytes,
        capacity,
        rows,
    )
    found = rows[:count]
    found = found[found[:, 3] >= trace.kernels]
    shift = found[:, 1] // trace.kernels * trace.kernels
    tensor, start, end, needed, size = found.T.copy()
    return EvictedParts(tensor, start - shift, end - shift, needed - shift, size)


@generic_kernel
def _walk(uses: Any, lives: Any, size: Any, capacity: int, rows: Any) -> int:
    """Walk two steps; ``rows`` get tensor, start, end, needed and bytes. Returns their number."""
    use_start, use_tensor, use_next = uses
    born_start, born, end_start, ending = lives
    kernels, tensors = len(use_start) - 1, len(size)
    resident = np.zeros(tensors, np.int64)
    last = np.full(tensors, -1, np.int64)
    following = np.full(tensors, -1, np.int64)
    total, count = np.int64(0), 0
    for now in range(2 * kernels):
        kernel = now % kernels
        for row in range(end_start[kernel], end_start[kernel + 1]):
            total -= resident[ending[row]]
            resident[ending[row]] = 0
        if kernel == 0:
            for row in range(end_start[kernels], end_start[kernels + 1]):
                total -= resident[ending[row]]
                resident[ending[row]] = 0
        for row in range(born_start[kernel], born_start[kernel + 1]):
            tensor = born[row]
            total += size[tensor] - resident[tensor]
            resident[tensor] = size[tensor]
            last[tensor], following[tensor] = now, -1
        for row in range(use_start[kernel], use_start[kernel + 1]):
            tensor = use_tensor[row]
            total += size[tensor] - resident[tensor]
            resident[tensor] = size[tensor]
            last[tensor] = now
            following[tensor] = now - kernel + use_next[row]
        while total > capacity:
            victim, farthest = -1, now + 1
            for tensor in range(tensors):
                if following[tensor] > farthest and resident[tensor] > 0 and last[tensor] < now:
                    victim, farthest = tensor, following[tensor]
            if victim < 0 or count == len(rows):
                break
            part = min(resident[victim], total - capacity)
            resident[victim] -= part
            total -= part
            rows[count, 0], rows[count, 1] = victim, last[victim] + 1
            rows[count, 2], rows[count, 3] = following[victim], now
            rows[count, 4] = part
            count += 1
    return count
