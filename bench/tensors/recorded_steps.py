"""The recorded steps of bench/tensors/training_steps, as a socket with many cores computes them.

They were recorded with one thread, whose kernels take so long that slow memory hardly matters. Here
``CORES`` cores share each kernel, which takes no less than its operands take at the bandwidths of
the fastest tier. This is a model: how a step scales on a real socket was not measured.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from hmd.tensors.memory_system import MemorySystem
from hmd.tensors.tensor_trace import READ, WRITE, TensorTrace
from hmd.tensors.tensor_trace_file import read_trace

CORES: Final = 24
"""Cores of a socket with six channels of memory."""

FOLDER: Final = Path(__file__).parent / "training_steps"
RECORDED: Final = ("residual_network", "transformer_decoder", "mlp_mixer", "recurrent_network")


def recorded_step(name: str, system: MemorySystem) -> TensorTrace:
    """Return a recorded step on a socket with the first tier of ``system``."""
    return on_socket(read_trace(FOLDER / f"{name}.npz"), system)


def on_socket(trace: TensorTrace, system: MemorySystem) -> TensorTrace:
    """Return a step of one core on ``CORES`` cores; ``system`` has bandwidths of its tiers."""
    fast = system.tiers[0]
    used = trace.tensor_bytes[trace.use_tensor]
    least = np.zeros(len(used))
    for bit, rate in ((READ, fast.read), (WRITE, fast.write)):
        least += np.where(trace.use_mode & bit, used / ((rate or 1.0) * 1e9), 0.0)
    operands = np.bincount(trace.use_kernel, least, trace.kernels)
    seconds = np.maximum(trace.kernel_seconds / CORES, operands)
    ticks = np.maximum(np.rint(seconds * trace.ticks_per_second), 1).astype(int)
    return replace(trace, kernel_ticks=ticks)
