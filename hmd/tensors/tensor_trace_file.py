"""Files of tensor traces: numpy archives with one array per column (docs: tensor trace format).

``read_trace`` also reads the archives of G10's traces (:mod:`hmd.tensors.g10_traces`).
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

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
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, Mapping):
                raise TensorTraceError(f"{path}: an array, not an archive of columns")
            arrays = {name: archive[name] for name in archive}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or "not a numpy archive"
        raise TensorTraceError(f"{path}: cannot be read: {reason}") from None
    try:
        return import_g10(arrays, path.stem) if is_g10(arrays) else _trace(arrays)
    except KeyError as error:
        raise TensorTraceError(f"{path}: has no column {error.args[0]}") from None
    except TensorTraceError as error:
        raise TensorTraceError(f"{path}: {error}") from None


def _trace(arrays: Mapping[str, Any]) -> TensorTrace:
    version = int(arrays["tensor_trace_format"])
    if version != FORMAT:
        raise TensorTraceError(f"format {version}; this hmd reads format {FORMAT}")
    return TensorTrace(
        name=str(arrays["name"]),
        source=str(arrays["source"]),
        ticks_per_second=int(arrays["ticks_per_second"]),
        kernel_names=tuple(str(name) for name in arrays["kernel_names"]),
        tensor_persistent=arrays["tensor_persistent"].astype(np.bool_),
        **{name: arrays[name].astype(np.int64) for name in _INTEGERS},
    )
