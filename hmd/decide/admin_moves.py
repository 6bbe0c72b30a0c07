"""Moves that somebody has ordered: off a node that is to be empty, or to the node of a pin.

Takes heat and the machine, gives plans as policies do, the hottest pages first, within room and
budget; about 20 ns a page of the table while there is something to move, else 1 ns. What is to move
goes before what a policy wants; :func:`after` tells the policy what that leaves it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hmd.decide.node_arrays import Nodes, nodes_of
from hmd.decide.plan import MachineView, Plan
from hmd.decide.plan_rows import moves_of
from hmd.machine.topology import Topology
from hmd.units import PAGE_BYTES

if TYPE_CHECKING:
    from hmd.heat.page_view import PageRows, PageView

Integers = npt.NDArray[np.int64]


def drain(pages: PageView, machine: MachineView, drained: Collection[int]) -> Plan:
    """Return moves off the ``drained`` nodes, each page to the node that is :func:`nearest`."""
    if not len(drained) or not len(pages) or machine.budget_bytes < PAGE_BYTES:
        return Plan.empty(pages.processes)
    leaves = pages.movable & np.isin(pages.node, np.array(sorted(drained), np.int64))
    if not leaves.any():
        return Plan.empty(pages.processes)
    leaving = _hottest(pages, np.flatnonzero(leaves), machine.budget_bytes)
    room = open_room(nodes_of(machine, 0.0, 0), drained)
    target = spread(leaving.size, leaving.node, room, nearest(machine.topology, drained))
    return _moves(pages, leaving, target)


def gather(
    pages: PageView,
    machine: MachineView,
    goal: npt.NDArray[np.int64],
    drained: Collection[int] = (),
) -> Plan:
    """Return moves that bring processes' pages to their ``goal``, shape ``(processes,)``.

    A goal is a node, -1 for processes that have none; a ``drained`` goal takes no pages.
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


def after(machine: MachineView, plan: Plan) -> MachineView:
    """Return the machine as it is once a plan was carried out: room, and what the budget has."""
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


def beside(machine: MachineView, drained: Collection[int]) -> MachineView:
    """Return the machine without its drained nodes: what policies may plan with."""
    if not len(drained):
        return machine
    return replace(
        machine,
        topology=machine.topology.without(drained),
        memory=tuple(m for m in machine.memory if m.node not in drained),
    )


def nearest(topology: Topology, drained: Collection[int]) -> dict[int, tuple[int, ...]]:
    """Return for each drained node where its pages go, the first choice first.

    To the same tier if that has room, else to those nearest to it in speed: which pages are worth
    a faster tier is the policy's to say. Within a tier by distance.
    """
    rank = {node: tier for tier, nodes in enumerate(topology.tiers) for node in nodes}
    ways: dict[int, tuple[int, ...]] = {}
    for node in topology.nodes:
        if node.id not in drained:
            continue
        distance = dict(zip((n.id for n in topology.nodes), node.distances, strict=False))
        others = [n.id for n in topology.nodes if n.id not in drained]
        here = rank[node.id]
        ways[node.id] = tuple(
            sorted(others, key=lambda n: (abs(rank[n] - here), distance.get(n, 0), n))
        )
    return ways


def open_room(nodes: Nodes, drained: Collection[int]) -> Integers:
    """Return how many pages each node can take, shape ``(nodes,)``: drained ones none."""
    room = np.maximum(nodes.room, 0)
    room[[node for node in drained if node < len(room)]] = 0
    return room


def spread(
    size: Integers, source: Integers, room: Integers, ways: dict[int, tuple[int, ...]]
) -> Integers:
    """Return the node to which each page goes, -1 where none has room; columns of shape ``(n,)``.

    Pages of ``size`` 4 KiB are given in the order in which they choose. ``room`` is filled up.
    """
    target = np.full(len(size), -1, np.int64)
    for origin in np.unique(source).tolist():
        for node in ways.get(origin, ()):
            rows = np.flatnonzero((source == origin) & (target < 0))
            rows = rows[_fitting(size[rows], int(room[node]))]
            target[rows] = node
            room[node] -= size[rows].sum()
    return target


def _fitting(size: Integers, room: int) -> npt.NDArray[np.intp]:
    """Return the rows that fit: the first ones, then single pages where a huge one does not."""
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
