# SPDX-License-Identifier: MIT
"""Lives of tensors: birth, death, inactive periods, reuse distances, and spans of use.

Definitions of G10 (arXiv:2310.09443, section 3). A tensor is born by the first kernel that uses it
and dies after the last kernel that reads it; one that no kernel reads dies after the kernel that
writes it. Persistent tensors neither are born nor die (-1), and their inactive periods include the
one from the last use of a step to the first use of the next.

Spans are runs of uses of one tensor, so close together that it does not move in between. The gap
after the last span of a persistent tensor leads to the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hmd.tensors.trace import READ, WRITE, Bools, Floats, Ints, TensorTrace


@dataclass(frozen=True, slots=True)
class InactivePeriods:
    """Inactive periods, ordered by tensor and then by start, looped ones last; shape (I,).

    Kernels ``start`` to ``end - 1`` do not use the tensor, ``end`` does; ``end <= start`` where the
    period is ``looped``, which is to say contains the end of the step. ``seconds`` sums the times
    of its kernels.
    """

    tensor: Ints
    start: Ints
    end: Ints
    looped: Bools
    seconds: Floats


@dataclass(frozen=True, slots=True)
class Vitality:
    """Lives of tensors; columns of shape (T,) unless noted.

    ``birth`` is the first kernel, ``death`` the first kernel that need not keep the tensor.
    ``first`` and ``last`` are the first and last kernel of any use (-1: unused). ``live_bytes`` and
    ``working_bytes``, (K,), are the bytes that are alive during each kernel, and that it uses.
    """

    birth: Ints
    death: Ints
    first: Ints
    last: Ints
    periods: InactivePeriods
    live_bytes: Ints
    working_bytes: Ints

    @property
    def peak_bytes(self) -> int:
        """Most bytes alive at once, persistent tensors included."""
        return int(self.live_bytes.max())


def vitality(trace: TensorTrace) -> Vitality:
    """Return the lives of a trace's tensors."""
    tensors, kernels = trace.tensors, trace.kernels
    persistent = trace.tensor_persistent
    tensor, kernel, mode = _uses_by_tensor(trace)
    first = np.full(tensors, -1, np.int64)
    last = np.full(tensors, -1, np.int64)
    first[tensor[::-1]] = kernel[::-1]
    last[tensor] = kernel
    birth = np.where(persistent, -1, first)
    reads = (mode & READ) > 0
    death = birth + 1
    np.maximum.at(death, tensor[reads], kernel[reads] + 1)
    death = np.where(persistent | (first < 0), -1, death)
    periods = _periods(trace, tensor, kernel, death)
    change = np.zeros(kernels + 1, np.int64)
    mortal = ~persistent & (birth >= 0)
    np.add.at(change, birth[mortal], trace.tensor_bytes[mortal])
    np.add.at(change, death[mortal], -trace.tensor_bytes[mortal])
    live = np.cumsum(change[:-1]) + int(trace.tensor_bytes[persistent].sum())
    pairs = np.unique(np.stack([trace.use_kernel, trace.use_tensor]), axis=1)
    working = np.bincount(pairs[0], trace.tensor_bytes[pairs[1]].astype(np.float64), kernels)
    return Vitality(birth, death, first, last, periods, live, working.astype(np.int64))


def _uses_by_tensor(trace: TensorTrace) -> tuple[Ints, Ints, Ints]:
    """Return tensor, kernel and mode of all uses, by tensor and then by kernel."""
    order = np.lexsort((trace.use_kernel, trace.use_tensor))
    return trace.use_tensor[order], trace.use_kernel[order], trace.use_mode[order]


def _periods(trace: TensorTrace, tensor: Ints, kernel: Ints, death: Ints) -> InactivePeriods:
    """Return the inactive periods; of intermediate tensors, those that end before death."""
    kernels = trace.kernels
    before = np.concatenate([[0], np.cumsum(trace.kernel_seconds)])
    same = tensor[1:] == tensor[:-1]
    gap = same & (kernel[1:] > kernel[:-1] + 1)
    gap &= trace.tensor_persistent[tensor[1:]] | (kernel[1:] < death[tensor[1:]])
    at = np.flatnonzero(gap)
    inner = (tensor[at], kernel[at] + 1, kernel[at + 1])
    ends = np.flatnonzero(np.append(~same, True)) if len(tensor) else np.empty(0, np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    wraps = trace.tensor_persistent[tensor[ends]]
    wraps &= (kernel[starts] > 0) | (kernel[ends] < kernels - 1)
    ends, starts = ends[wraps], starts[wraps]
    start, end = (kernel[ends] + 1) % kernels, kernel[starts]
    # A period that begins with the next step does not contain the end of a step.
    crosses = end < start
    owner = np.concatenate([inner[0], tensor[ends]])
    begin = np.concatenate([inner[1], start])
    finish = np.concatenate([inner[2], end])
    looped = np.concatenate([np.zeros(len(at), np.bool_), crosses])
    seconds = before[finish] - before[begin] + np.where(looped, before[-1], 0.0)
    order = np.lexsort((np.concatenate([np.zeros(len(at)), np.ones(len(ends))]), owner))
    return InactivePeriods(owner[order], begin[order], finish[order], looped[order], seconds[order])


def reuse_distances(trace: TensorTrace) -> Ints:
    """Return the bytes of distinct tensors used between successive uses of a tensor, and its own.

    Shape (2, R). LRU stack distances (Mattson et al., 1970) by kernel: those of the kernels in
    between.
    """
    size = trace.tensor_bytes
    previous: dict[int, int] = {}
    distances: list[tuple[int, int]] = []
    for kernel in range(trace.kernels):
        for tensor in set(trace.uses(kernel).tolist()):
            if tensor in previous:
                low = trace.use_start[previous[tensor] + 1]
                between = np.unique(trace.use_tensor[low : trace.use_start[kernel]])
                distances.append((int(size[between].sum()), int(size[tensor])))
            previous[tensor] = kernel
    return np.array(distances, np.int64).reshape(-1, 2).T


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


def tensor_spans(trace: TensorTrace, life: Vitality, least_gap: int = 2) -> TensorSpans:
    """Return the spans of a trace; a gap has at least ``least_gap`` kernels."""
    tensor, kernel, mode = _uses_by_tensor(trace)
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
