"""A policy in modelled time: the daemon's tick over a simulated machine.

Takes a recorded program, a machine, a policy; gives the program's runtime, and what happened tick
by tick. The tick is :func:`hmd.pipeline.tick.run_tick`, so that heat, sweep, limits, pins, drains,
pause, mover, budget and pageout are the daemon's own. The machine's clock is the only clock, so
that equal settings give equal results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from hmd.control.admin_state import AdminState
from hmd.daemon.stage_settings import NO_LIMITS, limits_of
from hmd.decide.plan import MachineView, Plan, Policy
from hmd.emulate.preset import Preset
from hmd.emulate.recordings.miss_stream import MissStream
from hmd.heat.heat_settings import HeatSettings
from hmd.heat.heat_table import HeatTable
from hmd.heat.view.page_view import PageView
from hmd.migrate import APPLY_TICKS, Mover, MoverSettings, Pageout, PageoutSettings
from hmd.observe.tick_record import TickRecord
from hmd.pipeline.stage_guard import StageTimer
from hmd.pipeline.tick import run_tick
from hmd.pipeline.tick_stages import TickStages
from hmd.quantities import Amount
from hmd.residency.residency_sweep import ResidencySweep
from hmd.residency.swept_memory import ModelledMemory
from hmd.simulate.simulated_machine import PROGRAM, MigrationCost, SimulatedMachine
from hmd.simulate.simulated_memory import FAST, SLOW
from hmd.simulate.simulated_pmu import PmuSettings, SimulatedPmu
from hmd.units import PAGE_BYTES

TARGET = "program"
"""The name of the only target that there is."""


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """The daemon and its machine, in modelled time.

    A program of a second stands for one of hours, so ``tick_s`` is short too: it is that of the
    daemon in the emulated machine. In each tick ``delay_s`` passes before pages move: the time that
    reading, heat and deciding take. The daemon finds the program only after ``found_s``. ``mover``
    rates are bytes per modelled second; its ``apply_limit_s`` is the daemon's, two ticks.
    ``fast_min`` and ``fast_max`` are the program's limits as a target, of the fast node's memory.
    Pages that were idle for ``pageout_s`` are paged out, none if None.
    """

    tick_s: float = 0.010
    delay_s: float = 0.002
    found_s: float = 0.0
    sampling: PmuSettings = field(default_factory=PmuSettings)
    heat: HeatSettings = field(default_factory=HeatSettings)
    mover: MoverSettings = field(
        default_factory=lambda: MoverSettings(
            rate_bytes_per_s=None, call_target_s=0.0005, least_batch_pages=256
        )
    )
    cost: MigrationCost = field(default_factory=MigrationCost)
    fast_min: Amount = NO_LIMITS[0]
    fast_max: Amount = NO_LIMITS[1]
    pageout_s: float | None = None


@dataclass(frozen=True, slots=True)
class TickRow:
    """A tick: when it ended, the program's misses by node, and the pages of 4 KiB that moved.

    ``swapped_in_pages`` are those that the program faulted in after they were paged out.
    """

    end_s: float
    fast_misses: int
    slow_misses: int
    samples: int
    promoted_pages: int
    demoted_pages: int
    paged_out_pages: int = 0
    swapped_in_pages: int = 0

    @property
    def fast_share(self) -> float:
        """Share of the tick's misses that the fast node served; 0 of none."""
        return self.fast_misses / max(1, self.fast_misses + self.slow_misses)


@dataclass(frozen=True, slots=True)
class Simulated:
    """A run under a policy: its runtime, and its ticks."""

    runtime_s: float
    ticks: tuple[TickRow, ...]

    @property
    def moved_bytes(self) -> int:
        """Bytes that were promoted or demoted."""
        return sum(t.promoted_pages + t.demoted_pages for t in self.ticks) * PAGE_BYTES

    @property
    def paged_out_bytes(self) -> int:
        """Bytes that were paged out."""
        return sum(tick.paged_out_pages for tick in self.ticks) * PAGE_BYTES

    @property
    def swapped_in_bytes(self) -> int:
        """Bytes that the program faulted in after they were paged out."""
        return sum(tick.swapped_in_pages for tick in self.ticks) * PAGE_BYTES

    @property
    def fast_share(self) -> float:
        """Share of all misses that the fast node served."""
        fast = sum(tick.fast_misses for tick in self.ticks)
        return fast / max(1, fast + sum(tick.slow_misses for tick in self.ticks))


