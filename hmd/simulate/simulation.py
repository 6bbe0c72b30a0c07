# SPDX-License-Identifier: MIT
"""A policy in modelled time: the daemon's tick over a simulated machine, and baselines.

Takes a recorded program, a machine, a policy; gives the program's runtime, and what happened tick
by tick. The tick is the daemon's own (:mod:`hmd.tick.tick`). The machine's clock is the only clock,
so that equal settings give equal results.

Baselines are exact replays of first touch and of static placements. The static oracle knows the
whole run: it places the hottest pages by three measures of heat, and takes the placement with which
the program is fastest. A policy that follows phases may be faster. 20 to 60 ns per miss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hmd.base.quantities import Amount
from hmd.base.units import PAGE_BYTES
from hmd.emulate.preset import Preset
from hmd.emulate.recordings.misses import MissFlag, MissOutcomes, MissStream
from hmd.emulate.recordings.replay import layout_of, replayed
from hmd.heat.settings import HeatSettings
from hmd.heat.table import HeatTable
from hmd.heat.view import PageView
from hmd.metrics.tick_record import TickRecord
from hmd.migrate import APPLY_TICKS, FarLimits, Mover, MoverSettings, Pageout, PageoutSettings
from hmd.policy.admin import AdminState
from hmd.policy.fast_limits import UNLIMITED, share_limits
from hmd.policy.plan import MachineView, Plan, Policy
from hmd.residency.memory_reader import ModelledMemory
from hmd.residency.sweep import ResidencySweep
from hmd.simulate.machine import FAST, PROGRAM, SLOW, MigrationCost, SimulatedMachine, first_touch
from hmd.simulate.pmu import PmuSettings, SimulatedPmu
from hmd.tick.stage_runner import StageTimer
from hmd.tick.tick import Machine, TickInputs, TickLimits, TickState, Tracked, tick

TARGET = "program"
"""The name of the only target that there is."""

_S_PER_PS = 1e-12


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """The daemon and its machine, in modelled time.

    A program of a second stands for one of hours, so ``tick_s`` is short too. In each tick
    ``delay_s`` passes before pages move: the time that reading, heat and deciding take. The daemon
    finds the program only after ``found_s``. ``mover`` rates are bytes per modelled second; its
    ``apply_limit_s`` is the daemon's, two ticks. ``fast_min`` and ``fast_max`` are the program's
    limits as a target. Pages that were idle for ``pageout_s`` are paged out, none if None.
    """

    tick_s: float = 0.010
    delay_s: float = 0.002
    found_s: float = 0.0
    sampling: PmuSettings = field(default_factory=PmuSettings)
    heat: HeatSettings = field(default_factory=HeatSettings)
    mover: MoverSettings = field(
        default_factory=lambda: MoverSettings(
            rate_bytes_per_s=None, call_target_s=0.0005, min_batch_pages=256
        )
    )
    cost: MigrationCost = field(default_factory=MigrationCost)
    fast_min: Amount = UNLIMITED[0]
    fast_max: Amount = UNLIMITED[1]
    pageout_s: float | None = None


@dataclass(frozen=True, slots=True)
class TickRow:
    """A tick: its end, the program's misses by node, and base pages that moved or faulted in."""

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

    ``progress`` is called once per tick with the share of the program that has run, and may change
    ``admin``: an administrator's pause, drains and pins (of ``PROGRAM``, or of the target
    ``TARGET``).
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
    """The daemon's tick over a simulated machine: its state and its inputs."""

    def __init__(
        self,
        machine: SimulatedMachine,
        policy: Policy,
        settings: SimulationSettings,
        admin: AdminState | None = None,
    ) -> None:
        self.machine, self.settings = machine, settings
        heat = HeatTable(settings.heat, machine.topology.latency_ns)
        heat.track_processes([PROGRAM])
        self.state = TickState(
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
                PageoutSettings(limit_s=settings.tick_s / 2),
                lambda: machine.now_s,
                machine.page_out,
                machine.query_nodes,
            ),
            admin=admin or AdminState(),
        )
        self.inputs = TickInputs(
            now_s=settings.found_s,
            machine=Machine(
                topology=machine.topology,
                sampler=SimulatedPmu(machine, settings.sampling),
                node_memory=lambda topology, now_s: machine.memory(),
                stat=machine.sized_stat,
                clock=lambda: machine.now_s,
            ),
            tracked=Tracked(
                (PROGRAM,),
                (TARGET,),
                share_limits([(settings.fast_min, settings.fast_max, UNLIMITED[2])], [0]),
                None if settings.pageout_s is None else FarLimits.alike(1, settings.pageout_s),
            ),
        )
        self.timer = StageTimer()
        self._misses, self._swapped_in = (0, 0), 0
        machine.run_until(self.inputs.now_s)
        self.inputs.machine.sampler.read()

    def tick(self) -> TickRecord:
        """Let the program run for a tick, then do what the daemon does at its end."""
        due_s = max(self.inputs.now_s + self.settings.tick_s, self.machine.now_s)
        self.machine.run_until(due_s)
        self.timer.begin()
        self.inputs = replace(self.inputs, now_s=due_s)
        limits = TickLimits(self.settings.tick_s)
        self.state, record = tick(self.state, self.inputs, limits, self.timer)
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


def baselines(
    stream: MissStream,
    preset: Preset,
    fast_pages: int,
    say: Callable[[str], None] | None = None,
) -> dict[str, float]:
    """Return runtimes in seconds by name: all fast, all slow, first touch, interleaved, oracle."""
    say = say or (lambda _: None)
    pages = stream.user_pages
    slow, outcomes = np.zeros(pages, np.bool_), MissOutcomes.empty(len(stream))
    found = {}
    say("all slow")
    found["all slow"] = replayed(stream, preset, slow, outcomes) * _S_PER_PS
    evens = np.concatenate([np.arange(0, pages, 2), np.arange(1, pages, 2)])
    layouts = {
        "all fast": ~slow,
        "interleaved once": layout_of(pages, evens[: min(fast_pages, (pages + 1) // 2)]),
    }
    say("first touch")
    found["first touch"] = first_touch(stream, preset, fast_pages) * _S_PER_PS
    for name, layout in layouts.items():
        say(name)
        found[name] = replayed(stream, preset, layout) * _S_PER_PS
    say("oracle")
    found["oracle"] = (
        min(
            replayed(
                stream, preset, layout_of(pages, np.argsort(-heat, kind="stable")[:fast_pages])
            )
            for heat in _heats(stream, outcomes)
        )
        * _S_PER_PS
    )
    return found


def _heats(stream: MissStream, outcomes: MissOutcomes) -> list[npt.NDArray[np.float64]]:
    """Return three measures per page: lines, lines that the CPU stalled for, and stall time."""
    own = stream.page < stream.user_pages
    page = stream.page[own]
    others = np.uint8(MissFlag.KERNEL | MissFlag.HALT | MissFlag.WRITE_BACK | MissFlag.COVERED)
    stalled = (stream.flags[own] & others) == 0
    clock_ps = outcomes.clock_ps.astype(np.float64)
    stall = np.diff(clock_ps, append=clock_ps[-1:])[own]
    return [
        np.bincount(page, weights=weight, minlength=stream.user_pages).astype(np.float64)
        for weight in (np.ones(len(page)), stalled.astype(np.float64), stall)
    ]
