# SPDX-License-Identifier: MIT
"""What administrators requested and is in force, and the moves that follow from it.

:class:`AdminState` holds pause, drained nodes, pins, moves and another policy. One object lives as
long as the daemon; a reload builds new stages around it. What of it outlives a restart is on disk
(:mod:`hmd.control.admin_store`).

:func:`plan_admin_moves` plans moves off drained nodes and to the nodes of pins, the hottest pages
first, within free memory and budget: before those of the policy, which plans with the machine as
they leave it. :func:`plan_never_slow` plans likewise for targets that stay on the fastest tier.
About 20 ns per page of the table while there are pages to move.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Topology
from hmd.policy.nodes import Nodes, nodes_of
from hmd.policy.plan import MachineView, Plan, moves_of

if TYPE_CHECKING:
    from hmd.heat.table import HeatTable
    from hmd.heat.view import PageView

MAX_STALLED_TICKS: Final = 3
"""Ticks without progress after which the rest of a drained node counts as unmovable."""

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pin:
    """A process's pages stay on ``node``, or where they are (None); ``uid``, ``gid`` asked."""

    node: int | None
    uid: int
    gid: int = 0
    until_restart: bool = False


@dataclass(slots=True)
class AdminState:
    """The admin requests in force; only the thread that runs ticks writes it.

    ``pins`` are of processes, ``target_pins`` of all processes that a target has or will have.
    ``moves`` are under way and are dropped when they are done. ``policy`` replaces that of the
    configuration. ``stalled_ticks`` counts ticks in which drains made no progress, ``drains``
    changes of the set of drained nodes. ``until_restart`` names what ends with the daemon ("pause",
    "policy", "node 1"); pins have it themselves.
    """

    paused: bool = False
    policy: str | None = None
    drained: frozenset[int] = frozenset()
    pins: dict[ProcessId, Pin] = field(default_factory=dict)
    target_pins: dict[str, Pin] = field(default_factory=dict)
    moves: dict[ProcessId, Pin] = field(default_factory=dict)
    stalled_ticks: int = 0
    drains: int = 0
    until_restart: set[str] = field(default_factory=set)

    def set_lifetime(self, names: Iterable[str], *, until_restart: bool) -> None:
        """Note whether these requests end with the daemon."""
        if until_restart:
            self.until_restart.update(names)
        else:
            self.until_restart.difference_update(names)

    @property
    def requests_moves(self) -> bool:
        """Whether pages are to move by request, which does not wait for the CPU quota."""
        return bool(self.drained or self.moves)

    def pinned_mask(
        self, processes: Sequence[ProcessId], targets: Sequence[str]
    ) -> npt.NDArray[np.bool_]:
        """Return which processes' pages policies may not move, shape ``(processes,)``.

        Raises ValueError unless there is a target for each process: kernels check no bounds of the
        mask.
        """
        pins = self._pins_of(processes, targets)
        if pins is None:
            return np.zeros(len(processes), np.bool_)
        return np.array([pin is not None for pin in pins], np.bool_)

    def pin_nodes(self, processes: Sequence[ProcessId], targets: Sequence[str]) -> Integers:
        """Return the node that each process is pinned to, -1 for none."""
        pins = self._pins_of(processes, targets)
        if pins is None:
            return np.full(len(processes), -1, np.int64)
        return np.array([-1 if p is None or p.node is None else p.node for p in pins], np.int64)

    def _pins_of(
        self, processes: Sequence[ProcessId], targets: Sequence[str]
    ) -> list[Pin | None] | None:
        """Return the pin or move of each process; None where there are none at all."""
        if not (self.pins or self.target_pins or self.moves):
            return None
        return [
            self.pins.get(process) or self.target_pins.get(target) or self.moves.get(process)
            for process, target in zip(processes, targets, strict=True)
        ]

    def drain(self, nodes: frozenset[int]) -> None:
        """Replace the set of drained nodes."""
        self.drained, self.stalled_ticks = nodes, 0
        self.drains += 1

    def retain_pins(self, valid: Callable[[ProcessId, Pin], bool]) -> None:
        """Drop pins and moves of processes for which they are not ``valid`` any more."""
        for pins in (self.pins, self.moves):
            for process, pin in list(pins.items()):
                if not valid(process, pin):
                    del pins[process]

    def end_moves(self, processes: Iterable[ProcessId]) -> None:
        """Drop the moves of these processes: policies may move their pages again."""
        for process in processes:
            self.moves.pop(process, None)


def movable_pages(
    admin: AdminState, heat: HeatTable, targets: Sequence[str], nodes: Collection[int]
) -> Integers:
    """Return how many pages on ``nodes`` ticks may move, by process of the heat table."""
    movable, _ = heat.resident_pages(max(nodes) + 1)
    pages: Integers = movable[:, sorted(nodes)].sum(axis=1)
    return np.where(admin.pinned_mask(heat.processes, targets), 0, pages)


