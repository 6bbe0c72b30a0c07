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
from hmd.heat.geometry import CHUNK_PAGES
from hmd.machine.topology import Topology
from hmd.units import PAGE_BYTES

if TYPE_CHECKING:
    from hmd.heat.heat_table import HeatTable

Integers = npt.NDArray[np.int64]


def drain(
    heat: HeatTable,
    machine: MachineView,
    drained: Collection[int],
    held: npt.NDArray[np.bool_] | None = None,
) -> Plan:
    """Return moves off the ``drained`` nodes, each page to the node that is :func:`nearest`.

    Pages of processes that are ``held``, shape ``(processes,)``, stay, and so do those that must.
    """
    if not len(drained) or not heat.chunks.used or machine.budget_bytes < PAGE_BYTES:
        return Plan.empty(heat.processes)
    columns, used = heat.chunks.columns, heat.chunks.used
    leaves = np.isin(columns.node[:used], np.array(sorted(drained), np.int64))
    if held is not None:
        leaves &= ~held[columns.process[:used], None]
    if not leaves.any():
        return Plan.empty(heat.processes)
    page, size, rate = _hottest(heat, leaves, machine.budget_bytes)
    nodes = nodes_of(machine, 0.0, 0)
    source = columns.node.reshape(-1)[page].astype(np.int64)
    target = spread(size, source, open_room(nodes, drained), nearest(machine.topology, drained))
    return _plan(heat, page, size, rate, source, target)


def gather(
    heat: HeatTable,
    machine: MachineView,
    goal: npt.NDArray[np.int64],
    drained: Collection[int] = (),
) -> Plan:
    """Return moves that bring processes' pages to their ``goal``, shape ``(processes,)``.

    A goal is a node, -1 for processes that have none; one that is ``drained`` has no room.
    """
    used = heat.chunks.used
    if not (goal >= 0).any() or not used or machine.budget_bytes < PAGE_BYTES:
        return Plan.empty(heat.processes)
    columns = heat.chunks.columns
    wanted = goal[columns.process[:used], None]
    node = columns.node[:used]
    leaves = (wanted >= 0) & (node >= 0) & (node != wanted)
    if not leaves.any():
        return Plan.empty(heat.processes)
    page, size, rate = _hottest(heat, leaves, machine.budget_bytes)
    nodes = nodes_of(machine, 0.0, 0)
    room = open_room(nodes, drained)
    source = columns.node.reshape(-1)[page].astype(np.int64)
    ends = goal[columns.process[page // CHUNK_PAGES]]
    target = np.full(len(page), -1, np.int64)
    for end in np.unique(ends).tolist():
        rows = np.flatnonzero(ends == end)
        if end < len(room):
            rows = rows[_fitting(size[rows], int(room[end]))]
            target[rows] = end
    return _plan(heat, page, size, rate, source, target)


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


def _hottest(
    heat: HeatTable, leaves: npt.NDArray[np.bool_], budget_bytes: int
) -> tuple[npt.NDArray[np.intp], Integers, npt.NDArray[np.float32]]:
    """Return pages that leave, as many as the budget pays for: number, size, rate."""
    columns, used = heat.chunks.columns, heat.chunks.used
    leaves[:, 1:] &= ~columns.huge[:used, None]
    page = np.flatnonzero(leaves)
    rate = heat.rates().rate.reshape(-1)[page]
    order = np.argsort(-rate, kind="stable")
    page, rate = page[order], rate[order]
    size = np.where(columns.huge[page // CHUNK_PAGES], CHUNK_PAGES, 1).astype(np.int64)
    paid = _fitting(size, min(budget_bytes, 1 << 62) // PAGE_BYTES)
    return page[paid], size[paid], rate[paid]


def _plan(
    heat: HeatTable,
    page: npt.NDArray[np.intp],
    size: Integers,
    rate: npt.NDArray[np.float32],
    source: Integers,
    target: Integers,
) -> Plan:
    """Return the plan of the pages that have a target."""
    rows = np.flatnonzero(target >= 0)
    return moves_of(heat, page[rows], size[rows], source[rows], target[rows], rate[rows])
