"""Memory-level parallelism: by how much the misses of a process overlap at least.

Takes rates, latencies and the CPU time of processes, gives a number per process. About 2 ns per
row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.decide.plan import MachineView
from hmd.decide.process_sums import add_accesses, add_waits

if TYPE_CHECKING:
    from hmd.heat.view.page_view import PageView

_MOST: Final = 16.0
"""No bound is higher: cores wait for 10 to 24 misses at a time (:mod:`hmd.sample.cpu_model`)."""

_LEAST: Final = 1e-9


def parallelism(pages: PageView, machine: MachineView) -> npt.NDArray[np.float64]:
    """Return a lower bound of each process's memory-level parallelism, shape ``(processes,)``.

    If waiting for misses one after another takes more time than the CPUs of a process were busy,
    they overlap. Where the CPU time of a process is not known, it may have been that of all CPUs.
    """
    latency_ns = np.array(machine.topology.latency_ns, np.float64)
    loaded = pages.loaded_ns[: len(latency_ns)]
    latency_ns[: len(loaded)] = np.maximum(latency_ns[: len(loaded)], loaded)
    node = np.where(pages.movable, pages.node, np.int8(-1))
    waits, accesses = np.zeros(len(pages.processes)), np.zeros(len(pages.processes))
    add_waits(pages.process, pages.size, pages.rate, latency_ns, node, waits)
    add_accesses(pages.process, pages.size, pages.rate, accesses)
    beyond = pages.beyond.accesses
    waits += (beyond * np.append(latency_ns, 0.0)[: beyond.shape[1]]).sum(axis=1)
    accesses += beyond.sum(axis=1)
    # Rates of pages have the priority of their process, the rate of a process has not.
    mean_ns = waits / np.maximum(accesses, _LEAST)
    waiting_s = pages.process_rate * mean_ns * 1e-9
    every = float(max(sum(len(each.cpus) for each in machine.topology.nodes), 1))
    cpus = np.full(len(waits), np.nan) if machine.cpus is None else machine.cpus
    cpus = np.where(np.isnan(cpus), every, cpus)
    return np.clip(waiting_s / np.maximum(cpus, _LEAST), 1.0, _MOST)
