# SPDX-License-Identifier: MIT
"""Demand for fast memory: bytes that hold most accesses, and runtimes with other sizes."""

import numpy as np
import pytest

from hmd.heat.settings import CHUNK_BYTES, CHUNK_PAGES, HeatSettings
from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Node, Topology
from hmd.metrics.counters import OTHER
from hmd.metrics.demand import measure_demand
from hmd.metrics.status import FAST_STEPS, MAX_TARGETS, NEEDED_SHARES
from hmd.sample.access_batch import AccessBatch

TOPOLOGY = Topology(
    (
        Node(0, (0,), 1 << 30, (10, 20), tier=0, read_latency_ns=100),
        Node(1, (), 4 << 30, (20, 10), tier=1, read_latency_ns=300),
    )
)
CHUNKS = 8
RATE = 1e6
PERIOD = 1000


def table(hot_chunks: int, fast_chunks: int, slots: int = 1) -> HeatTable:
    """Return processes of 8 chunks each, of which the first are hot, and the first are fast."""
    heat = HeatTable(HeatSettings(), TOPOLOGY.latency_ns)
    heat.track_processes([ProcessId(slot + 1, 1) for slot in range(slots)])
    rng = np.random.default_rng(1)
    for slot in range(slots):
        for chunk in range(CHUNKS):
            node = np.full((1, CHUNK_PAGES), int(chunk >= fast_chunks), np.int8)
            heat.record_nodes(slot, np.array([(chunk + 1) * CHUNK_BYTES], np.uint64), node)
    count = int(RATE / PERIOD)
    for _ in range(30):
        pages = rng.integers(0, hot_chunks * CHUNK_PAGES, (slots, count)) + CHUNK_PAGES
        process = np.repeat(np.arange(slots, dtype=np.int32), count)
        address = pages.ravel().astype(np.uint64) * np.uint64(4096)
        heat.update(AccessBatch.of(address, process, period=PERIOD))
    return heat


def test_needed_bytes_hold_hot_pages() -> None:
    found = measure_demand(table(2, 4), TOPOLOGY, ["a"], np.ones(1), {}).by_target["a"]
    assert len(found.needed_bytes) == len(NEEDED_SHARES)
    assert found.needed_bytes[0] == pytest.approx(0.9 * 2 * CHUNK_BYTES, rel=0.05)
    assert list(found.needed_bytes) == sorted(found.needed_bytes)


def test_runtime_grows_by_what_accesses_wait_longer() -> None:
    found = measure_demand(table(2, 4), TOPOLOGY, ["a"], np.ones(1), {}).by_target["a"]
    runtime = dict(zip(FAST_STEPS, found.runtime, strict=True))
    # A million loads a second that wait 200 ns longer: 0.2 s in each second of one CPU.
    assert runtime[0.0] == pytest.approx(1 + RATE * 200e-9, rel=0.02)
    assert runtime[0.25] == pytest.approx(1 + RATE * 200e-9 / 2, rel=0.02)
    assert runtime[0.5] == pytest.approx(1, abs=0.01)
    assert runtime[2.0] == pytest.approx(1, abs=0.01)


def test_runtime_more_cpus_same_waiting_smaller_effect() -> None:
    one = measure_demand(table(2, 4), TOPOLOGY, ["a"], np.ones(1), {}).by_target["a"]
    two = measure_demand(table(2, 4), TOPOLOGY, ["a"], np.full(1, 2.0), {}).by_target["a"]
    assert two.runtime[0] - 1 == pytest.approx((one.runtime[0] - 1) / 2, rel=0.01)


def test_runtime_without_cpu_time_or_second_tier_not_known() -> None:
    heat = table(2, 4)
    assert (
        measure_demand(heat, TOPOLOGY, ["a"], np.full(1, np.nan), {}).by_target["a"].runtime == ()
    )
    single = Topology((Node(0, (0,), 1 << 30, (10,), tier=0),))
    found = measure_demand(heat, single, ["a"], np.ones(1), {}).by_target["a"]
    assert found.runtime == ()
    assert found.needed_bytes[0] > 0


def test_demand_of_all_sums_targets() -> None:
    heat = table(2, 4, slots=2)
    found = measure_demand(heat, TOPOLOGY, ["a", "b"], np.ones(2), {})
    assert set(found.by_target) == {"a", "b"}
    assert found.of_all is not None
    one = found.by_target["a"]
    assert found.of_all.needed_bytes[0] == pytest.approx(2 * one.needed_bytes[0], rel=0.1)
    assert found.of_all.runtime[0] == pytest.approx(one.runtime[0], rel=0.05)


def test_runtime_fast_tier_serves_less_than_heat_says_gains_lie_in_slow_memory() -> None:
    heat = table(8, 4)
    by_heat = measure_demand(heat, TOPOLOGY, ["a"], np.ones(1), {}).by_target["a"]
    known = measure_demand(heat, TOPOLOGY, ["a"], np.ones(1), {"a": 0.3}).by_target["a"]
    assert known.runtime[0] == pytest.approx(1 + 0.3 * RATE * 200e-9, rel=0.02)
    assert known.runtime[-1] == pytest.approx(1 - 0.7 * RATE * 200e-9, rel=0.02)
    assert known.runtime[0] < by_heat.runtime[0]
    assert known.needed_bytes == by_heat.needed_bytes


def test_demand_of_many_targets_bounded() -> None:
    heat = table(2, 4, slots=MAX_TARGETS + 3)
    names = [f"t{number}" for number in range(MAX_TARGETS + 3)]
    found = measure_demand(heat, TOPOLOGY, names, np.ones(len(names)), {}).by_target
    assert set(found) == {*names[:MAX_TARGETS], OTHER}
    assert found[OTHER].needed_bytes[0] > 2 * found["t0"].needed_bytes[0]


def test_demand_of_nothing_empty() -> None:
    heat = HeatTable(HeatSettings(), TOPOLOGY.latency_ns)
    found = measure_demand(heat, TOPOLOGY, [], np.ones(0), {})
    assert not found.by_target
    assert found.of_all is None