def simulate(
    stream: MissStream,
    preset: Preset,
    fast_pages: int,
    policy: Policy,
    settings: SimulationSettings | None = None,
    progress: Callable[[float], None] | None = None,
    admin: AdminState | None = None,
) -> Simulated:
    """Run a program under a policy, with room for ``fast_pages`` of its pages on the fast node.

    ``progress`` is called once per tick with the share of the program that has run. ``admin`` is
    an administrator's pause, drains and pins (of ``PROGRAM``, or of the target ``TARGET``), which
    ``progress`` may change between two ticks.
    """
    settings = settings or SimulationSettings()
    with SimulatedMachine(stream, preset, fast_pages, settings.cost) as machine:
        return run_daemon(SimulatedDaemon(machine, policy, settings, admin), progress)


def run_daemon(
    daemon: SimulatedDaemon, progress: Callable[[float], None] | None = None
) -> Simulated:
    """Run a daemon's program to its end; ``progress`` as for :func:`simulate`."""
    machine, ticks = daemon.machine, []
    while not machine.done:
        ticks.append(daemon.row(daemon.tick()))
        if progress is not None:
            progress(machine.row / max(1, len(machine.stream)))
    return Simulated(machine.program_s, tuple(ticks))


class SimulatedDaemon:
    """The stages of the tick over a simulated machine."""

    def __init__(
        self,
        machine: SimulatedMachine,
        policy: Policy,
        settings: SimulationSettings,
        admin: AdminState | None = None,
    ) -> None:
        self.machine, self.settings = machine, settings
        heat = HeatTable(settings.heat, machine.topology.latency_ns)
        heat.track([PROGRAM])
        self.stages = TickStages(
            topology=machine.topology,
            sampler=SimulatedPmu(machine, settings.sampling),
            heat=heat,
            sweep=ResidencySweep(memory=ModelledMemory(machine), clock=lambda: 0.0),
            policy=_TimedPolicy(policy, machine, settings.delay_s),
            mover=Mover(
                replace(settings.mover, apply_limit_s=APPLY_TICKS * settings.tick_s),
                lambda: machine.now_s,
                machine,
                stat=machine.stat,
                page_filter=lambda _, addresses: np.ones(len(addresses), np.bool_),
            ),
            pageout=Pageout(
                PageoutSettings(limit_s=settings.tick_s / 2), machine, lambda: machine.now_s
            ),
            node_memory=lambda topology, now_s: machine.memory(),
            stat=machine.sized_stat,
            clock=lambda: machine.now_s,
            tick_s=settings.tick_s,
            pageout_s=settings.pageout_s,
            processes=(PROGRAM,),
            targets=(TARGET,),
            limits=limits_of([(settings.fast_min, settings.fast_max)], [0]),
            admin=admin or AdminState(),
        )
        self.timer = StageTimer()
        self._due_s = settings.found_s
        self._misses, self._swapped_in = (0, 0), 0
        machine.run_until(self._due_s)
        self.stages.sampler.read()

    def tick(self) -> TickRecord:
        """Let the program run for a tick, then do what the daemon does at its end."""
        self._due_s = max(self._due_s + self.settings.tick_s, self.machine.now_s)
        self.machine.run_until(self._due_s)
        self.timer.begin()
        record = run_tick(self.stages, self.timer, self._due_s)
        self.machine.rest()
        return record

    def row(self, tick: TickRecord) -> TickRow:
        """Return the row of the tick that has just ended."""
        machine = self.machine
        before, self._misses = self._misses, machine.misses
        fast, slow = (now - then for now, then in zip(self._misses, before, strict=True))
        swapped_in, self._swapped_in = machine.swapped_in - self._swapped_in, machine.swapped_in
        moved = tick.outcome.moved if tick.outcome is not None else {}
        return TickRow(
            machine.now_s,
            fast,
            slow,
            len(tick.batch),
            moved.get((SLOW, FAST), 0),
            moved.get((FAST, SLOW), 0),
            tick.paged_out_bytes // PAGE_BYTES,
            swapped_in,
        )


class _TimedPolicy:
    """A policy whose decision takes ``delay_s`` of modelled time, in which the program runs on."""

    def __init__(self, policy: Policy, machine: SimulatedMachine, delay_s: float) -> None:
        self.name = policy.name
        self._policy, self._machine, self._delay_s = policy, machine, delay_s

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the policy's plan."""
        plan = self._policy.plan(pages, machine)
        self._machine.run_until(machine.now_s + self._delay_s)
        return plan
