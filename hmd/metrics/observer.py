# SPDX-License-Identifier: MIT
"""The last stage of a tick: adds it to the counters and publishes the status for all readers.

Also the figures that the status takes from elsewhere: pages by node, tier and heat from the heat
table, and the daemon's own CPU time and memory.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import psutil

from hmd import __version__, revision
from hmd.heat.chunks import COLDEST, HEAT_BINS, count_heat
from hmd.heat.settings import FIXED, HeatStats
from hmd.heat.table import HeatTable
from hmd.linux.procfs import PROC, ProcessId, read_stat
from hmd.linux.topology import NodeMemory, Topology
from hmd.metrics.counters import Counters, TargetUse
from hmd.metrics.demand import TargetDemands
from hmd.metrics.move_journal import tick_moves
from hmd.metrics.status import (
    HEAT_LOG2,
    MAX_LISTED,
    MAX_TICKS_KEPT,
    BudgetStatus,
    ControlStatus,
    FarStatus,
    HeatStatus,
    HeatTableStatus,
    NodeStatus,
    ProcessStatus,
    ProfilesStatus,
    ReloadStatus,
    SamplerStatus,
    Stage,
    StageStatus,
    Status,
    TargetStatus,
    TickMoves,
)
from hmd.metrics.tick_record import TickRecord
from hmd.sample.access_batch import AccessBatch
from hmd.sample.sampler import Sampler

_REVISION: Final = revision()


@dataclass(frozen=True, slots=True)
class ObservedConfig:
    """What the status shows of the configuration; shares are of one CPU."""

    config_file: str
    dry_run: bool
    tick_s: float
    cpu_quota: float
    overhead: float
    policy: str
    targets: tuple[str, ...]
    dry_targets: frozenset[str] = frozenset()
    tier_rates: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ResidencyCounts:
    """Resident pages by node and by heat after a tick.

    ``resident_pages`` has a row for each process of the tick and a column for each node id, of
    which a ``known`` share was found one by one, all where that is None; ``heat_pages`` a row for
    each tier and a column for each bin of ``HEAT_LOG2``. ``heat`` are the counters of the heat
    table.
    """

    resident_pages: npt.NDArray[np.int64]
    heat_pages: npt.NDArray[np.int64]
    heat: HeatStats
    known: npt.NDArray[np.float64] | None = None


class Observer:
    """Adds ticks up; ``latest`` is the status after the last one, for any thread.

    The next status also shows the nodes whose unused page cache is being demoted
    (``demoting_nodes``), why targets have no processes (``empty_reasons``, by name), what fast
    memory is worth to targets (``demand``), which are outside of their hours (``resting``), and
    what those that are never slow have on slower tiers (``off_fastest``).
    """

    def __init__(
        self,
        setting: ObservedConfig,
        topology: Topology,
        sampler: Sampler,
        *,
        proc: Path = PROC,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._proc, self._clock, self._now = proc, clock, now
        self._started_s, self._begun_s = now(), clock()
        self._process = psutil.Process()
        self._begun_cpu_s = time.process_time()
        self._names: dict[ProcessId, str] = {}
        self._reload = ReloadStatus(True, self._started_s)
        self._counters = Counters(topology)
        self._recent_moves: deque[TickMoves] = deque(maxlen=MAX_TICKS_KEPT)
        self._ticked_s = self._started_s
        self._succeeded_s = dict.fromkeys(Stage, self._started_s)
        self._residency: ResidencyCounts | None = None
        self._memory: Sequence[NodeMemory] = ()
        self._control, self._budget = ControlStatus(), BudgetStatus()
        self.demoting_nodes: frozenset[int] = frozenset()
        self.empty_reasons: Mapping[str, str] = {}
        self.demand = TargetDemands()
        self.resting: frozenset[str] = frozenset()
        self.off_fastest: Mapping[str, int] = {}
        self._compiling = False
        self._far = FarStatus()
        self.profiles = ProfilesStatus()
        self.reconfigure(setting, topology, sampler)

    def reconfigure(self, setting: ObservedConfig, topology: Topology, sampler: Sampler) -> None:
        """Continue with another configuration.

        Counters are kept unless the tiers changed; those of removed targets are dropped.
        """
        self._setting, self._sampler = setting, sampler
        was = self._counters.topology
        if (topology.tiers, topology.latency_ns) == (was.tiers, was.latency_ns):
            self._counters.topology = topology
        else:
            self._counters = Counters(topology)
            self._recent_moves.clear()
            self._residency = None
        self._counters.retain_targets(setting.targets)
        self._counters.dry_targets = setting.dry_targets
        self.latest = self._status()

    def set_admin_state(self, control: ControlStatus) -> None:
        """Publish the admin state."""
        self._control = control
        self.latest = replace(self.latest, control=control)

    def set_compiling(self, compiling: bool) -> None:
        """Set whether kernels are being compiled."""
        self._compiling = compiling
        self.latest = replace(self.latest, compiling=compiling)

    def set_cpu_budget(self, budget: BudgetStatus) -> None:
        """Publish what the CPU time went to, and what is in force to keep the quota."""
        self._budget = budget
        tick_s = self._setting.tick_s * budget.stretch
        self.latest = replace(self.latest, budget=budget, tick_s=tick_s)

    def record_reload(self, error: str | None = None) -> None:
        """Publish the result of a reload."""
        if error is None:
            self._reload = ReloadStatus(True, self._now())
        else:
            self._reload = ReloadStatus(False, self._reload.success_s, error)
        self.latest = replace(self.latest, reload=self._reload)

    def observe(self, tick: TickRecord, residency: ResidencyCounts | None) -> Status:
        """Add a tick to the counters and publish the new status."""
        counters = self._counters
        counters.add(tick)
        if residency is not None:
            counters.stage_in[Stage.DECIDE] += int(residency.resident_pages.sum())
        counters.stage_in[Stage.OBSERVE] += 1
        self._ticked_s = self._now()
        for stage in tick.stage_s.keys() - tick.failed:
            self._succeeded_s[stage] = self._ticked_s
        self._recent_moves.extend(tick_moves(tick, counters, self._clock() - self._begun_s))
        self._residency, self._memory, self._far = residency, tick.memory, tick.far
        self.latest = self._status()
        return self.latest

    def target_uses(self) -> dict[str, TargetUse]:
        """Return what each target has done in recent ticks."""
        return self._counters.target_uses()

    def record_observe_time(self, seconds: float, failed: bool) -> None:
        """Add the duration of the observe stage itself; the next status shows it."""
        self._counters.stage_seconds[Stage.OBSERVE].add(seconds)
        self._counters.stage_failures[Stage.OBSERVE] += failed
        if not failed:
            self._counters.stage_out[Stage.OBSERVE] += 1
            self._succeeded_s[Stage.OBSERVE] = self._now()

    def _status(self) -> Status:
        counters, setting = self._counters, self._setting
        tiers = counters.topology.tiers
        nodes = self._nodes()
        sizes = [[n.total_bytes for n in nodes if n.tier == tier] for tier in range(len(tiers))]
        resident = self._resident_bytes()
        return Status(
            version=__version__,
            revision=_REVISION,
            pid=os.getpid(),
            started_s=self._started_s,
            uptime_s=self._clock() - self._begun_s,
            config_file=setting.config_file,
            dry_run=setting.dry_run,
            policy=setting.policy,
            tick_s=setting.tick_s * self._budget.stretch,
            cpu_quota=setting.cpu_quota,
            overhead_limit=setting.overhead,
            budget=self._budget,
            ticks=counters.ticks,
            ticked_s=self._ticked_s,
            tick_seconds=counters.tick_seconds.copy(),
            stages={stage: self._stage(stage) for stage in Stage},
            stage_failures=dict(counters.stage_failures),
            # psutil's cpu_times() counts clock ticks of 10 ms (proc_pid_stat(5)).
            cpu_s=time.process_time() - self._begun_cpu_s,
            resident_bytes=self._process.memory_info().rss,
            reload=self._reload,
            sampler=self._sampler_status(),
            control=self._control,
            tiers=tiers,
            tier_bytes=tuple(map(sum, sizes)),
            nodes=nodes,
            heat=self._heat(),
            heat_table=self._heat_table(),
            moves=counters.moves(),
            savings=replace(counters.savings_tracker.savings),
            recent_moves=tuple(self._recent_moves),
            targets=self._targets(resident),
            processes=self._processes(resident),
            compiling=self._compiling,
            demand=self.demand.of_all,
            far=self._far,
            profiles=self.profiles,
            tier_rates=setting.tier_rates,
        )

    def _nodes(self) -> tuple[NodeStatus, ...]:
        topology, demoting = self._counters.topology, self.demoting_nodes
        cache = {memory.node: memory.cache_bytes for memory in self._memory}
        size = {node.id: node.total_bytes for node in topology.nodes}
        latency_ns = topology.latency_ns
        return tuple(
            NodeStatus(n, tier, size[n], latency_ns[n], cache.get(n, 0), n in demoting)
            for tier, nodes in enumerate(topology.tiers)
            for n in nodes
        )

    def _sampler_status(self) -> SamplerStatus:
        sampler, stats = self._sampler, self._sampler.stats
        shown = {field.name for field in fields(SamplerStatus)}
        return SamplerStatus(
            name=sampler.name,
            period=sampler.period,
            shortest_period=min(sampler.periods),
            longest_period=max(sampler.periods),
            outside_cpu_s=sampler.outside_cpu_s,
            **{name: value for name, value in asdict(stats).items() if name in shown},
        )

    def _stage(self, stage: Stage) -> StageStatus:
        counters, stats = self._counters, self._sampler.stats
        items = counters.stage_in[stage], counters.stage_out[stage]
        if stage is Stage.SAMPLE:
            items = stats.samples + stats.dropped + stats.corrupt, stats.samples
        seconds = counters.stage_seconds[stage].copy()
        return StageStatus(seconds, *items, self._succeeded_s[stage])

    def _heat(self) -> HeatStatus:
        residency, tiers = self._residency, self._counters.tier_count
        pages = [()] * tiers if residency is None else residency.heat_pages.tolist()
        return HeatStatus(HEAT_LOG2[0], tuple(map(tuple, pages)))

    def _heat_table(self) -> HeatTableStatus:
        if self._residency is None:
            return HeatTableStatus()
        stats = self._residency.heat
        return HeatTableStatus(
            bytes=stats.bytes,
            detail_chunks=stats.page_slots,
            changed_processes=stats.changes,
            lost_chunks=stats.page_slots_reassigned,
            dropped_chunks=stats.page_slots_dropped,
        )

    def _resident_bytes(self) -> npt.NDArray[np.int64]:
        counters = self._counters
        if self._residency is None:
            return np.zeros((len(counters.table), counters.tier_count), np.int64)
        return counters.tier_bytes(self._residency.resident_pages)

    def _known_bytes(self, resident: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return how many of the resident bytes of each process were found one by one."""
        residency = self._residency
        sums: npt.NDArray[np.float64] = resident.sum(axis=1).astype(np.float64)
        if residency is not None and residency.known is not None:
            sums *= residency.known
        return sums

    def _targets(self, resident: npt.NDArray[np.int64]) -> tuple[TargetStatus, ...]:
        counters = self._counters
        known = np.zeros(len(counters.names))
        np.add.at(known, counters.target_row, self._known_bytes(resident))
        by_target = np.zeros((len(counters.names), counters.tier_count), np.int64)
        np.add.at(by_target, counters.target_row, resident)
        counts = np.bincount(counters.target_row, minlength=len(counters.names)).tolist()
        totals = counters.targets.totals(by_target, known)
        rows = zip(counters.names, totals, counts, counters.dry_runs(), strict=True)
        return tuple(
            TargetStatus(
                name=name,
                process_count=count,
                empty_reason="" if count else self.empty_reasons.get(name, ""),
                dry_run=name in counters.dry_targets,
                would=would,
                demand=self.demand.by_target.get(name) if count else None,
                resting=name in self.resting,
                off_fastest_bytes=self.off_fastest.get(name),
                **figures,
            )
            for name, figures, count, would in rows
        )

    def _processes(self, resident: npt.NDArray[np.int64]) -> tuple[ProcessStatus, ...]:
        counters = self._counters
        rows = np.argsort(-resident.sum(axis=1), kind="stable")[:MAX_LISTED]
        listed = [counters.table.processes[row] for row in rows.tolist()]
        self._names = {p: self._names.get(p) or self._read_name(p) for p in listed}
        targets = [counters.names[row] for row in counters.target_row[rows].tolist()]
        known = self._known_bytes(resident)[rows]
        totals = counters.processes.rearranged(rows).totals(resident[rows], known)
        return tuple(
            ProcessStatus(
                name=self._names[p],
                pid=p.pid,
                start_ticks=p.start_ticks,
                target=target,
                **figures,
            )
            for p, figures, target in zip(listed, totals, targets, strict=True)
        )

    def _read_name(self, process: ProcessId) -> str:
        stat = read_stat(process.pid, self._proc)
        return stat.name.decode("utf-8", "replace") if stat else "?"


