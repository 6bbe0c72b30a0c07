# SPDX-License-Identifier: MIT
"""Nodes within a tier: pages go near their CPUs, are spread where all use them, and level nodes.

Two sockets, each with a node of either tier: 0 and 1 are fast, 2 and 3 slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from bench.synthetic.synthetic_run import BASE, PROCESS, SyntheticRun, Tier
from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_PAGES
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Node, Topology
from hmd.policy import registry
from hmd.policy.nodes import nodes_of
from hmd.sample.access_batch import AccessBatch
from hmd.tick import locality

CHUNKS = 8
PAGES = CHUNKS * CHUNK_PAGES
LATENCY_NS = (100, 100, 300, 300)
HOP_NS = 60
DISTANCES = ((10, 16, 30, 36), (16, 10, 36, 30), (30, 36, 10, 36), (36, 30, 36, 10))
HALF = PAGES // 2
LAST = BASE + (PAGES - 1) * PAGE_BYTES


def two_sockets(nodes: Sequence[int] = (0, 1, 2, 3), bandwidth: int = 10_000) -> Topology:
    """CPUs 0 and 1 on node 0, CPUs 2 and 3 on node 1."""
    return Topology(
        tuple(
            Node(
                node,
                ((0, 1), (2, 3), (), ())[node],
                2 * PAGES * PAGE_BYTES,
                tuple(DISTANCES[node][other] for other in nodes),
                node // 2,
                LATENCY_NS[node],
                read_bandwidth_mbps=bandwidth,
            )
            for node in nodes
        )
    )


class Sockets(SyntheticRun):
    """A program whose pages are used by the CPUs of ``socket``, shape ``(pages,)``; -1: by all."""

    def __init__(
        self,
        node: npt.NDArray[np.int8],
        socket: npt.NDArray[np.int8],
        *,
        fast_pages: Sequence[int] = (2 * PAGES, 2 * PAGES),
        queue_ns: Sequence[int] = (0, 0, 0, 0),
        budget_pages: int = 1 << 30,
        weights: npt.NDArray[np.float64] | None = None,
    ) -> None:
        self.socket, self.queue_ns = socket, np.array(queue_ns)
        self._draw = np.random.default_rng(7)
        super().__init__(
            registry.create("benefit", {"headroom": 0.0, "headroom_min": 0}),
            (*map(Tier, fast_pages), Tier(4 * PAGES), Tier(4 * PAGES)),
            np.ones(PAGES) if weights is None else weights,
            node,
            samples_per_tick=8_000,
            budget_bytes=budget_pages * PAGE_BYTES,
            latency_ns=lambda _: LATENCY_NS,
            ranks=(0, 0, 1, 1),
        )
        self.use(two_sockets())

    def use(self, topology: Topology) -> None:
        inputs = self.ticks.inputs
        machine = replace(inputs.machine, topology=topology)
        self.ticks.inputs = replace(inputs, machine=machine)

    def read(self) -> AccessBatch:
        chances = self.weights / self.weights.sum()
        page = self._draw.choice(PAGES, self.samples_per_tick, p=chances)
        cpu = self._draw.integers(0, 4, len(page)).astype(np.uint16)
        own = self.socket[page]
        cpu = np.where(own >= 0, 2 * own + cpu % 2, cpu).astype(np.uint16)
        node = self.node[page].astype(np.int64)
        far = (cpu // 2) != node % 2
        latency = np.array(LATENCY_NS)[node] + HOP_NS * far + self.queue_ns[node]
        address = BASE + page.astype(np.uint64) * np.uint64(PAGE_BYTES)
        batch = AccessBatch.of(address, latency_ns=latency.astype(np.uint32), period=self.period)
        return replace(batch, cpu=cpu)


def halves(first: int, second: int) -> npt.NDArray[np.int8]:
    return np.repeat([first, second], HALF).astype(np.int8)


def all_on(node: int) -> npt.NDArray[np.int8]:
    return np.full(PAGES, node, np.int8)


def test_private_pages_of_a_serial_start_go_to_the_node_of_their_cpus() -> None:
    run = Sockets(all_on(0), halves(0, 1))
    for _ in range(8):
        run.tick()
    assert (run.node[:HALF] == 0).all()
    assert (run.node[HALF:] == 1).mean() > 0.9


def test_pages_exchange_nodes_where_both_are_full() -> None:
    run = Sockets(halves(1, 0), halves(0, 1), fast_pages=(HALF + 64, HALF + 64))
    for _ in range(24):
        run.tick()
    assert (run.node == halves(0, 1)).mean() > 0.9


def test_promotions_go_to_the_node_of_their_cpus() -> None:
    # From the wrong socket's slow node, all at once.
    run = Sockets(halves(3, 2), halves(0, 1))
    for _ in range(6):
        run.tick()
    assert (run.node == halves(0, 1)).mean() > 0.9
    assert int(np.isin(run.node, (2, 3)).sum()) < PAGES // 10


def test_shared_pages_stay_while_no_requests_queue() -> None:
    run = Sockets(all_on(0), all_on(-1))
    for _ in range(8):
        run.tick()
    assert (run.node == 0).all()


def test_shared_pages_of_a_busy_node_are_spread_by_bandwidth_and_move_once() -> None:
    run = Sockets(all_on(0), all_on(-1), queue_ns=(150, 0, 0, 0))
    for _ in range(8):
        run.tick()
    assert 0.4 < (run.node == 1).mean() < 0.6
    before = run.node.copy()
    run.queue_ns = np.array((0, 150, 0, 0))
    for _ in range(4):
        run.tick()
    assert (run.node == before).all()


def test_pages_of_a_busy_node_do_not_leave_their_tier_while_another_node_is_idle() -> None:
    run = Sockets(all_on(0), all_on(-1), queue_ns=(400, 0, 0, 0))
    for _ in range(8):
        run.tick()
        assert np.isin(run.node, (0, 1)).all()
    assert 0.4 < (run.node == 1).mean() < 0.6


def test_pages_follow_threads_that_change_sockets() -> None:
    run = Sockets(halves(0, 1), halves(0, 1))
    for _ in range(8):
        run.tick()
    assert (run.node == halves(0, 1)).all()
    run.socket = halves(1, 0)
    for _ in range(60):
        run.tick()
    assert (run.node == halves(1, 0)).mean() > 0.9


def test_few_samples_of_the_other_socket_discount_the_many_before() -> None:
    run = Sockets(halves(0, 1), halves(0, 1))
    run.samples_per_tick = 100
    for _ in range(30):
        run.tick()
    run.socket = halves(1, 0)
    for _ in range(4):
        run.tick()
    assert (run.node == halves(1, 0)).mean() > 0.9


def test_few_samples_of_shared_pages_move_none() -> None:
    run = Sockets(halves(0, 1), all_on(-1))
    run.samples_per_tick = 100
    for _ in range(100):
        run.tick()
        assert not run.plan.pages.sum()


def test_measured_latencies_correct_the_distances_of_the_firmware() -> None:
    run = Sockets(all_on(0), halves(0, 1))
    topology = two_sockets()
    wrong = tuple(
        replace(node, distances=tuple(10 if d == 10 else 3 * d for d in node.distances))
        for node in topology.nodes
    )
    run.use(replace(topology, nodes=wrong))
    run.tick()
    account = run.ticks.state.locality
    assert account._initiators is not None
    assert account._initiators.hop_ns[1, 0] == pytest.approx(380)
    targets = account._targets(account._initiators, nodes_of(run.machine, 0.0, 0))
    of_second = account._rows_of(np.zeros(1, np.int32), np.array([LAST], np.uint64))
    assert targets.wait_ns[of_second, 0] == pytest.approx(160, abs=2)


def test_queues_that_come_and_go_do_not_count_as_distance() -> None:
    run = Sockets(halves(0, 1), halves(0, 1), queue_ns=(300, 300, 0, 0))
    for _ in range(4):
        run.tick()
    # All loads are of far CPUs now, and nothing queues.
    run.socket, run.queue_ns = halves(1, 0), np.zeros(4, np.int64)
    run.tick()
    account = run.ticks.state.locality
    assert account._initiators is not None
    targets = account._targets(account._initiators, nodes_of(run.machine, 0.0, 0))
    of_first = account._rows_of(np.zeros(1, np.int32), np.array([BASE], np.uint64))
    assert targets.wait_ns[of_first, 0] == pytest.approx(LATENCY_NS[0] + HOP_NS)


def test_node_that_was_busy_and_is_left_takes_pages_again() -> None:
    run = Sockets(halves(0, 1), halves(0, 1), queue_ns=(100, 300, 0, 0))
    for _ in range(8):
        run.tick()
    # Another run of the program starts on one node.
    run.node[:] = 0
    run.ticks.state.heat.record_nodes(
        0,
        BASE + np.arange(0, PAGES, 512, dtype=np.uint64) * np.uint64(PAGE_BYTES),
        np.zeros((PAGES // 512, 512), np.int8),
    )
    run.queue_ns = np.array((200, 0, 0, 0))
    for _ in range(10):
        run.tick()
    assert (run.node[HALF:] == 1).mean() > 0.8


def test_pages_that_leave_a_busy_tier_do_not_go_to_a_busy_node() -> None:
    node = halves(0, 1)
    node[-64:] = 3
    run = Sockets(node, halves(0, 1), queue_ns=(400, 400, 0, 900))
    for _ in range(6):
        run.tick()
    assert int((run.node == 2).sum()) > 64
    assert int((run.node == 3).sum()) <= 64


def test_a_node_that_appears_fills_at_the_rate_of_moves() -> None:
    budget = 512
    run = Sockets(all_on(2), halves(0, 1), fast_pages=(HALF // 2, 2 * PAGES), budget_pages=budget)
    run.use(two_sockets((0, 2, 3)))
    for _ in range(12):
        run.tick()
    assert not (run.node == 1).any()
    full = int((run.node == 0).sum())
    assert full > HALF // 4
    run.use(two_sockets())
    held = 0
    for _ in range(24):
        run.tick()
        filled = int((run.node == 1).sum())
        assert filled - held <= budget
        held = filled
    assert held > HALF * 0.9


def test_a_nearly_full_node_gives_its_coldest_pages_to_the_other() -> None:
    weights = np.where(np.arange(PAGES) < HALF, 1.0, 0.05)
    run = Sockets(all_on(0), all_on(0), fast_pages=(PAGES, 2 * PAGES), weights=weights)
    for _ in range(4):
        run.tick()
    given = run.node == 1
    assert PAGES / 256 <= given.sum() <= PAGES / 64
    assert given[HALF:].mean() > 0.9 * given.mean() * 2


def test_drained_nodes_get_no_pages() -> None:
    run = Sockets(all_on(0), halves(0, 1))
    run.ticks.state.admin.drain(frozenset({1}))
    for _ in range(6):
        run.tick()
    assert not (run.node == 1).any()


def test_nothing_moves_within_tiers_where_locality_is_off() -> None:
    run = Sockets(all_on(0), halves(0, 1))
    run.ticks.state = replace(run.ticks.state, places_within_tiers=False)
    for _ in range(4):
        run.tick()
    assert (run.node == 0).all()


def test_one_node_per_tier_has_no_account() -> None:
    run = Sockets(halves(0, 2), halves(0, 1))
    run.use(two_sockets((0, 2)))
    for _ in range(2):
        run.tick()
    assert not len(run.ticks.state.locality._key)


def test_the_account_follows_processes_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locality, "MAX_CHUNKS", 4)
    run = Sockets(all_on(0), halves(0, 1))
    run.tick()
    account = run.ticks.state.locality
    assert len(account._key) == 4
    keys, seen = account._key.copy(), account._seen.copy()
    other = ProcessId(1, 1)
    account._renumber((other, PROCESS), 1)
    address = (keys & ((1 << 44) - 1)).astype(np.uint64) << np.uint64(21)
    assert account._rows_of(np.ones(4, np.int32), address).tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(account._seen, seen)
    account._renumber((other,), 2)
    assert not len(account._key)
