# SPDX-License-Identifier: MIT
"""Policies and their plans: what a policy sees, what it asks for, and the moves of a tick.

A policy gets a :class:`MachineView` and returns a :class:`Plan`, most of them by way of a
:class:`TierRequest`. The daemon, the simulator and training call the same policy object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from hmd.base.units import HUGE_PAGE_PAGES, PAGE_BYTES
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import NodeMemory, Topology

if TYPE_CHECKING:
    from hmd.heat.view import PageRows, PageView
    from hmd.policy.use_hints import UseHints
    from hmd.profiles.prior import ProfilePrior


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves, phase by phase; all columns have shape ``(n,)``.

    ``process`` indexes ``processes``; ``address`` is the start of a page of ``pages`` base pages
    (1, or 512 for a huge page); nodes are node ids. ``phase`` never falls: demotions that make room
    are in an earlier phase than the promotions that need it, and the moves of one phase may be made
    in any order. The mover defers the last rows where its budget ends. The first ``requested``
    moves are administrators' requests.
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
        return len(self.address)

    def take(self, rows: npt.NDArray[np.intp]) -> Plan:
        """Return a plan of the given rows, in their order."""
        columns: list[Any] = [column[rows] for column in self._columns]
        return Plan(self.processes, *columns)

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
        parts = zip(*(plan._columns for plan in some), strict=True)
        columns: list[Any] = [np.concatenate(part) for part in parts]
        columns[-1] = np.concatenate(phase).astype(np.int32)
        return cls(some[0].processes, *columns)

    @classmethod
    def empty(cls, processes: Sequence[ProcessId] = ()) -> Plan:
        """Return a plan of no moves."""
        columns: list[Any] = [np.empty(0, dtype) for dtype in _DTYPES]
        return cls(tuple(processes), *columns)

    @property
    def _columns(self) -> tuple[npt.NDArray[Any], ...]:
        return tuple(getattr(self, name) for name in _COLUMNS)


_COLUMNS: Final = tuple(field.name for field in fields(Plan))[1:-1]
_DTYPES: Final = (
    np.int32, np.uint64, np.uint32, np.int16, np.int16, np.float32, np.int32
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FastLimits:
    """How much of the fastest tier, and of those in the middle, groups of processes may have.

    ``group``, shape ``(processes,)``, is each process's row in the columns of shape ``(groups,)``:
    ``least`` stay or come there whatever others' heat, of those pages that have any; ``most`` is
    all that may. Of bytes and shares of the tier, the larger least and the smaller most one hold.
    ``middle`` is all that may be on each tier that is neither the fastest nor the slowest, in bytes
    and as a share, ``rate_bytes`` what may be promoted per second; None is no limit.
    """

    group: npt.NDArray[np.int32]
    least_bytes: npt.NDArray[np.int64]
    least_share: npt.NDArray[np.float64]
    most_bytes: npt.NDArray[np.int64]
    most_share: npt.NDArray[np.float64]
    middle: tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]] | None = None
    rate_bytes: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class MachineView:
    """What a policy may know of the machine at this tick.

    ``now_s`` is a clock of the caller's, ``tick_s`` the length of a tick, ``budget_bytes`` what the
    mover may move in this tick. ``limits`` are kept by :func:`hmd.policy.planning.build_plan` for
    every policy. Where accesses are not ``counted``, rates order pages, but say nothing of time:
    such samplers see once per tick whether a page was accessed. ``allocation_bytes`` is what
    programs are expected to allocate until the next tick, ``cpus``, shape ``(processes,)``, how
    many CPUs each process keeps busy, NaN or None where not known. ``move_delay_s`` is the time
    from the last sample until half of the planned pages have moved, by earlier ticks. ``hints`` are
    what programs told of their memory, None if nothing; ``priors`` what former runs tell of some.
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
    hints: UseHints | None = None
    priors: Mapping[ProcessId, ProfilePrior] = field(default_factory=dict)


class Policy(Protocol):
    """Takes pages and machine, gives a plan; no I/O, no clock, no unseeded randomness."""

    name: str

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the moves to make now; an empty plan where nothing pays."""


def moves_of(
    processes: tuple[ProcessId, ...],
    pages: PageRows,
    rows: npt.NDArray[np.integer],
    target: npt.NDArray[np.integer],
    phase: npt.NDArray[np.int32] | None = None,
) -> Plan:
    """Return the plan that moves ``rows`` of ``pages``, in this order, to the nodes ``target``.

    Without ``phase`` no move needs room that another makes. A row that ``moves_as_base_pages``
    becomes one move per base page.
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

    ``tier`` is -1 for pages that stay. ``key`` is at least 0: promotions go by falling key, and
    demotions, as far as room is needed, by rising key. Pages that ``must`` leave are demoted first,
    whether room is needed or not. A page displaces others of a tier only if its key is at least
    ``worth`` of that tier, shape ``(tiers,)``; None is 0. ``fills``: the policy wants as many pages
    on the fastest tier as fit, so that others get what a limited group of processes gives up.
    """

    tier: npt.NDArray[np.int8]
    key: npt.NDArray[np.float32]
    must: npt.NDArray[np.bool_] | None = None
    worth: npt.NDArray[np.float64] | None = None
    fills: bool = False
