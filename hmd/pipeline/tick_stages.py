"""What a tick works on: the stages, the machine's interfaces, and the restrictions in force.

The daemon fills it with the kernel, the simulator with a simulated machine, a bench or a test with
a machine of numbers. The interfaces between are protocols:

* a source of samples (``SampleSource``);
* address spaces, behind ``sweep`` (:class:`hmd.residency.swept_memory.SweptMemory`);
* the calls that move pages, behind ``mover`` (:class:`hmd.migrate.move_pages_engine.PageCalls`),
  and those that page out, behind ``pageout`` (:class:`hmd.migrate.pageout.PageoutCalls`);
* the memory of nodes (``NodeMemoryReader``);
* clocks, which mover and pageout are built with, and ``clock``, which times moves; the time of the
  tick itself is an argument.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from hmd.control.admin_state import AdminState
from hmd.decide.plan import FastLimits, Policy
from hmd.heat.heat_table import HeatTable
from hmd.machine.nodes.topology import NodeMemory, Topology
from hmd.machine.process_id import ProcessId, ProcessStat, read_stat
from hmd.migrate import Mover, Pageout
from hmd.pipeline.allocation_watch import AllocationWatch
from hmd.pipeline.confined_processes import ConfinedProcesses
from hmd.pipeline.cpu_budget import CpuBudget
from hmd.pipeline.cpu_use import CpuUse
from hmd.pipeline.move_delay import MoveDelay
from hmd.pipeline.process_readings import ProcessReadings
from hmd.residency.residency_sweep import ResidencySweep
from hmd.sample.access_batch import AccessBatch
from hmd.sample.capabilities import Capabilities


class SampleSource(Protocol):
    """What a tick asks of a sampler (:class:`hmd.sample.sampler.Sampler` is one)."""

    capabilities: Capabilities

    def read(self) -> AccessBatch:
        """Return the samples since the last read."""
        ...


class NodeMemoryReader(Protocol):
    """How much memory nodes have free, and how much page cache moves may replace."""

    def __call__(self, topology: Topology, now_s: float) -> tuple[NodeMemory, ...]:
        """Return the memory of each node of ``topology``, in its order."""
        ...


@dataclass(slots=True, kw_only=True)
class TickStages:
    """What one tick needs.

    ``processes`` are those that the sampler follows, which its samples index; ``targets`` names
    the target of each. ``limits`` are what targets may have of the fastest tier, ``admin`` the
    administrators' pause, drains and pins. Pages that were idle for ``pageout_s`` are paged out,
    none if None. ``memory`` is that of the nodes at the last tick, () before the first.
    ``sampling_cpu_s`` is the CPU time of reading and counting samples in all ticks, ``sweep_cpu_s``
    that of sweeps, ``discovery_cpu_s`` that of scans for processes, ``demotion_cpu_s``
    that of kernel threads that demote page cache. ``budget`` decides in which
    ticks the policy plans; in all of them if None. ``readings`` are the status of some processes,
    which ``stat`` returns by pid: ``allocations`` says how much memory targets are expected to
    allocate, from resident sizes, ``cpu_use`` how many CPUs each process keeps busy,
    ``move_delay`` how late moves come, by ``clock``. ``confined`` knows the processes that policies
    leave alone, since their cpusets refuse moves.
    """

    topology: Topology
    sampler: SampleSource
    heat: HeatTable
    sweep: ResidencySweep
    policy: Policy
    mover: Mover
    pageout: Pageout
    node_memory: NodeMemoryReader
    tick_s: float
    pageout_s: float | None = None
    processes: tuple[ProcessId, ...] = ()
    targets: tuple[str, ...] = ()
    limits: FastLimits | None = None
    admin: AdminState = field(default_factory=AdminState)
    memory: tuple[NodeMemory, ...] = ()
    sampling_cpu_s: float = 0.0
    sweep_cpu_s: float = 0.0
    discovery_cpu_s: float = 0.0
    demotion_cpu_s: float = 0.0
    budget: CpuBudget | None = None
    allocations: AllocationWatch = field(default_factory=AllocationWatch)
    cpu_use: CpuUse = field(default_factory=CpuUse)
    readings: ProcessReadings = field(default_factory=ProcessReadings)
    stat: Callable[[int], ProcessStat | None] = read_stat
    clock: Callable[[], float] = time.monotonic
    move_delay: MoveDelay = field(default_factory=MoveDelay)
    confined: ConfinedProcesses = field(default_factory=ConfinedProcesses)
