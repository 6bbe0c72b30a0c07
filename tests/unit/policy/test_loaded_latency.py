# SPDX-License-Identifier: MIT
"""Latency of each tier: from firmware, and as measured by sampled loads."""

from __future__ import annotations

import numpy as np
import pytest

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_PAGES
from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Node, NodeMemory, Topology
from hmd.policy.latency import loaded_latency_ns, tier_latency_ns
from hmd.policy.nodes import nodes_of
from hmd.policy.plan import MachineView
from hmd.sample.access_batch import AccessBatch


def machine(*nodes: Node) -> MachineView:
    memory = tuple(NodeMemory(node.id, node.total_bytes, node.total_bytes) for node in nodes)
    return MachineView(Topology(nodes), memory, 0.0, 1.0, 1 << 40)


def node(number: int, tier: int, latency: int | None, bandwidth: int | None) -> Node:
    return Node(number, (0,), 1 << 30, (10, 20, 30), tier, latency, latency, bandwidth, bandwidth)


TWO = (node(0, 0, 90, None), node(1, 1, 350, None))


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node(0, 0, 90, 100_000), node(1, 1, 350, 50_000)], [90, 350]),
        # HBM answers no sooner, but is four times as wide.
        ([node(0, 0, 120, 400_000), node(1, 1, 100, 100_000)], [120, 480]),
        ([node(0, 0, None, None), node(1, 1, None, None)], [90, 180]),
        ([node(0, 0, 80, None), node(1, 0, 120, None), node(2, 1, 300, None)], [100, 300]),
    ],
)
def test_tier_latency_follows_firmware_figures(nodes: list[Node], expected: list[float]) -> None:
    view = machine(*nodes)
    assert tier_latency_ns(view.topology, nodes_of(view, 0.0, 0)).tolist() == expected


def waited(latency_ns: list[int], node: int) -> HeatTable:
    """Return a table with loads of pages of one node, each of the given latency."""
    table = HeatTable(None, (90.0, 350.0))
    table.track_processes([ProcessId(10, 1)])
    table.record_nodes(0, np.zeros(1, np.uint64), np.full((1, CHUNK_PAGES), node, np.int8))
    count = len(latency_ns)
    table.update(
        AccessBatch.of(
            np.arange(count, dtype=np.uint64) % CHUNK_PAGES * np.uint64(PAGE_BYTES),
            latency_ns=np.array(latency_ns, np.uint32),
            period=101,
        )
    )
    return table


@pytest.mark.parametrize(
    ("latencies", "node", "expected"),
    [
        ([400, 600] * 100, 0, [500, 350]),
        ([400, 600] * 100, 1, [90, 500]),
        # Loads that were prefetched did not wait; a node never answers sooner than when idle.
        ([400, 600, 10, 10] * 100, 0, [500, 350]),
        ([330] * 200, 1, [90, 350]),
        # A few may be anything.
        ([5000] * 10, 0, [90, 350]),
    ],
)
def test_loaded_latency_follows_sampled_loads(
    latencies: list[int], node: int, expected: list[float]
) -> None:
    view = machine(*TWO)
    found = loaded_latency_ns(
        waited(latencies, node).view(view.topology), view.topology, nodes_of(view, 0.0, 0)
    )
    assert found.tolist() == expected


def test_loaded_latency_without_samples_from_firmware() -> None:
    view = machine(*TWO)
    for table in (HeatTable(), waited([0] * 200, 0)):
        found = loaded_latency_ns(table.view(view.topology), view.topology, nodes_of(view, 0.0, 0))
        assert found.tolist() == [90, 350]
