# SPDX-License-Identifier: MIT
"""The contract of every policy, on any machine and heat."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import ABSENT, CHUNK_BYTES, CHUNK_PAGES, FIXED, HeatSettings
from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Node, NodeMemory, Topology
from hmd.policy import registry
from hmd.policy.plan import FastLimits, MachineView, Plan, Policy
from hmd.sample.access_batch import AccessBatch

HEADROOM = 40
KEPT: dict[str, object] = {"headroom": 0.0, "headroom_min": HEADROOM * PAGE_BYTES}


def fresh(name: str) -> Policy:
    """A new policy with the headroom of the scenes."""
    has = set(registry.info(name).settings_type.model_fields)
    return registry.create(name, {key: value for key, value in KEPT.items() if key in has})


@dataclass(frozen=True)
class Scene:
    """A machine and its programs. ``nodes`` are (id, tier, free pages)."""

    nodes: tuple[tuple[int, int, int], ...]
    chunks: tuple[tuple[int, bool, tuple[int, ...]], ...]
    seed: int
    samples: int
    ticks: int
    budget_pages: int

    def table(self) -> HeatTable:
        """Pages on nodes (of each chunk: process, huge, nodes to choose from), and samples."""
        random = np.random.default_rng(self.seed)
        table = HeatTable(HeatSettings(min_window_samples=16))
        table.track_processes([ProcessId(10, 1), ProcessId(11, 1)])
        for number, (process, huge, codes) in enumerate(self.chunks):
            size = (1, 1) if huge else (1, CHUNK_PAGES)
            node = np.broadcast_to(random.choice(np.array(codes, np.int8), size), (1, CHUNK_PAGES))
            start = np.array([number * CHUNK_BYTES], np.uint64)
            table.record_nodes(process, start, node.copy(), np.array([huge]))
        for _ in range(self.ticks):
            table.update(self.batch(random))
        return table

    def batch(self, random: np.random.Generator) -> AccessBatch:
        """Samples mostly of the first pages of each chunk."""
        n = self.samples
        chunk = random.integers(0, len(self.chunks), n)
        page = (random.random(n) ** 8 * CHUNK_PAGES).astype(np.uint64)
        owner = np.array([process for process, _, _ in self.chunks], np.int32)
        return AccessBatch.of(
            chunk.astype(np.uint64) * np.uint64(CHUNK_BYTES) + page * np.uint64(PAGE_BYTES),
            owner[chunk],
            period=7,
        )

    def machine(self) -> MachineView:
        """Nodes whose distance grows with that of their indices."""
        nodes = tuple(
            Node(
                i, (), 4096 * PAGE_BYTES, tuple(10 + abs(a - b) for b in range(len(self.nodes))), t
            )
            for a, (i, t, _) in enumerate(self.nodes)
        )
        memory = tuple(
            NodeMemory(i, 4096 * PAGE_BYTES, free * PAGE_BYTES) for i, _, free in self.nodes
        )
        return MachineView(Topology(nodes), memory, 5.0, 1.0, self.budget_pages * PAGE_BYTES)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    ids = draw(st.lists(st.integers(0, 5), min_size=2, max_size=4, unique=True).map(sorted))
    tiers = [0, *(draw(st.integers(0, 2)) for _ in ids[2:]), draw(st.integers(0, 2))]
    # Full, all but full, with room for a huge page, with room for all.
    free = [draw(st.sampled_from([0, HEADROOM, HEADROOM + 1, 90, 600, 4000])) for _ in ids]
    kinds = st.tuples(
        st.integers(0, 1),
        st.sampled_from([False, False, True]),
        st.lists(st.sampled_from([*ids, *ids, ABSENT, FIXED - ids[0]]), min_size=1, max_size=3),
    )
    chunks = draw(st.lists(kinds, min_size=2, max_size=6))
    return Scene(
        tuple(zip(ids, tiers, free, strict=True)),
        tuple((process, huge, tuple(codes)) for process, huge, codes in chunks),
        seed=draw(st.integers(0, 1000)),
        samples=draw(st.sampled_from([0, 50, 5000, 20_000, 20_000])),
        ticks=draw(st.integers(1, 3)),
        budget_pages=draw(st.sampled_from([0, 1, 100, 1500, 1 << 20, 1 << 20])),
    )


@pytest.fixture(params=registry.names())
def policy(request: pytest.FixtureRequest) -> Policy:
    name: str = request.param
    return fresh(name)


contract = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def planned(policy: Policy, table: HeatTable, machine: MachineView) -> Plan:
    return policy.plan(table.view(machine.topology), machine)


def page_nodes(table: HeatTable) -> dict[tuple[int, int], int]:
    """The node of every page, as the table codes it, by slot and address."""
    columns, used = table.chunks.columns, table.chunks.used
    return {
        (int(columns.process[c]), int(columns.address[c]) + i * PAGE_BYTES): int(
            columns.node[columns.page_slot[c], i]
        )
        for c in range(used)
        for i in range(CHUNK_PAGES)
    }


@settings(contract, max_examples=250)
@given(scene=scenes())
def test_policy_moves_in_plan_order_are_possible(policy: Policy, scene: Scene) -> None:
    table = scene.table()
    plan = planned(policy, table, scene.machine())
    node = page_nodes(table)
    tier = {i: t for i, t, _ in scene.nodes}
    free = {i: pages for i, _, pages in scene.nodes}
    assert plan.processes == table.processes
    for row in range(len(plan)):
        source, target = int(plan.from_node[row]), int(plan.to_node[row])
        first, size = int(plan.address[row]), int(plan.pages[row])
        assert size in (1, CHUNK_PAGES)
        assert first % (size * PAGE_BYTES) == 0
        assert tier[source] != tier[target]
        for i in range(size):
            # Each page is where the plan says, may move (a fixed one has another code), and
            # moves once.
            key = (int(plan.process[row]), first + i * PAGE_BYTES)
            assert node.pop(key) == source
        free[target] -= size
        free[source] += size
        assert free[target] >= HEADROOM, f"row {row} of {len(plan)} overfills node {target}"


@contract
@given(scene=scenes())
def test_policy_plan_stays_within_budget(policy: Policy, scene: Scene) -> None:
    plan = planned(policy, scene.table(), scene.machine())
    assert plan.pages.sum() <= scene.budget_pages


@contract
@given(scene=scenes())
def test_policy_moves_huge_pages_whole(policy: Policy, scene: Scene) -> None:
    plan = planned(policy, scene.table(), scene.machine())
    for address, pages in zip(plan.address.tolist(), plan.pages.tolist(), strict=True):
        assert (pages == CHUNK_PAGES) == scene.chunks[address // CHUNK_BYTES][1]


@contract
@given(scene=scenes())
def test_policy_with_same_heat_gives_same_plan(policy: Policy, scene: Scene) -> None:
    # What a policy has kept of other programs may make a difference: it is new here.
    policy, other_policy = fresh(policy.name), fresh(policy.name)
    table = scene.table()
    plans = [planned(policy, table, scene.machine()) for _ in range(2)]
    plans.append(planned(other_policy, scene.table(), scene.machine()))
    for other in plans[1:]:
        for column in Plan.__slots__:
            assert np.array_equal(getattr(plans[0], column), getattr(other, column))


@contract
@given(scene=scenes())
def test_policy_plan_leaves_table_unchanged(policy: Policy, scene: Scene) -> None:
    table = scene.table()
    before = page_nodes(table)
    heat = table.chunks.columns.heat.copy()
    planned(policy, table, scene.machine())
    assert page_nodes(table) == before
    assert np.array_equal(table.chunks.columns.heat, heat)


@contract
@given(scene=scenes())
def test_policy_promotes_only_pages_with_heat(policy: Policy, scene: Scene) -> None:
    table = scene.table()
    plan = planned(policy, table, scene.machine())
    tier = {i: t for i, t, _ in scene.nodes}
    moved: defaultdict[bool, list[float]] = defaultdict(list)
    for row in range(len(plan)):
        up = tier[int(plan.to_node[row])] < tier[int(plan.from_node[row])]
        moved[up].append(float(plan.heat[row]))
    assert all(heat > 0 for heat in moved[True])


@st.composite
def fast_limits(draw: st.DrawFn) -> FastLimits:
    """Two processes in groups of their own or in one; figures from nothing to all of the tier."""
    group = draw(st.sampled_from([(0, 1), (1, 0), (0, 0)]))
    pages = st.sampled_from([0, 0, 1, 40, 600, 5000])
    share = st.sampled_from([0.0, 0.0, 0.01, 0.2, 1.0])
    rows = range(max(group) + 1)
    return FastLimits(
        np.array(group, np.int32),
        np.array([draw(pages) * PAGE_BYTES for _ in rows], np.int64),
        np.array([draw(share) for _ in rows]),
        np.array([draw(pages) * PAGE_BYTES for _ in rows], np.int64),
        np.array([1.0 - draw(share) for _ in rows]),
    )


def fast_pages(table: HeatTable, scene: Scene, limits: FastLimits) -> list[int]:
    """Pages of each group on the fastest tier, those that must stay too."""
    tier = {i: t for i, t, _ in scene.nodes}
    held = [0] * len(limits.least_bytes)
    for (process, _), code in page_nodes(table).items():
        node = FIXED - code if code <= FIXED else code
        held[limits.group[process]] += node != ABSENT and tier[node] == 0
    return held


def allowed(scene: Scene, limits: FastLimits) -> list[tuple[int, int]]:
    """The least and the most pages of each group."""
    fast = sum(4096 * PAGE_BYTES for _, tier, _ in scene.nodes if tier == 0)
    found = []
    for row in range(len(limits.least_bytes)):
        most = min(limits.most_bytes[row], limits.most_share[row] * fast) // PAGE_BYTES
        least = max(limits.least_bytes[row], limits.least_share[row] * fast) // PAGE_BYTES
        found.append((int(min(least, most)), int(most)))
    return found


@settings(contract, max_examples=150)
@given(scene=scenes(), limits=fast_limits())
def test_policy_with_fast_limits_keeps_them(
    policy: Policy, scene: Scene, limits: FastLimits
) -> None:
    table = scene.table()
    held, span = fast_pages(table, scene, limits), allowed(scene, limits)
    before = list(held)
    plan = planned(policy, table, replace(scene.machine(), limits=limits))
    assert plan.pages.sum() <= scene.budget_pages
    tier = {i: t for i, t, _ in scene.nodes}
    free = {i: pages for i, _, pages in scene.nodes}
    for row in range(len(plan)):
        source, target = int(plan.from_node[row]), int(plan.to_node[row])
        group, size = limits.group[plan.process[row]], int(plan.pages[row])
        free[source], free[target] = free[source] + size, free[target] - size
        assert free[target] >= HEADROOM
        held[group] += size * ((tier[target] == 0) - (tier[source] == 0))
        if tier[target] == 0:
            assert held[group] <= span[group][1]
    for had, has, (least, _) in zip(before, held, span, strict=True):
        # What swaps pages goes down first: only in the end are all there that must be.
        assert has >= min(had, least)


@settings(contract, max_examples=100)
@given(scene=scenes(), limits=fast_limits())
def test_policy_with_group_over_limit_demotes_the_excess(
    policy: Policy, scene: Scene, limits: FastLimits
) -> None:
    # The slower tiers have room for everything, and the budget suffices.
    nodes = tuple((i, t, 4000 if t else free) for i, t, free in scene.nodes)
    scene = replace(scene, nodes=nodes, budget_pages=1 << 20)
    table = scene.table()
    held, span = fast_pages(table, scene, limits), allowed(scene, limits)
    plan = planned(policy, table, replace(scene.machine(), limits=limits))
    tier = {i: t for i, t, _ in nodes}
    if policy.name == "none" or max(tier.values()) == 0:
        return
    for row in range(len(plan)):
        change = (tier[int(plan.to_node[row])] == 0) - (tier[int(plan.from_node[row])] == 0)
        held[limits.group[plan.process[row]]] += change * int(plan.pages[row])
    stays = fast_pages(fixed_only(scene), scene, limits)
    for group, (least, most) in enumerate(span):
        # Huge pages go whole, and none goes that its group must keep.
        assert held[group] <= max(most, stays[group], least + CHUNK_PAGES - 1)


def fixed_only(scene: Scene) -> HeatTable:
    """The table without the pages that may move."""
    table = scene.table()
    columns, used = table.chunks.columns, table.chunks.used
    process, address = columns.process[:used].copy(), columns.address[:used].copy()
    node, huge = columns.node[columns.page_slot[:used]], columns.huge[:used].copy()
    for chunk in range(used):
        fixed = np.where(node[chunk] >= 0, ABSENT, node[chunk])[None]
        table.record_nodes(
            int(process[chunk]), address[chunk : chunk + 1], fixed, huge[chunk : chunk + 1]
        )
    return table


def test_policy_without_processes_plans_nothing(policy: Policy) -> None:
    machine = Scene(((0, 0, 1000), (1, 1, 1000)), (), 0, 0, 0, 1 << 20).machine()
    assert len(planned(policy, HeatTable(), machine)) == 0
