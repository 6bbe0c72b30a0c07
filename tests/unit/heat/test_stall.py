# SPDX-License-Identifier: MIT
"""Loads are weighted by their stall where the sampler measures latencies."""

from __future__ import annotations

import numpy as np
import pytest

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_PAGES, FIXED, HeatSettings
from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Node, Topology
from hmd.sample.access_batch import AccessBatch, Kind

OPEN = HeatSettings(min_window_samples=1 << 40)
FAST_NS, SLOW_NS = 100.0, 400.0


def counted(latencies: list[int], kinds: list[Kind], nodes: list[int]) -> list[float]:
    """Return the heat of pages that are each sampled once, with this latency and kind."""
    table = HeatTable(OPEN, (FAST_NS, SLOW_NS))
    table.track_processes([ProcessId(10, 1)])
    n = len(latencies)
    node = np.full((1, CHUNK_PAGES), 1, np.int8)
    node[0, :n] = nodes
    table.record_nodes(0, np.zeros(1, np.uint64), node)
    table.update(
        AccessBatch.of(
            np.arange(n, dtype=np.uint64) * np.uint64(PAGE_BYTES),
            kind=np.array(kinds, np.uint8),
            latency_ns=np.array(latencies, np.uint32),
            period=1000,
        )
    )
    counts: list[float] = table.chunks.columns.recent[0, :n].tolist()
    return counts


def test_stall_load_counts_by_share_of_node_latency() -> None:
    loads = [Kind.LOAD] * 5
    # In full, half, more than all of it, half of the slow node's, of a page that must stay.
    found = counted([100, 50, 900, 200, 200], loads, [0, 0, 0, 1, FIXED - 1])
    assert found == pytest.approx([1000, 500, 1000, 500, 500])


def test_stall_prefetched_load_counts_little() -> None:
    hot, streamed = counted([400, 0], [Kind.LOAD] * 2, [1, 1])
    assert 0 < streamed < hot / 20


def test_stall_without_latencies_all_count_in_full() -> None:
    assert counted([0, 0], [Kind.LOAD] * 2, [0, 1]) == [1000, 1000]
    assert counted([0, 0], [Kind.FAULT] * 2, [0, 1]) == [1000, 1000]


def test_stall_stores_count_in_full() -> None:
    assert counted([400, 3], [Kind.LOAD, Kind.STORE], [1, 1]) == [1000, 1000]


def test_topology_node_without_latency_taken_as_dram() -> None:
    nodes = (Node(0, (0,), 1 << 30, (10, 20), 0), Node(2, (), 1 << 30, (20, 10), 1, 350))
    assert Topology(nodes).latency_ns == (90.0, 90.0, 350.0)
    assert Topology(()).latency_ns == ()
