"""A plan of page moves, as columns, and what a policy is.

The same policy object is called by the daemon, by the simulator and by training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from hmd.machine.nodes.topology import NodeMemory, Topology
from hmd.machine.process_id import ProcessId

if TYPE_CHECKING:
    # Only named here: plans are also made without heat (hmd migrate), and heat brings numba.
    from hmd.heat.view.page_view import PageView


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves, phase by phase; all columns have shape ``(n,)``.

    ``process`` indexes ``processes``; ``address`` is the start of a page of ``pages`` 4 KiB units
    (1, or 512 for a huge page); nodes are node ids. ``phase`` never falls from one move to the
    next: demotions that make room are in an earlier phase than the promotions that need it, and
    the moves of one phase may be made in any order. The mover defers the last rows where its
    budget ends.
    """

    processes: tuple[ProcessId, ...]
    process: npt.NDArray[np.int32]
    address: npt.NDArray[np.uint64]
    pages: npt.NDArray[np.uint32]
    from_node: npt.NDArray[np.int16]
    to_node: npt.NDArray[np.int16]
    heat: npt.NDArray[np.float32]
    phase: npt.NDArray[np.int32]

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
        names = ("process", "address", "pages", "from_node", "to_node", "heat")
        columns = {name: np.concatenate([getattr(p, name) for p in some]) for name in names}
        first = np.cumsum([0, *(p.phase[-1] + 1 for p in some[:-1])])
        phase = [p.phase + start for p, start in zip(some, first.tolist(), strict=True)]
        return cls(some[0].processes, **columns, phase=np.concatenate(phase).astype(np.int32))

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
    :func:`hmd.decide.planning.plan_builder.build_plan` for every policy; None where there are none.
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

    A policy is a module of ``hmd/decide/policies/``. It reads pages only through the view.
    """

    name: str

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the moves to make now; an empty plan where nothing pays."""
        ...
