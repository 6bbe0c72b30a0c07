# SPDX-License-Identifier: MIT
"""Ticks on machines of 64 nodes in six tiers, and with 10,000 processes of which some are large.

The synthetic machine checks every move: its page is where the plan expects it, and finds room.
"""

from __future__ import annotations

import numpy as np
import pytest

from bench.synthetic.synthetic_run import SyntheticRun, Tier
from hmd.base.units import GIB, PAGE_BYTES
from hmd.heat.settings import CHUNK_BYTES, CHUNK_PAGES
from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Node, NodeMemory, Topology
from hmd.policy import registry
from hmd.policy.plan import MachineView
from hmd.sample.access_batch import AccessBatch

NODES, TIERS, NODE_PAGES = 64, 6, 256
PROCESSES, LARGE, LARGE_CHUNKS = 10_000, 100, 20


@pytest.mark.parametrize("name", ["benefit", "histogram"])
def test_hotter_pages_are_on_faster_tiers_of_64_nodes(name: str) -> None:
    ranks = [node * TIERS // NODES for node in range(NODES)]
    pages = NODES * NODE_PAGES * 3 // 4
    random = np.random.default_rng(1)
    weights = 2.0 ** -(np.arange(pages) // 16 * 16 * 8 / pages)
    random.shuffle(weights.reshape(-1, 16))
    run = SyntheticRun(
        registry.create(name, {"headroom": 0.0, "headroom_min": 8 * PAGE_BYTES}),
        tuple(Tier(NODE_PAGES, latency_ns=100 + 60 * rank) for rank in ranks),
        weights,
        (np.arange(pages) % (NODES * 3 // 4) + NODES // 4).astype(np.int8),
        samples_per_tick=40_000,
        ranks=ranks,
    )
    for _ in range(16):
        run.tick()
    tier = np.array(ranks)[run.node]
    heat = [weights[tier == rank].mean() for rank in range(TIERS) if (tier == rank).any()]
    assert len(heat) >= TIERS - 1
    assert heat == sorted(heat, reverse=True)
    assert heat[0] > 8 * heat[-1]


def test_tick_of_10000_processes_promotes_the_hot_pages_of_large_ones() -> None:
    topology = Topology(
        (
            Node(0, (0,), 8 * GIB, (10, 20), 0, 90),
            Node(1, (), 64 * GIB, (20, 10), 1, 300),
        )
    )
    heat = HeatTable(latency_ns=topology.latency_ns)
    heat.track_processes([ProcessId(1000 + i, 1) for i in range(PROCESSES)])
    for slot in range(PROCESSES):
        chunks = LARGE_CHUNKS if slot < LARGE else 1
        starts = (1 + np.arange(chunks, dtype=np.uint64)) * np.uint64(CHUNK_BYTES)
        heat.record_nodes(slot, starts, np.ones((chunks, CHUNK_PAGES), np.int8))
    random = np.random.default_rng(1)
    policy = registry.create("benefit")
    memory = (NodeMemory(0, 8 * GIB, GIB), NodeMemory(1, 64 * GIB, 32 * GIB))
    planned = np.zeros(PROCESSES, np.int64)
    for tick in range(4):
        # Nine in ten samples hit the first chunk of a large process, the others any process.
        drawn = random.integers(0, LARGE, 50_000)
        other = random.random(50_000) < 0.1
        drawn[other] = random.integers(0, PROCESSES, int(other.sum()))
        page = random.integers(0, CHUNK_PAGES, 50_000).astype(np.uint64)
        address = np.uint64(CHUNK_BYTES) + page * np.uint64(PAGE_BYTES)
        heat.update(AccessBatch.of(address, drawn.astype(np.int32), period=100))
        machine = MachineView(topology, memory, float(tick), 1.0, GIB, allocation_bytes=0)
        plan = policy.plan(heat.view(topology, max_rows=1 << 17), machine)
        moved = np.bincount(plan.process, plan.pages, PROCESSES).astype(np.int64)
        planned = np.maximum(planned, moved)
    assert (planned[:LARGE] > CHUNK_PAGES // 2).all()
    assert planned[:LARGE].sum() > 4 * planned[LARGE:].sum()
