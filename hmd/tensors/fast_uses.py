# SPDX-License-Identifier: MIT
"""When a plan has a tensor in the fastest tier, run of uses by run of uses.

For memory systems that kernels compute in place from. A tensor that is allocated in the step begins
in the fastest tier, one that persists where the plan left it in the step before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hmd.tensors.move_plan import MovePlan
from hmd.tensors.trace import READ, WRITE, TensorTrace


@dataclass(slots=True)
class UseRun:
    """Uses of a tensor between two moves: ``fast_bytes`` of it are in the fastest tier.

    ``uses`` has the kernel of each, and how often it passes over the tensor: once to read, once to
    write.
    """

    tensor: int
    fast_bytes: int
    uses: list[tuple[int, int]] = field(default_factory=list)


def use_runs(trace: TensorTrace, plan: MovePlan) -> list[UseRun]:
    """Return the runs of the second of two steps, by their first kernel."""
    size = trace.tensor_bytes
    fast = np.where(trace.tensor_persistent, 0, size)
    start = np.searchsorted(plan.kernel, np.arange(trace.kernels + 1))
    runs: list[UseRun] = []
    for _ in range(2):
        fast[~trace.tensor_persistent] = size[~trace.tensor_persistent]
        runs, current = [], dict[int, UseRun]()
        for kernel in range(trace.kernels):
            for move in range(start[kernel], start[kernel + 1]):
                tensor = int(plan.tensor[move])
                moved = plan.size[move] if plan.target[move] == 0 else -plan.size[move]
                fast[tensor] = np.clip(fast[tensor] + moved, 0, size[tensor])
                current.pop(tensor, None)
            rows = slice(trace.use_start[kernel], trace.use_start[kernel + 1])
            for tensor, mode in zip(
                trace.use_tensor[rows].tolist(), trace.use_mode[rows].tolist(), strict=True
            ):
                run = current.get(tensor)
                if run is None:
                    run = current[tensor] = UseRun(tensor, int(fast[tensor]))
                    runs.append(run)
                run.uses.append((kernel, (mode & READ > 0) + (mode & WRITE > 0)))
    return runs
