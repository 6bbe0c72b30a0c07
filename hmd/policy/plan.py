# SPDX-License-Identifier: MIT
"""Policies and their plans: what a policy sees, what it asks for, and the moves of a tick.

A policy gets a :class:`MachineView` and returns a :class:`Plan`, most of them by way of a
:class:`TierRequest`. The daemon, the simulator and training call the same policy object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from hmd.base.units import HUGE_PAGE_PAGES, PAGE_BYTES
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import NodeMemory, Topology

if TYPE_CHECKING:
    from hmd.heat.view import PageRows, PageView


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves, phase by phase; all columns have shape ``(n,)``.

    ``process`` indexes ``processes``; ``address`` is the start of a page of ``pages`` base pages
    (1, or 512 for a huge page); nodes are node ids. ``phase`` never falls from one move to the
    next: demotions that make room are in an earlier phase than the promotions that need it, and
    the moves of one phase may be made in any order. The mover defers the last rows where its
    budget ends. The first ``requested`` moves are administrators' requests.
    """

    processes: tuple[ProcessId, ...]
    process: npt.NDArray[np.int32]
    address: npt.NDArray[np.uint64]
    pages: npt.NDArray[np.uint32]
    from_node: npt.NDArray[np.int16]
    to_node: npt.NDArray[np.int16]
    heat: npt.NDArray[np.float32]
    phase: npt.NDArray[np.int32]
    requested: int = 0

    def __len__(self) -> int:
        """Return the number of moves."""
        return len(self.address)

    def take(self, rows: npt.NDArray[np.intp]) -> Plan:
        """Return a plan of the given rows, in their order."""
        return Plan(
            self.processes,
            self.process[rows],
            self.address[rows],
            self.pages[rows],
            self.from_node[rows],
            self.to_node[rows],
            self.heat[rows],
            self.phase[rows],
        )

    def to(self, node: npt.NDArray[np.int16]) -> Plan:
        """Return a plan that moves the same pages to other nodes, shape ``(n,)``."""
        return replace(self, to_node=node)

    @classmethod
    def joined(cls, plans: Sequence[Plan]) -> Plan:
        """Return the moves of plans of the same processes, in phases one plan after the other."""
        some = [plan for plan in plans if len(plan)]
        if len(some) < 2:
            return some[0] if some else plans[0]
        first = np.cumsum([0, *(p.phase[-1] + 1 for p in some[:-1])])
        phase = [p.phase + start for p, start in zip(some, first.tolist(), strict=True)]
        return cls(
            some[0].processes,
            np.concatenate([p.process for p in some]),
            np.concatenate([p.address for p in some]),
            np.concatenate([p.pages for p in some]),
            np.concatenate([p.from_node for p in some]),
            np.concatenate([p.to_node for p in some]),
            np.concatenate([p.heat for p in some]),
            np.concatenate(phase).astype(np.int32),
        )

    @classmethod
    def empty(cls, processes: Sequence[ProcessId] = ()) -> Plan:
        """Return a plan of no moves."""
        return cls(
            tuple(processes),
            np.empty(0, np.int32),
            np.empty(0, np.uint64),
            np.empty(0, np.uint32),
            np.empty(0, np.int16),
            np.empty(0, np.int16),
            np.empty(0, np.float32),
            np.empty(0, np.int32),
        )


@dataclass(frozen=True, slots=True)
class FastLimits:
    """How much of the fastest tier groups of processes may have.

    ``group``, shape ``(processes,)`` as ``PageView.processes``, is each process's row in the
    columns of shape ``(groups,)``: ``least`` stay or come there whatever others' heat, of those
    pages that have any; ``most`` is all that may. Each is in bytes and in shares of the tier's
    memory; of two least ones the larger holds, of two most ones the smaller.
    """

    group: npt.NDArray[np.int32]
    least_bytes: npt.NDArray[np.int64]
    least_share: npt.NDArray[np.float64]
    most_bytes: npt.NDArray[np.int64]
    most_share: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MachineView:
    """What a policy may know of the machine at this tick.

    ``now_s`` is a clock of the caller's (real or virtual), ``tick_s`` the length of a tick,
    ``budget_bytes`` what the mover may move in this tick. ``limits`` are kept by
    :func:`hmd.policy.planning.build_plan` for every policy; None where there are none.
    Where accesses are not ``counted``, rates order pages, but say nothing of time: such samplers
    see once per tick whether a page was accessed. ``allocation_bytes`` is what programs are
    expected to allocate until the next tick, None where that is not known. ``cpus``, shape
    ``(processes,)`` as ``PageView.processes``, is how many CPUs each process keeps busy, NaN where
    that is not known; None: of no process. ``move_delay_s`` is the time from the last sample until
    half of the planned pages have moved, by earlier ticks.
    """

    topology: Topology
    memory: tuple[NodeMemory, ...]
    now_s: float
    tick_s: float
    budget_bytes: int
    limits: FastLimits | None = None
    counted: bool = True
    allocation_bytes: int | None = None
    cpus: npt.NDArray[np.float64] | None = None
    move_delay_s: float = 0.0


class Policy(Protocol):
    """Takes pages and machine, gives a plan. No I/O, no clock of its own, no unseeded randomness.

    A policy is a module of ``hmd/policy/builtin/``. It reads pages only through the view.
    """

    name: str

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the moves to make now; an empty plan where nothing pays."""
        ...


def moves_of(
    processes: tuple[ProcessId, ...],
    pages: PageRows,
    rows: npt.NDArray[np.integer],
    target: npt.NDArray[np.integer],
    phase: npt.NDArray[np.int32] | None = None,
) -> Plan:
    """Return the plan that moves ``rows`` of ``pages``, in this order, to the nodes ``target``.

    Without a ``phase`` column all moves are one phase: none needs room that another makes. A row
    that ``moves_as_base_pages`` becomes one move per base page.
    """
    phase = np.zeros(len(rows), np.int32) if phase is None else phase
    size = pages.size[rows]
    page = np.zeros(len(rows), np.uint64)
    apart = pages.moves_as_base_pages[rows]
    if apart.any():
        each = np.where(apart, HUGE_PAGE_PAGES, 1)
        size = np.repeat(np.where(apart, 1, size), each)
        page = (np.arange(len(size)) - np.repeat(np.cumsum(each) - each, each)).astype(np.uint64)
        rows, target = np.repeat(rows, each), np.repeat(target, each)
        phase = np.repeat(phase, each)
    return Plan(
        processes,
        pages.process[rows],
        pages.address[rows] + page * np.uint64(PAGE_BYTES),
        size.astype(np.uint32),
        pages.node[rows].astype(np.int16),
        target.astype(np.int16),
        pages.rate[rows],
        phase,
    )


@dataclass(frozen=True, slots=True)
class TierRequest:
    """The tiers on which a policy wants the rows of a page view; columns have shape ``(n,)``.

    ``tier`` is -1 for pages that stay. ``key`` is at least 0 and orders moves: promotions go by
    falling key, and demotions, as far as room is needed, by rising key. Pages that ``must`` leave
    are demoted first, whether room is needed or not. A page displaces others of a tier only if
    its key is at least ``worth`` of that tier, shape ``(tiers,)``; None is 0. ``fills`` states
    that the policy wants as many pages on the fastest tier as fit: what one limited group of
    processes gives up, others then get (:mod:`hmd.policy.fast_limits`).
    """

    tier: npt.NDArray[np.int8]
    key: npt.NDArray[np.float32]
    must: npt.NDArray[np.bool_] | None = None
    worth: npt.NDArray[np.float64] | None = None
    fills: bool = False
