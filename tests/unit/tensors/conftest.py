# SPDX-License-Identifier: MIT
"""Hand-made traces, and the published traces of G10 where they are installed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from bench.tensors.g10_traces import g10_folder, load_g10
from hmd.base.units import GIB, MIB
from hmd.tensors.memory_system import MemorySystem, TensorTier, TierLink
from hmd.tensors.trace import READ, WRITE, TensorKind, TensorTrace

Uses = Sequence[tuple[int, int]]
"""(tensor, mode) of one kernel."""

R, W, RW = READ, WRITE, READ | WRITE


def make_trace(
    sizes_mib: Sequence[int],
    kernels: Sequence[tuple[float, Uses]],
    persistent: Sequence[int] = (),
) -> TensorTrace:
    """Return a trace of kernels (milliseconds, uses), in nanoseconds."""
    keeps = np.isin(np.arange(len(sizes_mib)), list(persistent))
    flat = [use for _, uses in kernels for use in uses]
    return TensorTrace(
        name="made",
        ticks_per_second=1_000_000_000,
        kernel_names=("op",),
        kernel_name=np.zeros(len(kernels), np.int64),
        kernel_ticks=np.array([round(ms * 1e6) for ms, _ in kernels], np.int64),
        fault_ticks=np.zeros((0, 0), np.int64),
        tensor_bytes=np.array(sizes_mib, np.int64) * MIB,
        tensor_kind=np.where(keeps, TensorKind.WEIGHT, TensorKind.ACTIVATION).astype(np.int64),
        tensor_storage=np.arange(len(sizes_mib)),
        tensor_persistent=keeps,
        use_start=np.cumsum([0, *(len(uses) for _, uses in kernels)]),
        use_tensor=np.array([tensor for tensor, _ in flat], np.int64),
        use_mode=np.array([mode for _, mode in flat], np.int64),
    )


def small_system(gpu_mib: int, host_mib: int = 1024, gbps: float = 8.0) -> MemorySystem:
    """Return a GPU, a host and flash of a quarter of the host's bandwidth."""
    return MemorySystem(
        name="small",
        tiers=(
            TensorTier(name="gpu", capacity=gpu_mib * MIB),
            TensorTier(name="host", capacity=host_mib * MIB),
            TensorTier(name="ssd"),
        ),
        links=(
            TierLink.model_validate(
                {"name": "pcie", "between": ("gpu", "switch"), "in": gbps, "out": gbps}
            ),
            TierLink.model_validate(
                {"name": "dram", "between": ("switch", "host"), "in": gbps, "out": gbps}
            ),
            TierLink.model_validate(
                {"name": "flash", "between": ("switch", "ssd"), "in": gbps / 4, "out": gbps / 4}
            ),
        ),
    )


def in_place_system(fast_mib: int, access_us: float = 0.0) -> MemorySystem:
    """Return DRAM and persistent memory: 100 and 40 GB/s read, 50 and 10 GB/s written.

    ``access_us`` is the price of an operand in persistent memory beyond its bandwidths.
    """
    return MemorySystem(
        name="in-place",
        tiers=(
            TensorTier(name="dram", capacity=fast_mib * MIB, read=100, write=50),
            TensorTier(name="pm", capacity=4 * GIB, read=40, write=10, access_us=access_us),
        ),
        links=(
            TierLink.model_validate(
                {"name": "memory", "between": ("dram", "pm"), "in": 40, "out": 10}
            ),
        ),
    )


@pytest.fixture(scope="session")
def g10_bert() -> TensorTrace:
    return g10_trace("bert-256")


def g10_trace(name: str) -> TensorTrace:
    """Return one of G10's traces; skips the test where the data is not there."""
    if not (g10_folder() / f"{name}.npz").exists():
        pytest.skip("no G10 data")
    return load_g10(name)
