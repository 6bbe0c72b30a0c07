# SPDX-License-Identifier: MIT
"""The daemon's stages, built from one configuration, and the processes that they track.

A reload builds a second ``Stages`` that takes over what did not change, above all the heat: targets
that stay keep their pages' heat.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.config import Config
from hmd.daemon import settings
from hmd.heat.table import HeatTable
from hmd.linux.cgroups import memory_pressure
from hmd.linux.exit_watch import ExitWatch
from hmd.linux.memory_policy import MemoryBindings
from hmd.linux.node_memory import Reserves
from hmd.linux.page_calls import page_in, page_out
from hmd.linux.processes import ProcessWatcher
from hmd.linux.procfs import PROC, SYSFS, ProcessId, read_stat
from hmd.linux.swap import SwapWatch
from hmd.linux.topology import NodeMemory, Topology, read_node_memory, read_topology
from hmd.metrics.tick_record import TickRecord
from hmd.migrate import MovableMappings, Mover, Pageout
from hmd.policy.admin import AdminState
from hmd.policy.use_hints import HintTable
from hmd.profiles.prior import ProfilePrior
from hmd.residency.kernel_totals import KernelTotals, OffFastest
from hmd.residency.memory_reader import MemoryReader
from hmd.residency.sweep import ResidencySweep
from hmd.sample.access_batch import AccessBatch
from hmd.sample.periods import PeriodControl
from hmd.sample.sampler import Sampler
from hmd.sample.selection import OpenedSampler, open_sampler
from hmd.tick.cpu_budget import AccessSums, CostMeter, CpuBudget, TickGain, tick_gain
from hmd.tick.stage_runner import StageTimer
from hmd.tick.tick import Machine, TickInputs, TickState, Tracked, tick

LOOK_S: Final = 2.0
"""Time between two looks at samples while ticks are long because nothing changes."""

MAX_SCAN_INTERVAL_S: Final = 60.0
"""Most time between two scans for processes, where scans cost more than their share."""


@dataclass(slots=True, kw_only=True)
class Stages:
    """What the loop runs ticks with: their state and machine, the CPU budget, tracked processes.

    Built by :func:`build`. ``held`` are samples that were looked at before a tick. ``opened`` is
    the sampler of ``machine``, with the reason for its selection.
    """

    config: Config
    state: TickState
    machine: Machine
    opened: OpenedSampler
    budget: CpuBudget
    meter: CostMeter
    movable: MovableMappings
    bindings: MemoryBindings
    totals: KernelTotals
    slow_memory: OffFastest
    watcher: ProcessWatcher
    exits: ExitWatch
    tracked: Tracked = field(default_factory=Tracked)
    held: list[AccessBatch] = field(default_factory=list)
    hints: HintTable = field(default_factory=HintTable)
    priors: Mapping[ProcessId, ProfilePrior] = field(default_factory=dict)
    proc: Path = PROC
    sysfs: Path = SYSFS
    local_time: Callable[[], datetime] = datetime.now
    _sharing: tuple[tuple[str, str], ...] = ()
    _ticked_s: float = float("-inf")
    _looked_s: float = float("-inf")
    _cut_short: bool = False
    _scanned_s: float = float("-inf")
    _scan_cpu_s: float = 0.0
    _tracking: bool = False

    @property
    def admin(self) -> AdminState:
        """The admin requests in force."""
        return self.state.admin

    @property
    def sampler(self) -> Sampler:
        """The sampler, as the daemon knows it."""
        return self.opened.sampler

    @property
    def topology(self) -> Topology:
        """The nodes with memory."""
        return self.machine.topology

    def inputs(self, now_s: float) -> TickInputs:
        """Return what a tick acts on."""
        return TickInputs(
            now_s=now_s,
            machine=self.machine,
            tracked=self.tracked,
            held=tuple(self.held),
            move_guests=self.config.migrate.move_guests,
            resting=settings.resting_targets(self.config, self.local_time()),
            hints=self.hints.at(self.tracked.processes, now_s),
            priors=self.priors,
        )

    def tick(self, now_s: float, runner: StageTimer) -> TickRecord:
        """Run one tick within the limits of the CPU budget; return its record."""
        limits, since_s = self.budget.limits(), now_s - self._ticked_s
        tick_s = limits.tick_s
        if self._cut_short:
            tick_s = min(tick_s, since_s)
        elif since_s <= self.budget.settings.max_tick_s:
            tick_s = max(tick_s, since_s)  # this one is late
        limits = replace(limits, tick_s=tick_s)
        self._ticked_s = self._looked_s = now_s
        self._cut_short = False
        inputs = self.inputs(now_s)
        self.held.clear()
        self.state, record = tick(self.state, inputs, limits, runner)
        return record

    @property
    def next_look_s(self) -> float:
        """When :meth:`sees_change` is next due: in calm times ticks are long. Infinite: never."""
        return self._looked_s + LOOK_S if self.budget.is_calm else math.inf

    def sees_change(self, now_s: float) -> bool:
        """Return whether samples since the last look show that the next tick should not wait."""
        allowance = self.budget.allowance
        if allowance is None:
            return False
        elapsed_s, self._looked_s = now_s - self._looked_s, now_s
        batch, heat = self.machine.sampler.read(), self.state.heat
        self.held.append(batch)
        if not heat.processes:
            return False
        node = heat.nodes_at(batch.process, batch.address)
        sums = AccessSums.of(batch, node, self.topology, elapsed_s)
        self._cut_short = allowance.watch.is_changed(sums)
        if self._cut_short:
            allowance.search()
        return self._cut_short

    def gain(self, record: TickRecord, stall_s: float) -> TickGain:
        """Return the gain of a tick in which pages that have moved waited ``stall_s`` less."""
        cpus = self.state.cpu_use.max_cpus(record.processes)
        every = float(sum(len(node.cpus) for node in self.topology.nodes))
        busy = float(np.where(np.isnan(cpus), every, cpus).sum())
        return tick_gain(record, self.topology, min(busy, every) or every, stall_s)

    def off_fastest(self, record: TickRecord, pages: npt.NDArray[np.int64]) -> Mapping[str, int]:
        """Return what targets that are never slow have on slower tiers, in bytes.

        ``pages`` are the totals after the tick, by process and node.
        """
        never_slow, tiers = self.tracked.never_slow, self.topology.tiers
        if never_slow is None or not tiers or record.processes != self.tracked.processes:
            return {}
        rows = np.flatnonzero(never_slow).tolist()
        kept = {record.processes[row]: record.targets[row] for row in rows}
        resident = {record.processes[row]: pages[row] for row in rows}
        return self.slow_memory.by_target(kept, resident, tiers[0], record.now_s)

    @property
    def rescan_s(self) -> float:
        """Time between two scans for processes."""
        interval_s = self._scan_cpu_s / self.budget.discovery_share
        return max(self.config.rescan, min(interval_s, MAX_SCAN_INTERVAL_S))

    def track_processes(
        self,
        now_s: float,
        between: Callable[[], None] = lambda: None,
        may_follow: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Update the set of tracked processes; return whether it changed.

        Exits are seen at once, new processes when a scan is due. ``between`` is called now and then
        while processes are read, and may change nothing here. ``may_follow`` is asked before there
        are processes to follow: none is until it returns True.
        """
        gone = self.exits.exited()
        scan = not self._tracking or now_s - self._scanned_s >= self.rescan_s
        if not (gone or scan):
            return False
        before = dict(zip(self.tracked.processes, self.tracked.targets, strict=True))
        found = {process: name for process, name in before.items() if process not in gone}
        if scan:
            self._scanned_s = now_s
            begun_s = time.thread_time()
            groups = self.watcher.scan(between, self.exits.runs)
            found = {process: name for name, group in groups.items() for process in group}
            self._scan_cpu_s = time.thread_time() - begun_s
            if found and not may_follow():
                found = {}
        sharing = settings.limit_groups(self.config, found, self.proc)
        if self._tracking and (*before,) == (*found,) and self._sharing == sharing:
            return False
        # After an error in here, the next tick scans and tracks again.
        self._tracking = False
        self._track(found, sharing)
        if scan:
            sizes = {process: self.watcher.resident_bytes(process) for process in found}
            self.state.sweep.set_resident_bytes(sizes)
        self._tracking = True
        return True

    def _track(self, found: Mapping[ProcessId, str], sharing: tuple[tuple[str, str], ...]) -> None:
        """Track these processes, with the target of each, in all stages.

        ``sharing`` says with whom each process shares limits.

        What an error leaves is consistent: ``tracked`` has the processes that heat is of.
        """
        processes, targets = tuple(found), tuple(found.values())
        weights = settings.weights(self.config, targets)
        fast_limits = settings.fast_limits(self.config, sharing)
        kept = settings.kept_mappings(self.config, found)
        self.exits.watch(processes, self.watcher.same)
        self.state.heat.track_processes(processes)
        dry = settings.dry_mask(self.config, targets)
        far_limits = settings.far_limits(self.config, targets)
        never_slow = settings.never_slow_mask(self.config, targets)
        self.tracked = Tracked(processes, targets, fast_limits, far_limits, dry, never_slow)
        self._sharing = sharing
        tiers = settings.tier_rates(self.config, self.topology)
        self.state.mover.set_rates(settings.move_rates(self.config), processes, targets, tiers)
        self.state.heat.set_process_weights(*weights)
        self.state.sweep.set_keep_patterns(kept)
        self.movable.set_kept(kept)
        self.sampler.track(processes)
        self.held.clear()

    def close(self, successor: Stages | None = None) -> None:
        """Close what ``successor`` did not take over."""
        if successor is None or successor.sampler is not self.sampler:
            self.sampler.close()
        self.exits.close()


