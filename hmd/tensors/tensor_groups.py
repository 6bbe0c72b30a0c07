"""Groups of tensors: those that the same kernels use move together, as one contiguous transaction.

A grouped step is a trace of its own, with one tensor per group; a plan for it is a plan for the
members of each group in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from hmd.tensors.move_plan import WHOLE, Move
from hmd.tensors.tensor_trace import Ints, TensorTrace


@dataclass(frozen=True)
class TensorGroups:
    """A grouped step: ``trace``, and the members of each of its tensors, in order of bytes."""

    trace: TensorTrace
    members: tuple[tuple[int, ...], ...]
    member_bytes: Ints

    def expand(self, moves: Iterable[Move], page_bytes: int) -> Iterator[Move]:
        """Yield the moves of members for moves of groups, in pieces of pages."""
        taken: dict[tuple[int, int, int], int] = {}
        for kernel, group, source, target, size in moves:
            members = self.members[group]
            if size >= WHOLE:
                for tensor in members:
                    yield kernel, tensor, source, target, WHOLE
                continue
            # Pieces of one transaction follow each other through the members.
            key = (group, source, target)
            low = taken.get(key, 0)
            total = int(self.member_bytes[list(members)].sum())
            high = min(low + size, total)
            taken[key] = 0 if high + page_bytes > total else high
            yield from self._slice(kernel, members, (source, target), (low, high))

    def _slice(
        self, kernel: int, members: tuple[int, ...], ends: tuple[int, int], part: tuple[int, int]
    ) -> Iterator[Move]:
        """Yield the moves of the bytes ``part`` of some members that lie one after the other."""
        start = 0
        for tensor in members:
            end = start + int(self.member_bytes[tensor])
            size = min(end, part[1]) - max(start, part[0])
            if size > 0:
                yield kernel, tensor, *ends, size
            start = end


def group_tensors(trace: TensorTrace) -> TensorGroups:
    """Return the step with tensors grouped by kernels of use, modes, and persistence."""
    order = np.lexsort((trace.use_mode, trace.use_kernel, trace.use_tensor))
    owner = trace.use_tensor[order]
    uses = np.stack([trace.use_kernel[order], trace.use_mode[order]], axis=1)
    edges = np.searchsorted(owner, np.arange(trace.tensors + 1))
    found: dict[tuple[bytes, bool], list[int]] = {}
    for tensor in range(trace.tensors):
        key = (
            uses[edges[tensor] : edges[tensor + 1]].tobytes(),
            bool(trace.tensor_persistent[tensor]),
        )
        found.setdefault(key, []).append(tensor)
    members = tuple(tuple(each) for each in found.values())
    group = np.empty(trace.tensors, np.int64)
    for number, each in enumerate(members):
        group[list(each)] = number
    first = np.array([each[0] for each in members])
    kept = np.isin(trace.use_tensor, first)
    counts = np.bincount(trace.use_kernel[kept], minlength=trace.kernels)
    grouped = replace(
        trace,
        tensor_bytes=np.bincount(group, trace.tensor_bytes).astype(np.int64),
        tensor_kind=trace.tensor_kind[first],
        tensor_storage=np.arange(len(members)),
        tensor_persistent=trace.tensor_persistent[first],
        use_start=np.concatenate([[0], np.cumsum(counts)]),
        use_tensor=group[trace.use_tensor[kept]],
        use_mode=trace.use_mode[kept],
    )
    return TensorGroups(grouped, members, trace.tensor_bytes)
