"""A policy at work in virtual time: the daemon's tick over a simulated machine.

Takes a recorded program, a machine, a policy; gives how long the program takes, and what happened
tick by tick. Heat, sweep, policy, mover and its budget are the daemon's own; the machine's clock
is the only one there is, so that equal settings give equal results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from hmd.decide.plan import MachineView, Policy
from hmd.emulate.miss_stream import MissStream
from hmd.emulate.preset import Preset
from hmd.heat.heat_settings import HeatSettings
from hmd.heat.heat_table import HeatTable
from hmd.heat.residency_sweep import ResidencySweep
from hmd.migrate import APPLY_TICKS, STUCK, MoveOutcome, Mover, MoverSettings
from hmd.simulate.simulated_machine import FAST, PROGRAM, SLOW, MigrationCost, SimulatedMachine
from hmd.simulate.simulated_pmu import PmuSettings, SimulatedPmu
from hmd.units import PAGE_BYTES


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """The daemon and its machine, in modelled time.

    A program of a second stands for one of hours, so that the ``tick_s`` is short too: it is what
    the emulated machine's daemon has. ``delay_s`` passes in each tick before pages move: the time
    that reading, heat and deciding take. Of what the program does in its first ``found_s`` the
    daemon knows nothing: it has yet to find it. ``mover`` rates are bytes a modelled second; its
    ``apply_limit_s`` is the daemon's, two ticks.
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


@dataclass(frozen=True, slots=True)
class TickRow:
    """A tick: when it ended, lines that the program had from each node in it, 4 KiB moved."""

    end_s: float
    fast_misses: int
    slow_misses: int
    samples: int
    promoted_pages: int
    demoted_pages: int

    @property
    def fast_share(self) -> float:
        """Share of the tick's misses that the fast node served; 0 of none."""
        return self.fast_misses / max(1, self.fast_misses + self.slow_misses)


@dataclass(frozen=True, slots=True)
class Simulated:
    """A run under a policy: how long it took, and its ticks."""

    runtime_s: float
    ticks: tuple[TickRow, ...]

    @property
    def moved_bytes(self) -> int:
        """All that was moved, up and down."""
        return sum(t.promoted_pages + t.demoted_pages for t in self.ticks) * PAGE_BYTES

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
) -> Simulated:
    """Run a program under a policy, with room for so many of its pages on the fast node.

    ``progress`` is told the share of the program that has run, once a tick.
    """
    settings = settings or SimulationSettings()
    with SimulatedMachine(stream, preset, fast_pages, settings.cost) as machine:
        daemon = _Daemon(machine, policy, settings)
        ticks = []
        while not machine.done:
            ticks.append(daemon.tick())
            if progress is not None:
                progress(machine.row / max(1, len(stream)))
        return Simulated(machine.program_s, tuple(ticks))


class _Daemon:
    """The stages of the tick over a simulated machine."""

    def __init__(
        self, machine: SimulatedMachine, policy: Policy, settings: SimulationSettings
    ) -> None:
        self._machine, self._policy, self._settings = machine, policy, settings
        self._pmu = SimulatedPmu(machine, settings.sampling)
        self._heat = HeatTable(settings.heat, machine.topology.latency_ns)
        self._heat.track([PROGRAM])
        self._sweep = ResidencySweep(spaces=machine, clock=lambda: 0.0)
        self._mover = Mover(
            replace(settings.mover, apply_limit_s=APPLY_TICKS * settings.tick_s),
            lambda: machine.now_s,
            machine,
            stat=machine.stat,
            page_filter=lambda _, addresses: np.ones(len(addresses), np.bool_),
        )
        self._due_s = settings.found_s
        self._misses = (0, 0)
        machine.run_until(self._due_s)
        self._pmu.read()

    def tick(self) -> TickRow:
        """Let the program run for a tick, then do what the daemon does at its end."""
        machine, settings = self._machine, self._settings
        self._due_s = max(self._due_s + settings.tick_s, machine.now_s)
        machine.run_until(self._due_s)
        batch = self._pmu.read()
        self._heat.update(batch)
        self._sweep.step(self._heat)
        now_s = self._due_s
        plan = self._policy.plan(
            self._heat,
            MachineView(
                machine.topology,
                machine.memory(),
                now_s,
                settings.tick_s,
                self._mover.plan_bytes(now_s),
            ),
        )
        machine.run_until(now_s + settings.delay_s)
        outcome = self._mover.apply(plan, now_s) if len(plan) and not machine.done else None
        if outcome is not None:
            self._heat.settle(plan, outcome.node, np.isin(outcome.status, STUCK))
        machine.rest()
        return self._row(len(batch), outcome)

    def _row(self, samples: int, outcome: MoveOutcome | None) -> TickRow:
        before, self._misses = self._misses, self._machine.misses
        fast, slow = (now - then for now, then in zip(self._misses, before, strict=True))
        moved = outcome.moved if outcome is not None else {}
        return TickRow(
            self._machine.now_s,
            fast,
            slow,
            samples,
            moved.get((SLOW, FAST), 0),
            moved.get((FAST, SLOW), 0),
        )