def build(
    config: Config,
    before: Stages | None = None,
    proc: Path = PROC,
    sysfs: Path = SYSFS,
    opened: OpenedSampler | None = None,
) -> Stages:
    """Return the stages of a configuration, taking over from ``before`` what did not change.

    ``opened`` is a sampler to use instead of that of ``before``, closed if this raises. A
    ``machine.tiers`` that contradicts the nodes is fitted to them, since memory may come online
    later. Raises ``HmdError``; ``before`` is then as it was.
    """
    with ExitStack() as undo:
        if opened is None:
            opened = _sampler(config, before, undo, proc, sysfs)
        else:
            undo.callback(opened.sampler.close)
        topology = read_topology(sysfs, config.machine.tiers, fit_override=True)
        movable = before.movable if before else MovableMappings(proc)
        bindings = before.bindings if before else MemoryBindings(proc)
        state = _state(config, topology, before, movable, bindings, proc, sysfs)
        period = None
        if config.sample.period is None:
            control, sampler = settings.period_settings(config), opened.sampler
            period = PeriodControl(control, sampler.periods, sampler.period)
        watcher = ProcessWatcher(settings.target_specs(config), proc)
        if before and before.config.targets == config.targets:
            # It knows children of exited parents, and which process had a pid before.
            watcher = before.watcher
        reserves = Reserves(proc)

        def node_memory(topology: Topology, now_s: float) -> tuple[NodeMemory, ...]:
            cache_share = config.migrate.page_cache
            return read_node_memory(topology, sysfs, reserves.at(now_s), cache_share)

        stages = Stages(
            config=config,
            state=state,
            machine=Machine(
                topology=topology,
                sampler=opened.sampler,
                node_memory=node_memory,
                stat=partial(read_stat, proc=proc),
            ),
            opened=opened,
            budget=CpuBudget(
                settings.budget_settings(config, topology),
                period,
                before.budget if before else None,
            ),
            meter=CostMeter(opened.sampler),
            movable=movable,
            bindings=bindings,
            totals=before.totals if before else KernelTotals(bindings, proc, sysfs),
            slow_memory=before.slow_memory if before else OffFastest(proc),
            watcher=watcher,
            exits=ExitWatch(proc),
            hints=before.hints if before else HintTable(),
            priors=before.priors if before else {},
            # Pins and limits apply to the processes that heat is of, until they are tracked anew.
            tracked=before.tracked if before and before.state.heat is state.heat else Tracked(),
            proc=proc,
            sysfs=sysfs,
        )
        undo.pop_all()
    state.sweep.set_move_shared(config.migrate.move_all)
    return stages


