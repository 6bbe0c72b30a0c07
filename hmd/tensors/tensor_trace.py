"""A tensor trace: the kernels of one training step, their tensors and uses, as columns.

The file format is in :mod:`hmd.tensors.tensor_trace_file`. A row of tensors is one storage: views
and in-place results are uses of the storage that they share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.errors import HmdError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

READ: Final = 1
WRITE: Final = 2
"""Bits of a use; 3 is in place."""


class TensorKind(IntEnum):
    """What a tensor is for. Weights and optimizer state persist from step to step."""

    WEIGHT = 0
    GRADIENT = 1
    OPTIMIZER = 2
    ACTIVATION = 3
    WORKSPACE = 4
    INPUT = 5


class TensorTraceError(HmdError):
    """A tensor trace contradicts itself or cannot be read; the line names what is wrong."""


@dataclass(frozen=True)
class TensorTrace:
    """K kernels, T tensors and U uses of one step.

    ``kernel_ticks`` (K,) are times with all tensors in the fastest tier, in 1/``ticks_per_second``.
    ``fault_ticks`` (2, K) are profiled times with page faults on the outputs, and on inputs and
    outputs; empty where they were not profiled. ``tensor_bytes`` (T,); ``tensor_kind`` (T,) holds
    :class:`TensorKind`; ``tensor_storage`` (T,) identifies the storage in the traced program.
    ``tensor_persistent`` (T,) marks tensors that live before and after the step. The uses of kernel
    k are rows ``use_start[k]:use_start[k + 1]`` of ``use_tensor`` and ``use_mode`` (READ, WRITE).
    """

    name: str
    ticks_per_second: int
    kernel_names: tuple[str, ...]
    kernel_name: Ints
    kernel_ticks: Ints
    fault_ticks: Ints
    tensor_bytes: Ints
    tensor_kind: Ints
    tensor_storage: Ints
    tensor_persistent: Bools
    use_start: Ints
    use_tensor: Ints
    use_mode: Ints
    source: str = field(default="")

    def __post_init__(self) -> None:
        """Raise TensorTraceError where columns do not fit together."""
        problem = _problem(self)
        if problem:
            raise TensorTraceError(f"tensor trace {self.name}: {problem}")

    @property
    def kernels(self) -> int:
        """Number of kernels."""
        return len(self.kernel_ticks)

    @property
    def tensors(self) -> int:
        """Number of tensors."""
        return len(self.tensor_bytes)

    @property
    def ideal_ticks(self) -> int:
        """Duration of the step with unlimited fast memory."""
        return int(self.kernel_ticks.sum())

    @property
    def ideal_seconds(self) -> float:
        """Duration of the step with unlimited fast memory, in seconds."""
        return self.ideal_ticks / self.ticks_per_second

    @cached_property
    def kernel_seconds(self) -> Floats:
        """Times of the kernels, (K,), in seconds."""
        return self.kernel_ticks / self.ticks_per_second

    @cached_property
    def use_kernel(self) -> Ints:
        """The kernel of each use, (U,)."""
        return np.repeat(np.arange(self.kernels), np.diff(self.use_start))

    def uses(self, kernel: int) -> Ints:
        """Return the tensors that a kernel uses."""
        return self.use_tensor[self.use_start[kernel] : self.use_start[kernel + 1]]


def _problem(trace: TensorTrace) -> str:
    """Return what contradicts itself in a trace, empty if nothing does."""
    kernels, tensors, uses = trace.kernels, trace.tensors, len(trace.use_tensor)
    if not kernels or not tensors:
        return "it has no kernels or no tensors"
    if trace.ticks_per_second <= 0:
        return "ticks_per_second is not positive"
    lengths = {
        "kernel_name": (len(trace.kernel_name), kernels),
        "tensor_kind": (len(trace.tensor_kind), tensors),
        "tensor_storage": (len(trace.tensor_storage), tensors),
        "tensor_persistent": (len(trace.tensor_persistent), tensors),
        "use_start": (len(trace.use_start), kernels + 1),
        "use_mode": (len(trace.use_mode), uses),
    }
    for column, (found, wanted) in lengths.items():
        if found != wanted:
            return f"column {column} has {found} rows instead of {wanted}"
    if trace.fault_ticks.size and trace.fault_ticks.shape != (2, kernels):
        return f"fault_ticks has shape {trace.fault_ticks.shape}, not (2, {kernels})"
    if (trace.kernel_ticks < 0).any():
        return f"kernel {int(np.argmin(trace.kernel_ticks))} has a negative time"
    if (trace.tensor_bytes <= 0).any():
        return f"tensor {int(np.argmin(trace.tensor_bytes))} has no bytes"
    ends = trace.use_start
    if ends[0] != 0 or ends[-1] != uses or (np.diff(ends) < 0).any():
        return "use_start does not ascend from 0 to the number of uses"
    for column, values, most in (
        ("use_tensor", trace.use_tensor, tensors - 1),
        ("kernel_name", trace.kernel_name, len(trace.kernel_names) - 1),
        ("tensor_kind", trace.tensor_kind, max(TensorKind)),
        ("use_mode", trace.use_mode - 1, (READ | WRITE) - 1),
    ):
        if values.size and (values.min() < 0 or values.max() > most):
            return f"column {column} has a value outside 0 to {most}"
    return ""
