"""Spans of use: runs of uses of one tensor, so close together that it does not move in between.

A planner decides where a tensor is during each span, and whether it leaves the fastest tier in the
gap to the next one. The gap after the last span of a persistent tensor leads to the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hmd.tensors.tensor_trace import READ, WRITE, Ints, TensorTrace
from hmd.tensors.vitality import Vitality


@dataclass(frozen=True, slots=True)
class TensorSpans:
    """Spans, by tensor and then by kernel, columns (S,); gaps, columns (G,).

    A span is in use from kernel ``first`` to kernel ``last``; ``reads`` and ``writes`` count its
    uses. ``start_use`` (S + 1,) delimits the rows of ``use_kernel`` and ``use_mode`` of each span.
    A gap follows span ``before`` and precedes span ``after`` of the same tensor; ``wraps`` marks
    gaps that contain the end of the step.
    """

    tensor: Ints
    first: Ints
    last: Ints
    reads: Ints
    writes: Ints
    start_use: Ints
    use_kernel: Ints
    use_mode: Ints
    before: Ints
    after: Ints
    wraps: Ints

    def __len__(self) -> int:
        return len(self.tensor)

    def gap_kernels(self, kernels: int) -> Ints:
        """Return the number of kernels between the spans of each gap, (G,)."""
        between = self.first[self.after] - self.last[self.before] - 1
        return between + np.where(self.wraps > 0, kernels, 0)


def tensor_spans(trace: TensorTrace, life: Vitality, least_gap: int = 2) -> TensorSpans:
    """Return the spans of a trace; a gap has at least ``least_gap`` kernels."""
    order = np.lexsort((trace.use_kernel, trace.use_tensor))
    tensor, kernel = trace.use_tensor[order], trace.use_kernel[order]
    mode = trace.use_mode[order]
    # A kernel that runs after the death of a tensor finds nothing to keep.
    alive = (life.death[tensor] < 0) | (kernel < life.death[tensor])
    tensor, kernel, mode = tensor[alive], kernel[alive], mode[alive]
    new = np.ones(len(tensor), np.bool_)
    new[1:] = (tensor[1:] != tensor[:-1]) | (kernel[1:] - kernel[:-1] > least_gap)
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(tensor))
    reads = np.add.reduceat((mode & READ) > 0, starts, dtype=np.int64)
    writes = np.add.reduceat((mode & WRITE) > 0, starts, dtype=np.int64)
    owner, first, last = tensor[starts], kernel[starts], kernel[ends - 1]
    same = np.flatnonzero(owner[1:] == owner[:-1])
    rows = np.arange(len(starts))
    is_last = np.append(owner[1:] != owner[:-1], True)
    is_first = np.append(True, owner[1:] != owner[:-1])
    wrapping = trace.tensor_persistent[owner]
    tail, head = rows[is_last & wrapping], rows[is_first & wrapping]
    far = first[head] + trace.kernels - last[tail] > least_gap
    tail, head = tail[far], head[far]
    return TensorSpans(
        owner,
        first,
        last,
        reads,
        writes,
        np.append(starts, len(tensor)),
        kernel,
        mode,
        np.concatenate([same, tail]),
        np.concatenate([same + 1, head]),
        np.concatenate([np.zeros(len(same), np.int64), np.ones(len(tail), np.int64)]),
    )
