# SPDX-License-Identifier: MIT
"""Demand for fast memory: bytes that hold most accesses, and runtimes with other sizes."""

from typing import Any

import numpy as np
import pytest

from hmd.base.units import MOVE_NS, PAGE_MOVE_COST
from hmd.heat.settings import CHUNK_BYTES, CHUNK_PAGES, HeatSettings
from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Node, Topology
from hmd.metrics.counters import OTHER, TargetUse
from hmd.metrics.demand import Waited, measure_demand
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


def uses(fast: float, slow: float, stores: float = 0.0, moves: float = 0.0) -> TargetUse:
    """Return loads per second from both tiers; each store is one to both."""
    loads = np.array([fast, slow, 0.0])
    return TargetUse(loads, loads + np.array([stores, stores, 0.0]), moves)


def runtime(heat: HeatTable, use: TargetUse, *args: Any, cpus: float = 1.0) -> dict[float, float]:
    """Return the runtime of target a by the size of fast memory."""
    found = measure_demand(heat, TOPOLOGY, ["a"], np.full(1, cpus), {"a": use}, *args)
    assert found.of_all is not None
    of_all, of_target = found.of_all.runtime, found.by_target["a"].runtime
    assert of_all == pytest.approx(of_target, rel=0.02)
    return dict(zip(FAST_STEPS, of_target, strict=True))


# A core hides 40 ns of each: 60 ns of a load from fast memory, 260 ns of one from slow memory.
WAITING = {"a": Waited(1.0, RATE * 60e-9)}


def test_runtime_grows_by_what_loads_wait_longer() -> None:
    found = runtime(table(2, 4), uses(RATE, 0), 0, WAITING)
    # A million loads a second that wait 200 ns longer: 0.2 s in each second of one CPU.
    assert found[0.0] == pytest.approx(1 + RATE * 200e-9, rel=0.02)
    # Half of them wait as before, as none overlaps with another.
    assert found[0.25] == pytest.approx(1 + RATE * 200e-9 / 2, rel=0.02)
    for enough in (0.5, 1.0, 2.0):
        assert found[enough] == pytest.approx(1, abs=0.01)


def test_runtime_waits_that_overlap_smaller_effect() -> None:
    found = runtime(table(2, 4), uses(RATE, 0), 0, {"a": Waited(1.0, RATE * 30e-9)})
    assert found[0.0] == pytest.approx(1 + RATE * 200e-9 / 2, rel=0.02)
    # Two at once in the mean: a load is one of three, and waits if one of these is slow.
    assert found[0.25] == pytest.approx(1 + RATE * 200e-9 / 2 * (1 - 0.5**3), rel=0.02)


def test_runtime_slow_loads_that_overlap_wait_in_proportion() -> None:
    use, waited = uses(RATE / 2, RATE / 2), {"a": Waited(1.0, RATE * 160e-9 / 8)}
    found = runtime(table(4, 4), use, 0, waited)
    less = 1 - 60 / 260

    def waits(share: float) -> float:
        return 1 - less * (0.65 * share + 0.35 * share**4)

    more_s = RATE * 160e-9 / 8 * (waits(0) / waits(0.5) - 1)
    assert found[0.0] == pytest.approx(1 + more_s, rel=0.02)


def test_runtime_waits_beyond_those_of_loads_are_of_other_accesses() -> None:
    use, waited = uses(RATE, 0, stores=RATE), {"a": Waited(1.0, RATE * 60e-9 + 0.4)}
    found = runtime(table(2, 4), use, 0, waited)
    # Half of the stores go to slow memory already, and take 260 / 60 times as long there.
    more_s = 0.4 * (260 / (260 / 2 + 60 / 2) - 1)
    assert found[0.0] == pytest.approx(1 + RATE * 200e-9 + more_s, rel=0.02)


def test_runtime_waits_not_counted_are_part_of_latency() -> None:
    heat = table(2, 4)
    assert runtime(heat, uses(RATE, 0))[0.0] == pytest.approx(1 + 0.7 * RATE * 200e-9, rel=0.02)
    # There is no more time than CPUs used.
    most = runtime(heat, uses(100 * RATE, 0))[0.0]
    assert most == pytest.approx(1 + 0.6 * (260 / 60 - 1), rel=0.02)


