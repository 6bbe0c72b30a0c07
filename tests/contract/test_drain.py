# SPDX-License-Identifier: MIT
"""The contract of drain and pin moves, alone and with policies, on any machine and heat."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_PAGES
from hmd.heat.table import HeatTable
from hmd.linux.topology import Node, NodeMemory, Topology
from hmd.policy import registry
from hmd.policy.admin import (
    drain_moves,
    drain_targets,
    machine_after,
    pin_moves,
    without_drained,
)
from hmd.policy.plan import MachineView, Plan
from tests.contract.test_policies import Scene, contract, fresh, page_nodes, scenes

NOBODY = np.zeros(2, np.bool_)


@st.composite
def drains(draw: st.DrawFn) -> tuple[Scene, frozenset[int]]:
    """A scene and the drained nodes: some of its nodes, not all."""
    scene = draw(scenes())
    ids = [node for node, _, _ in scene.nodes]
    chosen = draw(st.lists(st.sampled_from(ids), min_size=1, max_size=len(ids) - 1, unique=True))
    return scene, frozenset(chosen)


def rows(plan: Plan) -> list[tuple[int, int, int, int, int]]:
    """Moves as (process, address, pages, from, to)."""
    columns = (plan.process, plan.address, plan.pages, plan.from_node, plan.to_node)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def check_possible(scene: Scene, table: HeatTable, plan: Plan) -> None:
    """Each move is of a resident, movable page, whole, once, to a node with room."""
    node = page_nodes(table)
    free = {i: pages for i, _, pages in scene.nodes}
    for process, address, size, source, target in rows(plan):
        assert size in (1, CHUNK_PAGES)
        for i in range(size):
            assert node.pop((process, address + i * PAGE_BYTES)) == source
        free[target] -= size
        assert free[target] >= 0
    assert plan.pages.sum() <= scene.budget_pages


@contract
@given(case=drains())
def test_drain_moves_are_possible_and_within_budget(case: tuple[Scene, frozenset[int]]) -> None:
    scene, drained = case
    table = scene.table()
    machine = scene.machine()
    plan = drain_moves(table.view(machine.topology), machine, drained)
    check_possible(scene, table, plan)
    assert all(
        source in drained and target not in drained for _, _, _, source, target in rows(plan)
    )


@contract
@given(case=drains())
def test_drain_with_room_and_budget_empties_the_nodes(case: tuple[Scene, frozenset[int]]) -> None:
    scene, drained = case
    table, machine = scene.table(), scene.machine()
    roomy = tuple(NodeMemory(m.node, m.total_bytes, 1 << 40) for m in machine.memory)
    free = MachineView(machine.topology, roomy, 0.0, 1.0, 1 << 40)
    plan = drain_moves(table.view(machine.topology), free, drained)
    nodes = Counter(page_nodes(table).values())
    assert plan.pages.sum() == sum(nodes[node] for node in drained)


@contract
@given(case=drains())
def test_drain_with_short_budget_moves_hottest_first(case: tuple[Scene, frozenset[int]]) -> None:
    scene, drained = case
    table, machine = scene.table(), scene.machine()
    roomy = tuple(NodeMemory(m.node, m.total_bytes, 1 << 40) for m in machine.memory)
    free = MachineView(machine.topology, roomy, 0.0, 1.0, 1 << 40)
    everything = drain_moves(table.view(machine.topology), free, drained)
    some = MachineView(machine.topology, roomy, 0.0, 1.0, machine.budget_bytes)
    plan = drain_moves(table.view(machine.topology), some, drained)
    assert (np.diff(plan.heat) <= 0).all()
    # What waits is colder, but for huge pages that the budget does not pay for any more.
    moved = {(process, address) for process, address, *_ in rows(plan)}
    waits = [
        heat
        for (process, address, size, *_), heat in zip(
            rows(everything), everything.heat.tolist(), strict=True
        )
        if (process, address) not in moved and size == 1
    ]
    small = plan.heat[plan.pages == 1]
    if waits and len(small):
        assert max(waits) <= small.min()
    if waits:
        assert plan.pages.sum() == scene.budget_pages


@contract
@given(case=drains(), held=st.tuples(st.booleans(), st.booleans()))
def test_drain_of_pinned_processes_plans_no_move(
    case: tuple[Scene, frozenset[int]], held: tuple[bool, bool]
) -> None:
    scene, drained = case
    machine = scene.machine()
    pages = scene.table().view(machine.topology, np.array(held))
    plan = drain_moves(pages, machine, drained)
    assert not any(held[process] for process in plan.process.tolist())


@contract
@given(case=drains(), goals=st.tuples(*[st.sampled_from([-1, 0, 1, 2, 3, 4, 5])] * 2))
def test_pin_moves_go_to_the_pinned_node(
    case: tuple[Scene, frozenset[int]], goals: tuple[int, int]
) -> None:
    scene, drained = case
    known = {node for node, _, _ in scene.nodes}
    goal = np.array([g if g in known else -1 for g in goals], np.int64)
    table = scene.table()
    machine = scene.machine()
    plan = pin_moves(table.view(machine.topology), machine, goal, drained)
    check_possible(scene, table, plan)
    for process, _, _, source, target in rows(plan):
        assert target == goal[process] != source
        assert target not in drained


@pytest.mark.parametrize("name", registry.names())
@contract
@given(case=drains(), held=st.tuples(st.booleans(), st.booleans()))
def test_policy_with_drain_and_pins_avoids_drained_nodes_and_pins(
    name: str, case: tuple[Scene, frozenset[int]], held: tuple[bool, bool]
) -> None:
    scene, drained = case
    table, machine = scene.table(), scene.machine()
    before = page_nodes(table)
    emptied = drain_moves(table.view(machine.topology, np.array(held)), machine, drained)
    machine = without_drained(machine_after(machine, emptied), drained)
    plan = fresh(name).plan(table.view(machine.topology, np.array(held)), machine)
    assert page_nodes(table) == before
    for process, _, _, source, target in rows(plan):
        assert not {source, target} & drained
        assert not held[process]
    # Both together find room, in their order, and are within the budget.
    check_budget_and_room(scene, Plan.joined((emptied, plan)))


def check_budget_and_room(scene: Scene, plan: Plan) -> None:
    free = {i: pages for i, _, pages in scene.nodes}
    for _, _, size, source, target in rows(plan):
        free[source] += size
        free[target] -= size
        assert free[target] >= 0
    assert plan.pages.sum() <= scene.budget_pages
    pages = [(process, address) for process, address, *_ in rows(plan)]
    assert len(set(pages)) == len(pages)


def test_drain_targets_prefer_same_tier_then_nearest_tier() -> None:
    topology = Topology(
        (
            Node(0, (0,), 1, (10, 20, 14, 28), 0),
            Node(1, (1,), 1, (20, 10, 28, 14), 0),
            Node(2, (), 1, (14, 28, 10, 30), 1),
            Node(3, (), 1, (28, 14, 30, 10), 2),
        )
    )
    assert drain_targets(topology, {0}) == {0: (1, 2, 3)}
    assert drain_targets(topology, {2}) == {2: (0, 1, 3)}
    assert drain_targets(topology, {3, 2}) == {2: (0, 1), 3: (1, 0)}
    assert [node.distances for node in topology.without({1, 2}).nodes] == [(10, 28), (28, 10)]
    assert topology.without({2}).tiers == ((0, 1), (3,))


def test_drain_and_pin_without_moves_compute_no_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(((0, 0, 10), (1, 1, 10)), ((0, False, (0,)),), 0, 0, 1, 1000)
    table = scene.table()
    monkeypatch.setattr(table, "rates", None)
    machine = scene.machine()
    pages = table.view(machine.topology)
    assert not len(drain_moves(pages, machine, {1}))
    assert not len(pin_moves(pages, machine, np.array([0, -1])))