def plan_admin_moves(
    admin: AdminState,
    heat: HeatTable,
    machine: MachineView,
    targets: Sequence[str],
    max_rows: int,
) -> tuple[Plan, MachineView]:
    """Return the moves off drained nodes and to the nodes of pins, and the machine after them.

    Policies do not see its drained nodes. At most ``max_rows`` rows are considered for drains, and
    as many for pins.
    """
    topology = machine.topology
    pinned = admin.pinned_mask(heat.processes, targets)
    plan = Plan.empty(heat.processes)
    if admin.drained:
        leaves = ~pinned[:, None] & node_mask(topology, admin.drained)
        pages = heat.rows_to_evacuate(topology, pinned, leaves, max_rows)
        plan = drain_moves(pages, machine, admin.drained)
        machine = machine_after(machine, plan)
    if pinned.any():
        goals = admin.pin_nodes(heat.processes, targets)
        every = np.arange(len(topology.latency_ns))
        leaves = (goals >= 0)[:, None] & (every != goals[:, None])
        pages = heat.rows_to_evacuate(topology, np.zeros_like(pinned), leaves, max_rows)
        gathered = pin_moves(pages, machine, goals, admin.drained)
        plan, machine = Plan.joined((plan, gathered)), machine_after(machine, gathered)
    return plan, without_drained(machine, admin.drained)


def plan_never_slow(
    heat: HeatTable, machine: MachineView, chosen: npt.NDArray[np.bool_], max_rows: int
) -> tuple[Plan, MachineView]:
    """Return moves of the ``chosen`` processes' pages to the fastest tier, and the machine after.

    The hottest first, sampled or not, within free memory and budget. For what finds no room, the
    machine has so much less free memory: policies bring pages of others down to make it, and a
    later tick moves these up.
    """
    topology = machine.topology
    fastest = topology.tiers[0] if topology.tiers else ()
    slow = [node for tier in topology.tiers[1:] for node in tier]
    leaves = chosen[:, None] & node_mask(topology, slow)
    left = int(heat.resident_pages(leaves.shape[1])[0][leaves].sum()) * PAGE_BYTES
    if not left:
        return Plan.empty(heat.processes), machine
    pages = heat.rows_to_evacuate(topology, ~chosen, leaves, max_rows)
    here = pages.node.astype(np.int64)
    every = np.ones(len(here), np.bool_)
    plan = _moves_to(pages, machine, every, here, drain_targets(topology, slow), ())
    machine = machine_after(machine, plan)
    left = min(left - int(plan.pages.sum()) * PAGE_BYTES, max(machine.budget_bytes, 0))
    short = {node: left // len(fastest) for node in fastest}
    memory = tuple(
        replace(each, free_bytes=each.free_bytes - short.get(each.node, 0))
        for each in machine.memory
    )
    return plan, replace(machine, memory=memory)


def node_mask(topology: Topology, nodes: Collection[int]) -> npt.NDArray[np.bool_]:
    """Return which node ids are among ``nodes``, shape ``(nodes,)``."""
    return np.isin(np.arange(len(topology.latency_ns)), list(nodes))


def drain_moves(pages: PageView, machine: MachineView, drained: Collection[int]) -> Plan:
    """Return moves off the ``drained`` nodes, each page to its :func:`drain_targets`."""
    if not len(pages):
        return Plan.empty(pages.processes)
    leaves = np.isin(pages.node, sorted(drained))
    return _moves_to(
        pages,
        machine,
        leaves,
        pages.node.astype(np.int64),
        drain_targets(machine.topology, drained),
        drained,
    )


def pin_moves(
    pages: PageView, machine: MachineView, goal: Integers, drained: Collection[int] = ()
) -> Plan:
    """Return moves of processes' pages to their ``goal``: a node, -1 for none, ``(processes,)``."""
    if not len(pages):
        return Plan.empty(pages.processes)
    ends = goal[pages.process]
    leaves = (ends >= 0) & (pages.node != ends)
    return _moves_to(
        pages, machine, leaves, ends, {node: (node,) for node in goal.tolist()}, drained
    )


def _moves_to(
    pages: PageView,
    machine: MachineView,
    leaves: npt.NDArray[np.bool_],
    key: Integers,
    targets: Mapping[int, Sequence[int]],
    drained: Collection[int],
) -> Plan:
    """Return moves of the hottest rows that leave, each to the first of its targets with room.

    ``targets`` are nodes by ``key`` of a row.
    """
    rows = np.flatnonzero(leaves & pages.movable)
    if not len(rows) or machine.budget_bytes < PAGE_BYTES:
        return Plan.empty(pages.processes)
    rows = rows[np.argsort(-pages.rate[rows], kind="stable")]
    budget = min(machine.budget_bytes, 1 << 62) // PAGE_BYTES
    rows = rows[_fitting(pages.size[rows].astype(np.int64), budget)]
    leaving, room = pages.take(rows), open_room(nodes_of(machine, 0.0, 0), drained)
    target = assign_nodes(leaving.size, key[rows], room, targets)
    placed = np.flatnonzero(target >= 0)
    return moves_of(pages.processes, leaving, placed, target[placed])


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
    size: Integers, key: Integers, room: Integers, targets: Mapping[int, Sequence[int]]
) -> Integers:
    """Return the target node of each page, -1 where none has room; columns of shape ``(n,)``.

    ``targets`` are the nodes for each ``key`` of a page. The first of the pages, each of ``size``
    base pages, choose first. ``room`` is updated.
    """
    target = np.full(len(size), -1, np.int64)
    for each in np.unique(key).tolist():
        for node in targets.get(each, ()):
            if node >= len(room):
                continue
            rows = np.flatnonzero((key == each) & (target < 0))
            rows = rows[_fitting(size[rows], int(room[node]))]
            target[rows] = node
            room[node] -= size[rows].sum()
    return target


def _fitting(size: Integers, room: int) -> npt.NDArray[np.intp]:
    """Return the rows that fit: the first ones, then base pages where a huge page does not."""
    fits = np.cumsum(size) <= room
    small = ~fits & (size == 1)
    fits |= small & (np.cumsum(small) <= room - int(size[fits].sum()))
    return np.flatnonzero(fits)
