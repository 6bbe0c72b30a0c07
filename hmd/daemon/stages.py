"""The daemon's stages, built from one configuration.

A reload builds a second ``Stages`` that takes over what did not change, above all the heat: targets
that stay keep their pages' heat.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hmd.config import Config
from hmd.control.admin_state import AdminState
from hmd.daemon import stage_settings
from hmd.heat.heat_table import HeatTable
from hmd.machine.exit_watch import ExitWatch
from hmd.machine.nodes.numa_nodes import read_node_memory, read_topology
from hmd.machine.nodes.topology import NodeMemory, Topology
from hmd.machine.nodes.zone_reserves import Reserves
from hmd.machine.process_id import PROC, ProcessId, read_stat
from hmd.machine.processes import ProcessWatcher
from hmd.migrate import MovableMappings, Mover, Pageout
from hmd.migrate.pageout import KernelPageoutCalls
from hmd.observe.tick_record import Stage
from hmd.pipeline.cpu_budget import CpuBudget
from hmd.pipeline.cpu_use import CpuUse
from hmd.pipeline.quota_control import QuotaControl
from hmd.pipeline.tick_stages import TickStages
from hmd.residency.residency_sweep import ResidencySweep
from hmd.residency.swept_memory import KernelMemory
from hmd.sample.auto_select import Chosen, open_sampler
from hmd.sample.period_control import PeriodControl
from hmd.sample.sampler import Sampler

SYSFS = Path("/sys")

SCAN_MOST_S = 60.0
"""Most time between two scans for processes, where scans cost more than their share."""


class KernelNodeMemory:
    """The memory of nodes as sysfs reports it, with the zones' own reserves.

    ``cache_share`` of a node's reclaimable page cache counts as room.
    """

    def __init__(self, proc: Path, sysfs: Path, cache_share: float) -> None:
        self._sysfs, self._reserves, self._cache_share = sysfs, Reserves(proc), cache_share

    def __call__(self, topology: Topology, now_s: float) -> tuple[NodeMemory, ...]:
        """Return the memory of each node of ``topology``, in its order."""
        reserves = self._reserves.at(now_s)
        return read_node_memory(topology, self._sysfs, reserves, self._cache_share)


@dataclass(slots=True, kw_only=True)
class Stages(TickStages):
    """The stages of the tick, and what they were built from.

    ``sampler_reason`` says why this sampler was chosen; ``better_later``: a better one may work at
    another time.
    """

    config: Config
    watcher: ProcessWatcher
    exits: ExitWatch
    sampler: Sampler
    sampler_reason: str
    better_later: bool
    quota: QuotaControl
    budget: CpuBudget
    movable: MovableMappings
    proc: Path = PROC
    sysfs: Path = SYSFS
    _scanned_s: float = float("-inf")
    _scan_cpu_s: float = 0.0
    _tracking: bool = False

    def follow(self, now_s: float, between: Callable[[], None] = lambda: None) -> bool:
        """Update the set of processes; return whether it changed.

        ``between`` is called now and then while processes are read, and may change nothing here.

        Exits are seen at once, new processes when a scan is due: scans take their share of the CPU
        quota at most, as far as they are less than ``SCAN_MOST_S`` apart.
        """
        self.quota.start(self, self.sampler, now_s)
        begun_s = time.thread_time()
        try:
            return self._follow(now_s, between)
        finally:
            self.discovery_cpu_s += time.thread_time() - begun_s

    @property
    def rescan_s(self) -> float:
        """Time between two scans for processes."""
        apart_s = self._scan_cpu_s / self.budget.discovery_share
        return max(self.config.rescan, min(apart_s, SCAN_MOST_S))

    def _follow(self, now_s: float, between: Callable[[], None]) -> bool:
        gone = self.exits.exited()
        scan = not self._tracking or now_s - self._scanned_s >= self.rescan_s
        if not (gone or scan):
            return False
        found = {p: t for p, t in zip(self.processes, self.targets, strict=True) if p not in gone}
        if scan:
            self._scanned_s = now_s
            begun_s = time.thread_time()
            groups = self.watcher.scan(between, self.exits.runs)
            found = {p: name for name, group in groups.items() for p in group}
            self._scan_cpu_s = time.thread_time() - begun_s
        before = (self.processes, self.targets) if self._tracking else None
        if before == (tuple(found), tuple(found.values())):
            return False
        # After an error in here, the next tick scans and tracks again.
        self._tracking = False
        self._track(found)
        if scan:
            self.sweep.expect({p: self.watcher.resident_bytes(p) for p in self.processes})
        self._tracking = True
        return True

    def _track(self, found: Mapping[ProcessId, str]) -> None:
        """Track these processes, with the target of each, in all stages.

        What an error leaves is consistent: ``processes``, ``targets`` and ``limits`` are those
        that heat is of.
        """
        processes, targets = tuple(found), tuple(found.values())
        weights = stage_settings.weights(self.config, targets)
        limits = stage_settings.fast_limits(self.config, targets)
        kept = stage_settings.kept_mappings(self.config, found)
        self.exits.watch(processes, self.watcher.same)
        self.heat.track(processes)
        self.processes, self.targets, self.limits = processes, targets, limits
        self.heat.weigh(*weights)
        self.sweep.keep(kept)
        self.movable.keep(kept)
        self.sampler.track(processes)

    def begin_tick(self, now_s: float) -> None:
        """Set the sampling period to what the last ticks permit."""
        self.quota.begin(self, self.sampler, now_s)

    def hold_quota(
        self,
        now_s: float,
        stage_cpu_s: Mapping[Stage, float],
        *,
        changing: bool,
        unsettled: bool = False,
    ) -> None:
        """Adapt what the next tick may cost to what the daemon has used, after a tick."""
        self.quota.update(
            self, self.sampler, now_s, stage_cpu_s, changing=changing, unsettled=unsettled
        )

    def enter(self) -> None:
        """Come into force: adapt what was taken over to the topology of these stages."""
        self.heat.expect(self.topology.latency_ns)

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
    chosen: Chosen | None = None,
) -> Stages:
    """Return the stages of a configuration, taking over from ``before`` what did not change.

    ``chosen`` is a sampler to use instead of that of ``before``, closed if this raises.

    A ``machine.tiers`` that contradicts the nodes is fitted to them, since memory may come online
    later; ``start_checks.machine_warnings`` reports it.
    Raises ``HmdError``; ``before`` is then as it was.
    """
    with ExitStack() as undo:
        if chosen is None:
            chosen = _sampler(config, before, undo, proc, sysfs)
        else:
            undo.callback(chosen.sampler.close)
        topology = read_topology(sysfs, config.machine.tiers, fit_override=True)
        budget = CpuBudget(
            stage_settings.budget_settings(config), before.budget if before else None
        )
        movable = before.movable if before else MovableMappings(proc)
        heat = _heat(config, topology, before)
        # Pins and limits apply to the processes that heat is of, until the first ``follow``.
        same = before if before and heat is before.heat else None
        stages = Stages(
            config=config,
            topology=topology,
            watcher=_watcher(config, before, proc),
            exits=ExitWatch(proc),
            node_memory=KernelNodeMemory(proc, sysfs, config.migrate.page_cache),
            sampler=chosen.sampler,
            sampler_reason=chosen.reason,
            better_later=chosen.better_later,
            quota=QuotaControl(budget, _period(config, chosen.sampler)),
            budget=budget,
            heat=heat,
            sweep=_sweep(config, topology, before, proc),
            policy=stage_settings.policy(config),
            mover=_mover(config, before, movable),
            movable=movable,
            pageout=_pageout(config, before, proc),
            tick_s=config.tick,
            pageout_s=config.decide.pageout,
            processes=same.processes if same else (),
            targets=same.targets if same else (),
            limits=same.limits if same else None,
            proc=proc,
            sysfs=sysfs,
            stat=partial(read_stat, proc=proc),
            admin=before.admin if before else AdminState(),
            cpu_use=before.cpu_use if before else CpuUse(),
            demotion_cpu_s=before.demotion_cpu_s if before else 0.0,
        )
        undo.pop_all()
    return stages


def _sampler(
    config: Config, before: Stages | None, undo: ExitStack, proc: Path, sysfs: Path
) -> Chosen:
    if before and before.config.sample == config.sample:
        return Chosen(before.sampler, before.sampler_reason, before.better_later)
    last = before.sampler if before else None
    chosen = open_sampler(stage_settings.sample_settings(config), proc, sysfs, last)
    if chosen.sampler is not last:
        undo.callback(chosen.sampler.close)
    return chosen


def _period(config: Config, sampler: Sampler) -> PeriodControl | None:
    if config.sample.period is not None:
        return None
    return PeriodControl(stage_settings.period_settings(config), sampler.ladder, sampler.period)


def _watcher(config: Config, before: Stages | None, proc: Path) -> ProcessWatcher:
    # The old one knows children of exited parents, and which process had a pid before.
    if before and before.config.targets == config.targets:
        return before.watcher
    return ProcessWatcher(stage_settings.target_specs(config), proc)


def _heat(config: Config, topology: Topology, before: Stages | None) -> HeatTable:
    if before and before.config.heat == config.heat:
        return before.heat
    return HeatTable(stage_settings.heat_settings(config), topology.latency_ns)


def _sweep(config: Config, topology: Topology, before: Stages | None, proc: Path) -> ResidencySweep:
    if before:
        sweep = before.sweep  # the quota sets what a step may take, tick by tick
        sweep.settings = replace(sweep.settings, move_shared=config.migrate.move_all)
        return sweep
    return ResidencySweep(stage_settings.sweep_settings(config, topology), KernelMemory(proc))


def _mover(config: Config, before: Stages | None, movable: MovableMappings) -> Mover:
    made = stage_settings.mover_settings(config)
    if before and before.mover.settings == made:
        return before.mover
    return Mover(made, page_filter=movable)


def _pageout(config: Config, before: Stages | None, proc: Path) -> Pageout:
    made = stage_settings.pageout_settings(config)
    if before and before.pageout.settings == made:
        return before.pageout
    return Pageout(made, KernelPageoutCalls(proc))
