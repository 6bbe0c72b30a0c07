"""Moves that administrators requested: off drained nodes, and to the nodes of pins.

Takes heat and the machine; gives plans as policies do, the hottest pages first, within room and
budget. About 20 ns per page of the table while there are pages to move, else 1 ns. These moves come
before those of the policy, which plans with the machine of :func:`machine_after`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hmd.decide.node_arrays import Nodes, nodes_of
from hmd.decide.plan import MachineView, Plan
from hmd.decide.planning.plan_rows import moves_of
from hmd.machine.nodes.topology import Topology
from hmd.units import PAGE_BYTES

if TYPE_CHECKING:
    from hmd.heat.view.page_view import PageRows, PageView

Integers = npt.NDArray[np.int64]


def drain_moves(pages: PageView, machine: MachineView, drained: Collection[int]) -> Plan:
    """Return moves off the ``drained`` nodes, each page to its :func:`drain_targets`."""
    if not len(drained) or not len(pages) or machine.budget_bytes < PAGE_BYTES:
        return Plan.empty(pages.processes)
    leaves = pages.movable & np.isin(pages.node, np.array(sorted(drained), np.int64))
    if not leaves.any():
        return Plan.empty(pages.processes)
    leaving = _hottest(pages, np.flatnonzero(leaves), machine.budget_bytes)
    room = open_room(nodes_of(machine, 0.0, 0), drained)
    target = assign_nodes(
        leaving.size, leaving.node, room, drain_targets(machine.topology, drained)
    )
    return _moves(pages, leaving, target)


def pin_moves(
    pages: PageView,
    machine: MachineView,
    goal: npt.NDArray[np.int64],
    drained: Collection[int] = (),
) -> Plan:
    """Return moves of processes' pages to their ``goal``, shape ``(processes,)``.

    A goal is a node, -1 for processes without one; a ``drained`` goal takes no pages.
    """
    if not (goal >= 0).any() or not len(pages) or machine.budget_bytes < PAGE_BYTES:
        return Plan.empty(pages.processes)
    ends = goal[pages.process]
    leaves = pages.movable & (ends >= 0) & (pages.node != ends)
    if not leaves.any():
        return Plan.empty(pages.processes)
    leaving = _hottest(pages, np.flatnonzero(leaves), machine.budget_bytes)
    room = open_room(nodes_of(machine, 0.0, 0), drained)
    ends = goal[leaving.process]
    target = np.full(len(ends), -1, np.int64)
    for end in np.unique(ends).tolist():
        rows = np.flatnonzero(ends == end)
        if end < len(room):
            rows = rows[_fitting(leaving.size[rows], int(room[end]))]
            target[rows] = end
    return _moves(pages, leaving, target)


def machine_after(machine: MachineView, plan: Plan) -> MachineView:
    """Return the machine as it is once a plan was applied: free memory and budget."""
    if not len(plan):
        return machine
    size = plan.pages.astype(np.int64) * PAGE_BYTES
    came = {n: int(size[plan.to_node == n].sum()) for n in np.unique(plan.to_node).tolist()}
    left = {n: int(size[plan.from_node == n].sum()) for n in np.unique(plan.from_node).tolist()}
    memory = tuple(
        replace(m, free_bytes=m.free_bytes - came.get(m.node, 0) + left.get(m.node, 0))
        for m in machine.memory
    )
    budget = machine.budget_bytes - int(size.sum())
    return replace(machine, memory=memory, budget_bytes=budget)


def without_drained(machine: MachineView, drained: Collection[int]) -> MachineView:
    """Return the machine without its drained nodes, as policies see it."""
    if not len(drained):
        return machine
    return replace(
        machine,
        topology=machine.topology.without(drained),
        memory=tuple(m for m in machine.memory if m.node not in drained),
    )


def drain_targets(topology: Topology, drained: Collection[int]) -> dict[int, tuple[int, ...]]:
    """Return for each drained node where its pages go, the first choice first.

    Nodes of the same tier come first, then those of the tiers nearest in speed: which pages deserve
    a faster tier is the policy's decision. Within a tier nodes are sorted by distance.
    """
    rank = {node: tier for tier, nodes in enumerate(topology.tiers) for node in nodes}
    targets: dict[int, tuple[int, ...]] = {}
    for node in topology.nodes:
        if node.id not in drained:
            continue
        distance = dict(zip((n.id for n in topology.nodes), node.distances, strict=False))
        others = [n.id for n in topology.nodes if n.id not in drained]
        here = rank[node.id]
        targets[node.id] = tuple(
            sorted(others, key=lambda n: (abs(rank[n] - here), distance.get(n, 0), n))
        )
    return targets


def open_room(nodes: Nodes, drained: Collection[int]) -> Integers:
    """Return how many pages each node can take, shape ``(nodes,)``; drained nodes take none."""
    room = np.maximum(nodes.room, 0)
    room[[node for node in drained if node < len(room)]] = 0
    return room


def assign_nodes(
    size: Integers, source: Integers, room: Integers, targets: dict[int, tuple[int, ...]]
) -> Integers:
    """Return the target node of each page, -1 where none has room; columns of shape ``(n,)``.

    The first of the pages, each of ``size`` 4 KiB, choose first. ``room`` is updated.
    """
    target = np.full(len(size), -1, np.int64)
    for origin in np.unique(source).tolist():
        for node in targets.get(origin, ()):
            rows = np.flatnonzero((source == origin) & (target < 0))
            rows = rows[_fitting(size[rows], int(room[node]))]
            target[rows] = node
            room[node] -= size[rows].sum()
    return target


def _fitting(size: Integers, room: int) -> npt.NDArray[np.intp]:
    """Return the rows that fit: the first ones, then 4 KiB pages where a huge page does not."""
    fits = np.cumsum(size) <= room
    small = ~fits & (size == 1)
    fits |= small & (np.cumsum(small) <= room - int(size[fits].sum()))
    return np.flatnonzero(fits)


def _hottest(pages: PageView, rows: npt.NDArray[np.intp], budget_bytes: int) -> PageRows:
    """Return the hottest of some rows, as many as the budget covers."""
    rows = rows[np.argsort(-pages.rate[rows], kind="stable")]
    budget = min(budget_bytes, 1 << 62) // PAGE_BYTES
    return pages.take(rows[_fitting(pages.size[rows].astype(np.int64), budget)])


def _moves(pages: PageView, leaving: PageRows, target: Integers) -> Plan:
    """Return the plan of the pages that have a target, in their order."""
    rows = np.flatnonzero(target >= 0)
    return moves_of(pages.processes, leaving, rows, target[rows])
