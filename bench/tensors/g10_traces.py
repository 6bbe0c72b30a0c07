# SPDX-License-Identifier: MIT
"""The kernel traces that come with G10 (MICRO 2023, arXiv:2310.09443).

Each archive has the columns of one iteration and a table of inactive periods; the format is
described next to the data. Times become cycles at 1.2 GHz, as in the publication.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import numpy as np

from hmd.tensors.trace import TensorKind, TensorTrace

CYCLES_PER_SECOND: Final = 1_200_000_000
DATA_VARIABLE: Final = "HMD_G10_DATA"
"""Environment variable with the folder of the archives."""


def g10_folder() -> Path:
    """Return the folder of the archives: ``HMD_G10_DATA``, or ``../shared/data/g10``.

    The default is relative to the checkout.
    """
    default = Path(__file__).resolve().parents[3] / "shared/data/g10"
    return Path(os.environ.get(DATA_VARIABLE) or default)


def load_g10(name: str) -> TensorTrace:
    """Return one of the traces; raises OSError without the data."""
    with np.load(g10_folder() / f"{name}.npz") as archive:
        arrays = dict(archive)
    weight = arrays["tensor_weight"].astype(np.bool_)
    kind = np.where(weight, int(TensorKind.WEIGHT), int(TensorKind.ACTIVATION)).astype(np.int64)
    workspace = arrays["workspace_tensor"]
    kind[workspace[workspace >= 0]] = TensorKind.WORKSPACE
    per_ms = CYCLES_PER_SECOND / 1000
    t_10 = np.maximum((arrays["t_10_ms"] * per_ms).astype(np.int64), arrays["cycles"])
    t_00 = np.maximum((arrays["t_00_ms"] * per_ms).astype(np.int64), t_10)
    return TensorTrace(
        name=name,
        source="G10, platformxlab/G10",
        ticks_per_second=CYCLES_PER_SECOND,
        kernel_names=tuple(str(op) for op in arrays["op_names"]),
        kernel_name=arrays["kernel_op"].astype(np.int64),
        kernel_ticks=arrays["cycles"].astype(np.int64),
        fault_ticks=np.stack([t_10, t_00]),
        tensor_bytes=arrays["tensor_bytes"].astype(np.int64),
        tensor_kind=kind,
        tensor_storage=np.arange(len(kind)),
        tensor_persistent=weight,
        use_start=arrays["use_start"].astype(np.int64),
        use_tensor=arrays["use_tensor"].astype(np.int64),
        use_mode=arrays["use_mode"].astype(np.int64),
    )
