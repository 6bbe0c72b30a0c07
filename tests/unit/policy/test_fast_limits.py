# SPDX-License-Identifier: MIT
"""Limits of targets on the fast tier, and the placement that results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_BYTES, CHUNK_PAGES
from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Node, NodeMemory, Topology
from hmd.policy.builtin.histogram import Histogram, HistogramSettings
from hmd.policy.plan import FastLimits, MachineView
from hmd.sample.access_batch import AccessBatch

CHUNKS = 4
PAGES = CHUNKS * CHUNK_PAGES
FAST = 2048


class Two:
    """Two programs of 2048 pages on slow memory, and a fast node that takes half of both.

    Every page of the first is accessed ``hotter`` times as often as those of the second.
    """

    def __init__(self, hotter: float, limits: FastLimits | None) -> None:
        self.heat = HeatTable()
        self.heat.track_processes([ProcessId(1, 1), ProcessId(2, 1)])
        self.limits = limits
        self.used, self.budget_bytes = (0, PAGES), 1 << 40
        self._share = hotter / (hotter + 1)
        self._random = np.random.default_rng(5)
        self._policy = Histogram(HistogramSettings(headroom=0.0, headroom_min=0))
        starts = np.arange(CHUNKS, dtype=np.uint64) * np.uint64(CHUNK_BYTES)
        for slot in range(2):
            self.heat.record_nodes(slot, starts, np.ones((CHUNKS, CHUNK_PAGES), np.int8))

    @property
    def fast(self) -> list[int]:
        """Pages of each program on the fast node."""
        movable, _ = self.heat.resident_pages(2)
        return [int(pages) for pages in movable[:, 0]]

    def machine(self) -> MachineView:
        free = FAST - sum(self.fast)
        nodes = (Node(0, (0,), FAST, (10, 20), 0), Node(1, (), 1 << 30, (20, 10), 1))
        memory = (
            NodeMemory(0, FAST * PAGE_BYTES, free * PAGE_BYTES),
            NodeMemory(1, 1 << 32, 1 << 31),
        )
        return MachineView(Topology(nodes), memory, 0.0, 1.0, self.budget_bytes, self.limits)

    def tick(self) -> int:
        n = 40_000
        process = (self._random.random(n) >= self._share).astype(np.int32)
        page = self._random.integers(*self.used, n).astype(np.uint64)
        self.heat.update(AccessBatch.of(page * np.uint64(PAGE_BYTES), process, period=11))
        machine = self.machine()
        plan = self._policy.plan(self.heat.view(machine.topology), machine)
        self.heat.record_moves(plan, plan.to_node, np.zeros(len(plan), np.bool_))
        return len(plan)

    def run(self, ticks: int = 6) -> list[int]:
        for _ in range(ticks):
            self.tick()
        return self.fast


def limits(
    least: tuple[int, int] = (0, 0),
    most: tuple[int, int] = (1 << 40, 1 << 40),
    *,
    group: tuple[int, int] = (0, 1),
    least_share: tuple[float, float] = (0, 0),
    most_share: tuple[float, float] = (1, 1),
) -> FastLimits:
    def pages(each: tuple[int, int]) -> npt.NDArray[np.int64]:
        return np.array(each, np.int64) * PAGE_BYTES

    return FastLimits(
        np.array(group, np.int32),
        pages(least),
        np.array(least_share, np.float64),
        pages(most),
        np.array(most_share, np.float64),
    )


def test_fast_limits_none_hotter_program_gets_fast_tier() -> None:
    fast = Two(4.0, None).run()
    assert fast[0] >= 0.98 * FAST


def test_fast_limits_maximum_kept_rest_to_others() -> None:
    assert Two(4.0, limits(most=(500, 1 << 40))).run() == [500, FAST - 500]
    assert Two(4.0, limits(most_share=(0.25, 1.0))).run() == [FAST // 4, FAST * 3 // 4]


def test_fast_limits_minimum_kept_against_hotter_program() -> None:
    fast = Two(4.0, limits(least=(0, 300))).run()
    assert fast[1] == 300
    assert fast[0] >= FAST - 300 - 40
    assert Two(4.0, limits(least_share=(0.0, 0.5))).run()[1] == FAST // 2


def test_fast_limits_processes_of_target_share_maximum() -> None:
    both = Two(1.0, limits(most=(700, 0), group=(0, 0))).run()
    assert sum(both) == 700


def test_fast_limits_maximum_lowered_pages_demoted() -> None:
    two = Two(4.0, None)
    two.run()
    two.limits = limits(most=(100, 1 << 40))
    assert two.run(2)[0] == 100
    two.limits = limits(most=(0, 1 << 40))
    assert two.run(2)[0] == 0


def test_fast_limits_minimum_taken_from_program_above_its_own() -> None:
    two = Two(4.0, None)
    two.run()
    two.limits = limits(least=(1500, 300))
    fast = two.run()
    assert fast[1] == 300
    assert fast[0] >= 1500


def test_fast_limits_program_at_maximum_swaps_own_pages() -> None:
    two = Two(1.0, limits(most=(400, 400)))
    for used in ((0, 600), (1200, 1800)):
        two.used = used
        assert two.run(10) == [400, 400]
        node = two.heat.chunks.columns.node[: 2 * CHUNKS].reshape(2, PAGES)
        process = two.heat.chunks.columns.process[: 2 * CHUNKS : CHUNKS]
        assert sorted(process.tolist()) == [0, 1]
        assert ((node[:, slice(*used)] == 0).sum(axis=1) > 390).all()


@pytest.mark.parametrize(("priority", "first"), [(0.1, False), (10.0, True)])
def test_fast_limits_priority_decides_order_of_programs(priority: float, *, first: bool) -> None:
    two = Two(1.0 if first else 2.0, None)
    two.heat.set_process_weights(np.array([priority, 1.0]), np.ones(2))
    fast = two.run()
    assert (fast[0] > fast[1]) == first


def test_rate_of_a_group_leaves_budget_to_others() -> None:
    """The hotter program moves by its rate; the other is not kept waiting behind it."""
    rates = np.array([100 * PAGE_BYTES, 1 << 60])
    fast = []
    for both in (limits(), replace(limits(), rate_bytes=rates)):
        two = Two(4.0, both)
        two.used, two.budget_bytes = (0, 900), 700 * PAGE_BYTES
        two.tick()
        fast.append(two.fast)
    # As much as a huge page may move per tick, whatever the rate.
    assert fast == [[700, 0], [512, 188]]


def test_what_is_guaranteed_moves_before_what_pays() -> None:
    two = Two(4.0, limits(least=(0, 300)))
    two.budget_bytes = 400 * PAGE_BYTES
    two.tick()
    assert two.fast == [100, 300]


class Three:
    """Two programs with no slower pages than the middle one of three tiers can take."""

    def __init__(self, middle: tuple[int, int]) -> None:
        self.heat = HeatTable()
        self.heat.track_processes([ProcessId(1, 1), ProcessId(2, 1)])
        self._policy = Histogram(HistogramSettings(headroom=0.0, headroom_min=0))
        self._random = np.random.default_rng(5)
        self.middle = middle
        start = np.zeros(1, np.uint64)
        for slot in range(2):
            self.heat.record_nodes(slot, start, np.full((1, CHUNK_PAGES), 1, np.int8))

    def run(self, ticks: int = 4) -> npt.NDArray[np.int64]:
        """Return pages by program and tier."""
        nodes = tuple(Node(n, (0,) if n == 0 else (), 1 << 30, (10, 20, 30), n) for n in range(3))
        bytes_of = np.array(self.middle, np.int64) * PAGE_BYTES
        both = replace(limits(), middle=(bytes_of, np.ones(2)))
        for _ in range(ticks):
            page = self._random.integers(0, CHUNK_PAGES, 20_000).astype(np.uint64)
            process = self._random.integers(0, 2, 20_000).astype(np.int32)
            self.heat.update(AccessBatch.of(page * np.uint64(PAGE_BYTES), process, period=11))
            on = self.heat.resident_pages(3)[0].sum(axis=0)
            memory = tuple(
                NodeMemory(n, 1 << 30, max(0, size - int(on[n])) * PAGE_BYTES)
                for n, size in enumerate((100, 4096, 4096))
            )
            machine = MachineView(Topology(nodes), memory, 0.0, 1.0, 1 << 40, both)
            plan = self._policy.plan(self.heat.view(machine.topology), machine)
            self.heat.record_moves(plan, plan.to_node, np.zeros(len(plan), np.bool_))
        found: npt.NDArray[np.int64] = self.heat.resident_pages(3)[0]
        return found


def test_middle_tier_holds_no_more_of_a_group_than_its_most() -> None:
    pages = Three((150, 1 << 30)).run()
    assert pages[0, 1] == 150
    assert pages[0, 2] == CHUNK_PAGES - 150 - pages[0, 0] > 200
    # The other has no limit, and stays.
    assert pages[1, 2] == 0
    assert pages[:, 0].sum() == 100


def test_fast_limits_count_differs_from_processes_refused() -> None:
    two = Two(1.0, replace(limits(), group=np.zeros(1, np.int32)))
    with pytest.raises(ValueError, match="limits of 1 processes, not 2"):
        two.tick()
    with pytest.raises(ValueError, match="weights of 1 processes, not 2"):
        two.heat.set_process_weights(np.ones(1), np.ones(1))