def test_runtime_more_cpus_same_waiting_smaller_effect() -> None:
    one, two = (runtime(table(2, 4), uses(RATE, 0), cpus=cpus) for cpus in (1.0, 2.0))
    assert two[0.0] - 1 == pytest.approx((one[0.0] - 1) / 2, rel=0.01)


def test_runtime_free_memory_stays_free() -> None:
    heat, free_pages = table(2, 4), CHUNK_PAGES
    found = runtime(heat, uses(RATE, 0), free_pages, WAITING)
    # A quarter of five chunks, of which one stays free, are an eighth of the hot pages.
    assert found[0.25] == pytest.approx(1 + RATE * 200e-9 * (1 - 0.125), rel=0.02)
    assert found[1.0] == 1.0


def test_runtime_without_fast_memory_saves_moves() -> None:
    moves = 1e4
    found = runtime(table(2, 4), uses(0, 0, moves=moves), 0, WAITING)
    assert found[0.0] == pytest.approx(1 - moves * MOVE_NS * PAGE_MOVE_COST * 1e-9)
    # All pages lie in the fastest tier then.
    assert found[2.0] == pytest.approx(found[0.0])
    assert found[0.0] < found[0.5] < found[1.0] == 1.0


def test_runtime_fast_tier_serves_no_more_than_its_part_more_of_it_neither() -> None:
    # A quarter of the pages is hot, and half of the pages fast; but half of the loads are slow.
    found = runtime(table(2, 4), uses(RATE / 2, RATE / 2), 0, {"a": Waited(1.0, RATE * 160e-9)})
    less = 1 - 60 / 260

    def waits(share: float) -> float:
        return (1 - less * share) / (1 - less * 0.5)

    assert found[0.5] == pytest.approx(1 + RATE * 160e-9 * (waits(0.25) - 1), rel=0.02)
    assert found[1.5] == pytest.approx(1 + RATE * 160e-9 * (waits(0.75) - 1), rel=0.02)


def test_runtime_without_cpu_time_or_second_tier_not_known() -> None:
    heat, use = table(2, 4), {"a": uses(RATE, 0)}
    unknown = measure_demand(heat, TOPOLOGY, ["a"], np.full(1, np.nan), use)
    assert unknown.by_target["a"].runtime == ()
    assert unknown.of_all is not None
    assert unknown.of_all.runtime == ()
    single = Topology((Node(0, (0,), 1 << 30, (10,), tier=0, read_latency_ns=100),))
    found = measure_demand(heat, single, ["a"], np.ones(1), use).by_target["a"]
    assert found.runtime == ()
    assert found.needed_bytes[0] > 0


def test_demand_of_all_sums_targets() -> None:
    heat = table(2, 4, slots=2)
    use = {"a": uses(RATE, 0), "b": uses(RATE, 0)}
    found = measure_demand(heat, TOPOLOGY, ["a", "b"], np.ones(2), use)
    assert set(found.by_target) == {"a", "b"}
    assert found.of_all is not None
    one = found.by_target["a"]
    assert found.of_all.needed_bytes[0] == pytest.approx(2 * one.needed_bytes[0], rel=0.1)
    assert found.of_all.runtime[0] == pytest.approx(one.runtime[0], rel=0.05)


def test_demand_of_all_keeps_pages_of_who_waits() -> None:
    heat = table(2, 4, slots=2)
    use = {"a": uses(RATE, 0), "b": uses(RATE, 0)}
    waited = {"a": Waited(1.0, RATE * 60e-9), "b": Waited(1.0, 0.0)}
    found = measure_demand(heat, TOPOLOGY, ["a", "b"], np.ones(2), use, 0, waited)
    assert found.of_all is not None
    runtime_of_all = dict(zip(FAST_STEPS, found.of_all.runtime, strict=True))
    assert runtime_of_all[0.25] == pytest.approx(1, abs=0.01)
    assert runtime_of_all[0.0] == pytest.approx(1 + RATE * 200e-9 / 2, rel=0.02)


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
