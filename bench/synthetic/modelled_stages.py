"""The stages of the daemon's tick over a modelled machine: nothing of it is the kernel's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from hmd.decide.plan import Policy
from hmd.heat.heat_table import HeatTable
from hmd.machine.nodes.topology import NodeMemory, Topology
from hmd.machine.process_id import ProcessStat
from hmd.migrate import Mover, MoverSettings, Pageout
from hmd.migrate.move_pages_engine import PageCalls
from hmd.pipeline.tick_stages import SampleSource, TickStages
from hmd.residency.residency_sweep import ResidencySweep
from hmd.residency.swept_memory import AddressSpaces


class ModelledMachine(AddressSpaces, PageCalls, Protocol):
    """Nodes, processes and their pages, all of which may move."""

    def topology(self) -> Topology:
        """Return the nodes."""
        ...

    def memory(self) -> tuple[NodeMemory, ...]:
        """Return how much of each node is free."""
        ...

    def stat(self, pid: int) -> ProcessStat:
        """Return what /proc/PID/stat would say."""
        ...


def modelled_stages(
    machine: ModelledMachine,
    sampler: SampleSource,
    heat: HeatTable,
    sweep: ResidencySweep,
    policy: Policy,
    mover: MoverSettings,
    *,
    target: str,
    tick_s: float = 1.0,
    clock: Callable[[], float] = time.monotonic,
) -> TickStages:
    """Return stages for the processes that ``heat`` tracks, all of one target.

    Moves take no time of the mover's clock, which stands still; ``clock`` times them for the tick.
    """
    return TickStages(
        topology=machine.topology(),
        sampler=sampler,
        heat=heat,
        sweep=sweep,
        policy=policy,
        mover=Mover(
            mover,
            lambda: 0.0,
            machine,
            stat=machine.stat,
            page_filter=lambda _, addresses: np.ones(len(addresses), np.bool_),
        ),
        pageout=Pageout(),
        node_memory=lambda topology, now_s: machine.memory(),
        stat=machine.stat,
        clock=clock,
        tick_s=tick_s,
        processes=heat.processes,
        targets=(target,) * len(heat.processes),
    )
