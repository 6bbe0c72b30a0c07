"""Memory-level parallelism: by how much the misses of a process overlap at least.

Takes rates and latencies, gives a number per process. About 2 ns per page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hmd.decide.plan import MachineView

if TYPE_CHECKING:
    from hmd.heat.page_view import PageView


def parallelism(pages: PageView, machine: MachineView) -> npt.NDArray[np.float64]:
    """Return a lower bound of each process's memory-level parallelism, shape ``(processes,)``.

    If waiting for misses one after another takes more time than all CPUs have, they overlap.
    """
    known = np.array([*machine.topology.latency_ns, 0.0])
    node = np.where(pages.movable & (pages.node < len(known)), pages.node, len(known) - 1)
    wait_ns = pages.rate * known[node] * pages.size
    per_process = np.bincount(pages.process, weights=wait_ns, minlength=len(pages.processes))
    accesses = pages.beyond.accesses
    per_process += (accesses * known[: accesses.shape[1]]).sum(axis=1)
    cpus = sum(len(each.cpus) for each in machine.topology.nodes)
    return np.maximum(per_process / (1e9 * max(cpus, 1)), 1.0)
