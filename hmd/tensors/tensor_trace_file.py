"""Files of tensor traces: numpy archives with one array per column (docs: tensor trace format).

``read_trace`` also reads the archives of G10's traces (:mod:`hmd.tensors.g10_traces`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hmd.numpy_archive import DAMAGED, read_arrays, reason_of
from hmd.tensors.g10_traces import import_g10, is_g10
from hmd.tensors.tensor_trace import TensorTrace, TensorTraceError

FORMAT: Final = 1
"""Version of the format, in the array ``tensor_trace_format``."""

_INTEGERS: Final = (
    "kernel_name",
    "kernel_ticks",
    "fault_ticks",
    "tensor_bytes",
    "tensor_kind",
    "tensor_storage",
    "use_start",
    "use_tensor",
    "use_mode",
)


def write_trace(trace: TensorTrace, path: Path) -> None:
    """Write a trace as a compressed archive; raises OSError where it cannot be written."""
    columns: dict[str, Any] = {name: getattr(trace, name) for name in _INTEGERS}
    with path.open("wb") as file:
        np.savez_compressed(
            file,
            tensor_trace_format=np.int64(FORMAT),
            name=np.str_(trace.name),
            source=np.str_(trace.source),
            ticks_per_second=np.int64(trace.ticks_per_second),
            kernel_names=np.array(trace.kernel_names, dtype=np.str_),
            tensor_persistent=trace.tensor_persistent,
            **columns,
        )


def read_trace(path: Path) -> TensorTrace:
    """Return the trace in a file of this format, or of G10's traces; raises TensorTraceError."""
    try:
        arrays = read_arrays(path)
    except DAMAGED as error:
        raise TensorTraceError(f"{path}: cannot be read: {reason_of(error)}") from None
    try:
        return import_g10(arrays, path.stem) if is_g10(arrays) else _trace(arrays)
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
    return TensorTrace(
        name=str(arrays["name"]),
        source=str(arrays["source"]),
        ticks_per_second=int(_integers(arrays, "ticks_per_second")),
        kernel_names=tuple(str(name) for name in arrays["kernel_names"]),
        tensor_persistent=arrays["tensor_persistent"].astype(np.bool_),
        **{name: _integers(arrays, name) for name in _INTEGERS},
    )


def _integers(arrays: Mapping[str, Any], name: str) -> npt.NDArray[np.int64]:
    """Return an array of whole numbers; raises TensorTraceError for any other."""
    array = arrays[name]
    if array.dtype.kind not in "iu":
        raise TensorTraceError(f"column {name} has no whole numbers, but {array.dtype}")
    return np.asarray(array.astype(np.int64))