def _sampler(
    config: Config, before: Stages | None, undo: ExitStack, proc: Path, sysfs: Path
) -> OpenedSampler:
    if before and before.config.sample == config.sample:
        return before.opened
    last = before.sampler if before else None
    opened = open_sampler(settings.sample_settings(config), proc, sysfs, last)
    if opened.sampler is not last:
        undo.callback(opened.sampler.close)
    return opened


def _state(
    config: Config,
    topology: Topology,
    before: Stages | None,
    movable: MovableMappings,
    bindings: MemoryBindings,
    proc: Path,
    sysfs: Path,
) -> TickState:
    """Return the state of the first tick, with what the configuration leaves of that before."""
    old = before.state if before else None
    if before and before.config.heat == config.heat:
        heat = before.state.heat
    else:
        heat = HeatTable(settings.heat_settings(config), topology.latency_ns)
    mover = Mover(settings.mover_settings(config), page_filter=movable, bindings=bindings)
    if old and old.mover.settings == mover.settings:
        mover = old.mover
    pageout = Pageout(
        settings.pageout_settings(config),
        page_out=partial(page_out, proc=proc),
        page_in=partial(page_in, proc=proc),
        failure=SwapWatch(proc, sysfs).failure,
        pressure=partial(memory_pressure, proc=proc, cgroups=sysfs / "fs/cgroup"),
    )
    if old and old.pageout.settings == pageout.settings:
        pageout = old.pageout
    elif old:
        pageout.cpu_s = old.pageout.cpu_s
    policy = settings.policy(config)
    dry_policy = settings.policy(config) if settings.dry_targets(config) else None
    places_within_tiers = config.decide.locality and config.decide.policy != "none"
    if old:
        return replace(
            old,
            heat=heat,
            policy=policy,
            dry_policy=dry_policy,
            places_within_tiers=places_within_tiers,
            mover=mover,
            pageout=pageout,
        )
    memory = MemoryReader(proc, bindings)
    sweep = ResidencySweep(settings.sweep_settings(config, topology), memory, wall=time.monotonic)
    return TickState(
        heat=heat,
        sweep=sweep,
        policy=policy,
        dry_policy=dry_policy,
        mover=mover,
        pageout=pageout,
        places_within_tiers=places_within_tiers,
    )
