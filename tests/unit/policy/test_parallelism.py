# SPDX-License-Identifier: MIT
"""Memory-level parallelism: a bound from the CPU time of processes."""

from __future__ import annotations

import numpy as np
import pytest

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_PAGES
from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Node, NodeMemory, Topology
from hmd.policy.latency import parallelism
from hmd.policy.plan import MachineView
from hmd.sample.access_batch import AccessBatch

FAST_NS, SLOW_NS = 100, 400
CPUS = 4
NODES = tuple(
    Node(number, tuple(range(CPUS)) if number == 0 else (), 1 << 30, (10, 20), number, latency)
    for number, latency in enumerate((FAST_NS, SLOW_NS))
)
TOPOLOGY = Topology(NODES)
MEMORY = tuple(NodeMemory(node.id, node.total_bytes, 0) for node in NODES)
PERIOD, SAMPLES = 10_000, 2000


def table(priority: float = 1.0) -> HeatTable:
    """A process whose misses wait for the slow node, 20 million of them in a second."""
    found = HeatTable(None, (FAST_NS, SLOW_NS))
    found.track_processes([ProcessId(10, 1)])
    found.set_process_weights(np.array([priority]), np.ones(1))
    found.record_nodes(0, np.zeros(1, np.uint64), np.ones((1, CHUNK_PAGES), np.int8))
    page = np.arange(SAMPLES, dtype=np.uint64) % CHUNK_PAGES
    found.update(AccessBatch.of(page * np.uint64(PAGE_BYTES), latency_ns=SLOW_NS, period=PERIOD))
    return found


def bound(cpus: float | None, priority: float = 1.0) -> float:
    """The bound where the process keeps so many CPUs busy, None: not known."""
    known = None if cpus is None else np.array([cpus])
    machine = MachineView(TOPOLOGY, MEMORY, 0.0, 1.0, 1 << 30, cpus=known)
    found = parallelism(table(priority).view(TOPOLOGY), machine)
    assert found.shape == (1,)
    return float(found[0])


def test_misses_that_take_longer_than_the_cpus_of_a_process_overlap() -> None:
    one = SAMPLES * PERIOD * SLOW_NS * 1e-9
    assert bound(1.0) == pytest.approx(one, rel=0.01)
    assert bound(2.0) == pytest.approx(one / 2, rel=0.01)


def test_unknown_cpu_time_may_be_that_of_all_cpus() -> None:
    assert bound(None) == bound(float("nan")) == bound(CPUS)


def test_misses_that_need_not_overlap_do_not() -> None:
    assert bound(32.0) == 1.0


def test_parallelism_is_at_most_what_a_core_has() -> None:
    assert bound(0.0) == bound(0.01) == 16.0


def test_priority_of_a_process_changes_nothing() -> None:
    assert bound(2.0, priority=8.0) == pytest.approx(bound(2.0))
