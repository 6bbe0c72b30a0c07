"""Memory-level parallelism: by how much the misses of a process overlap at least.

Takes rates and latencies, gives a number per process. About 1 ns per row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hmd.decide.plan import MachineView
from hmd.decide.process_sums import add_waits

if TYPE_CHECKING:
    from hmd.heat.page_view import PageView


def parallelism(pages: PageView, machine: MachineView) -> npt.NDArray[np.float64]:
    """Return a lower bound of each process's memory-level parallelism, shape ``(processes,)``.

    If waiting for misses one after another takes more time than all CPUs have, they overlap.
    """
    known = np.array(machine.topology.latency_ns, np.float64)
    node = np.where(pages.movable, pages.node, np.int8(-1))
    per_process = np.zeros(len(pages.processes))
    add_waits(pages.process, pages.size, pages.rate, known, node, per_process)
    accesses = pages.beyond.accesses
    latency = np.append(known, 0.0)[: accesses.shape[1]]
    per_process += (accesses * latency).sum(axis=1)
    cpus = sum(len(each.cpus) for each in machine.topology.nodes)
    return np.maximum(per_process / (1e9 * max(cpus, 1)), 1.0)
