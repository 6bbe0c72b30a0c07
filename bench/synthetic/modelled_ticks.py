# SPDX-License-Identifier: MIT
"""The daemon's tick over a modelled machine: nothing of it is the kernel's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessStat
from hmd.linux.topology import NodeMemory, Topology
from hmd.metrics.tick_record import TickRecord
from hmd.migrate import Mover, MoverSettings, Pageout
from hmd.migrate.engine import PageCalls
from hmd.policy.plan import Policy
from hmd.residency.memory_reader import AddressSpaces
from hmd.residency.sweep import ResidencySweep
from hmd.sample.sampler import SampleSource
from hmd.tick.stage_runner import StageTimer
from hmd.tick.tick import (
    Machine,
    TickInputs,
    TickLimits,
    TickState,
    Tracked,
    tick,
)


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


@dataclass(slots=True)
class ModelledTicks:
    """Ticks over a modelled machine: their state after the last one, and the inputs of the next."""

    state: TickState
    inputs: TickInputs

    def tick(
        self, now_s: float, limits: TickLimits | None = None, timer: StageTimer | None = None
    ) -> TickRecord:
        """Run a tick, by default of a second and without limits; return its record."""
        self.inputs = replace(self.inputs, now_s=now_s)
        self.state, record = tick(self.state, self.inputs, limits or TickLimits(1.0), timer)
        return record


def modelled_ticks(
    machine: ModelledMachine,
    sampler: SampleSource,
    heat: HeatTable,
    sweep: ResidencySweep,
    policy: Policy,
    mover: MoverSettings,
    *,
    target: str,
    clock: Callable[[], float] = time.monotonic,
) -> ModelledTicks:
    """Return ticks for the processes that ``heat`` tracks, all of one target.

    Moves take no time of the mover's clock, which stands still; ``clock`` times them for the tick.
    """
    state = TickState(
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
    )
    inputs = TickInputs(
        now_s=0.0,
        machine=Machine(
            topology=machine.topology(),
            sampler=sampler,
            node_memory=lambda topology, now_s: machine.memory(),
            stat=machine.stat,
            clock=clock,
        ),
        tracked=Tracked(heat.processes, (target,) * len(heat.processes)),
    )
    return ModelledTicks(state, inputs)