_CODES = np.arange(-128, 128, dtype=np.int16)
_NODE_OF_CODE = np.roll(np.where(_CODES <= FIXED, FIXED - _CODES, _CODES), 128)
"""Node of each code of a ``node`` column, by the code's byte."""


def plain_node(node: npt.NDArray[np.int8]) -> npt.NDArray[np.int16]:
    """Return node ids of a ``node`` column, -1 for absent pages; its shape."""
    return _NODE_OF_CODE[node.view(np.uint8)]


def sample_nodes(heat: HeatTable, batch: AccessBatch) -> npt.NDArray[np.int16]:
    """Return the node of each sample's page, -1 where unknown; shape ``(len(batch),)``.

    Counting has found the nodes of most samples of the last update; others are looked up, which
    costs about 3 ns per sample (bench/stages/ring.py).
    """
    node = heat.sampled_nodes(batch)
    unknown = np.flatnonzero(node < 0)
    if len(unknown):
        node[unknown] = heat.nodes_at(batch.process[unknown], batch.address[unknown])
    return node


def resident_pages(heat: HeatTable, topology: Topology) -> npt.NDArray[np.int64]:
    """Return base pages by process of the table and node id; about 0.3 ns per page."""
    movable, fixed = heat.resident_pages(_node_count(topology))
    return movable + fixed


def heat_pages(heat: HeatTable, topology: Topology) -> npt.NDArray[np.int64]:
    """Return pages by tier and by bin of ``HEAT_LOG2``; about 10 ns per page."""
    by_node = np.zeros((_node_count(topology), HEAT_BINS), np.int64)
    if heat.chunks.used:
        count_heat(heat.chunks.used, heat.chunks.columns, heat.rates(), by_node)
    log2 = np.clip(np.arange(HEAT_BINS) - COLDEST, HEAT_LOG2[0], HEAT_LOG2[-1]) - HEAT_LOG2[0]
    tiers = np.zeros((len(topology.tiers), len(HEAT_LOG2)), np.int64)
    for tier, nodes in enumerate(topology.tiers):
        np.add.at(tiers[tier], log2, by_node[list(nodes)].sum(axis=0))
    return tiers


def _node_count(topology: Topology) -> int:
    return max(node.id for node in topology.nodes) + 1
