# SPDX-License-Identifier: MIT
"""A tensor trace: the kernels of one training step, their tensors and uses, as columns.

A row of tensors is one storage: views and in-place results are uses of the storage that they share.
A file is a numpy archive with one array per column (docs: tensor trace format).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hmd.base.errors import HmdError
from hmd.base.untrusted_files import DAMAGED, read_arrays, reason_of

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

    Recorded steps have more, empty where it is not known: ``tensor_names`` (T,) of parameters or of
    what computed a tensor; the module of each kernel, ``module_names[kernel_module[k]]``; its
    floating-point operations and bytes of operands, ``kernel_work`` (2, K); and ``device``, which
    the times are of.
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
    device: str = field(default="")
    tensor_names: tuple[str, ...] = field(default=())
    module_names: tuple[str, ...] = field(default=())
    kernel_module: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    kernel_work: Ints = field(default_factory=lambda: np.zeros((2, 0), np.int64))

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

    def tensor_name(self, tensor: int) -> str:
        """Return the name of a tensor, or its number and kind where it has none."""
        if self.tensor_names:
            return self.tensor_names[tensor]
        return f"{TensorKind(self.tensor_kind[tensor]).name.lower()} {tensor}"

    def kernel_label(self, kernel: int) -> str:
        """Return a kernel's operation, after its module where that is known."""
        operation = self.kernel_names[self.kernel_name[kernel]]
        module = self.module_names[self.kernel_module[kernel]] if self.module_names else ""
        return f"{module}: {operation}" if module else operation

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
        "kernel_name": kernels,
        "tensor_kind": tensors,
        "tensor_storage": tensors,
        "tensor_persistent": tensors,
        "use_start": kernels + 1,
        "use_mode": uses,
    }
    optional = {"tensor_names": tensors, "kernel_module": kernels}
    lengths |= {name: wanted for name, wanted in optional.items() if len(getattr(trace, name))}
    for column, wanted in lengths.items():
        found = len(getattr(trace, column))
        if found != wanted:
            return f"column {column} has {found} rows instead of {wanted}"
    work = trace.kernel_work
    if work.size and work.shape != (2, kernels):
        return f"kernel_work has shape {work.shape}, not (2, {kernels})"
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
        ("kernel_module", trace.kernel_module, len(trace.module_names) - 1),
    ):
        if values.size and (values.min() < 0 or values.max() > most):
            return f"column {column} has a value outside 0 to {most}"
    return ""


FORMAT: Final = 1
"""Version of the format, in the array ``tensor_trace_format``."""


def write_trace(trace: TensorTrace, path: Path) -> None:
    """Write a trace as a compressed archive; raises OSError where it cannot be written."""
    columns = {each.name: np.asarray(getattr(trace, each.name)) for each in fields(trace)}
    for name in ("kernel_names", "tensor_names", "module_names"):
        columns[name] = columns[name].astype(np.str_)  # empty ones, too
    with path.open("wb") as file:
        np.savez_compressed(
            file, allow_pickle=False, tensor_trace_format=np.int64(FORMAT), **columns
        )


def read_trace(path: Path) -> TensorTrace:
    """Return the trace in a file; raises TensorTraceError for one that holds none."""
    try:
        arrays = read_arrays(path)
    except DAMAGED as error:
        raise TensorTraceError(f"{path}: cannot be read: {reason_of(error)}") from None
    try:
        return _trace(arrays)
    except KeyError as error:
        raise TensorTraceError(f"{path}: has no column {error.args[0]}") from None
    except TensorTraceError as error:
        raise TensorTraceError(f"{path}: {error}") from None
    except DAMAGED as error:
        raise TensorTraceError(f"{path}: a column is not usable: {reason_of(error)}") from None


def _trace(arrays: Mapping[str, Any]) -> TensorTrace:
    version = int(_integers(arrays, "tensor_trace_format"))
    if version != FORMAT:
        raise TensorTraceError(f"format {version}; this hmd reads format {FORMAT}")
    optional = (
        each.default is not MISSING or each.default_factory is not MISSING
        for each in fields(TensorTrace)
    )
    columns: dict[str, Any] = {
        each.name: _READERS[str(each.type)](arrays, each.name)
        for each, may_lack in zip(fields(TensorTrace), optional, strict=True)
        if each.name in arrays or not may_lack
    }
    return TensorTrace(**columns)


def _integers(arrays: Mapping[str, Any], name: str) -> Ints:
    """Return an array of whole numbers; raises TensorTraceError for any other."""
    array = arrays[name]
    if array.dtype.kind not in "iu":
        raise TensorTraceError(f"column {name} has no whole numbers, but {array.dtype}")
    return np.asarray(array.astype(np.int64))


_READERS: Final[dict[str, Callable[[Mapping[str, Any], str], Any]]] = {
    "str": lambda arrays, name: str(arrays[name]),
    "int": lambda arrays, name: int(_integers(arrays, name)),
    "tuple[str, ...]": lambda arrays, name: tuple(str(each) for each in arrays[name]),
    "Ints": _integers,
    "Bools": lambda arrays, name: arrays[name].astype(np.bool_),
}
"""What reads a column, by the type of its field."""
