"""The last stage of a tick: adds it to the counters and publishes the snapshot for all readers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hmd import __version__
from hmd.decide.move_guard import GuardState
from hmd.heat.heat_settings import HeatStats
from hmd.machine.nodes.topology import NodeMemory, Topology
from hmd.machine.process_id import PROC, ProcessId, read_stat
from hmd.observe.budget_numbers import BudgetNumbers
from hmd.observe.counters import FAILURE_REASONS, Counters
from hmd.observe.limits import MAX_LISTED
from hmd.observe.own_cost import OwnCost
from hmd.observe.recent_moves import RecentMoves
from hmd.observe.row_sums import RowSums
from hmd.observe.snapshot import (
    AccessTotals,
    ControlNumbers,
    NodeNumbers,
    ProcessNumbers,
    ReloadState,
    SamplerNumbers,
    Snapshot,
    StageNumbers,
    TargetNumbers,
)
from hmd.observe.tick_record import Stage, TickRecord
from hmd.sample.sampler import Sampler


@dataclass(frozen=True, slots=True)
class ObservedConfig:
    """What the snapshot shows of the configuration; shares are of one CPU."""

    config_file: str
    dry_run: bool
    tick_s: float
    cpu_quota: float
    overhead: float
    policy: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Places:
    """Resident pages by node and by heat after a tick.

    ``resident_pages`` has a row for each process of the tick and a column for each node id;
    ``heat_pages`` a row for each tier and a column for each bin of ``HEAT_LOG2``. ``heat`` are the
    counters of the heat table.
    """

    resident_pages: npt.NDArray[np.int64]
    heat_pages: npt.NDArray[np.int64]
    heat: HeatStats


class Observer:
    """Adds ticks up; ``latest`` is the snapshot after the last one, for any thread."""

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
        """Publish a first snapshot with all counters at zero."""
        self._proc, self._clock, self._now = proc, clock, now
        self._started_s, self._begun_s = now(), clock()
        self._own = OwnCost()
        self._names: dict[ProcessId, str] = {}
        self._reload = ReloadState(True, self._started_s)
        self._counters = Counters(topology)
        self._recent_moves = RecentMoves()
        self._ticked_s = self._started_s
        self._succeeded_s = dict.fromkeys(Stage, self._started_s)
        self._places: Places | None = None
        self._memory: Sequence[NodeMemory] = ()
        self._control = ControlNumbers()
        self._budget = BudgetNumbers()
        self._guard: GuardState | None = None
        self._demoting: frozenset[int] = frozenset()
        self.use(setting, topology, sampler)

    def use(self, setting: ObservedConfig, topology: Topology, sampler: Sampler) -> None:
        """Continue with another configuration.

        Counters are kept unless the tiers changed; those of removed targets are dropped.
        """
        self._setting, self._sampler = setting, sampler
        was = self._counters.topology
        if (topology.tiers, topology.latency_ns) == (was.tiers, was.latency_ns):
            self._counters.topology = topology
        else:
            self._counters = Counters(topology)
            self._recent_moves = RecentMoves()
            self._places = None
        self._counters.use_targets(setting.targets)
        self.latest = self._snapshot(self._places)

    def controlled(self, control: ControlNumbers) -> None:
        """Publish the admin state."""
        self._control = control
        self.latest = replace(self.latest, control=control)

    def guarded(self, guard: GuardState | None) -> None:
        """Publish what the guard of moves knows; None where moves are not guarded."""
        self._guard = guard
        self.latest = replace(self.latest, guard=guard)

    def demoting(self, nodes: frozenset[int]) -> None:
        """Set the nodes whose unused page cache is being demoted; the next snapshot shows them."""
        self._demoting = nodes

    def budgeted(self, budget: BudgetNumbers) -> None:
        """Publish what the CPU time went to, and what gives way to keep the quota."""
        self._budget = budget
        tick_s = self._setting.tick_s * budget.stretch
        self.latest = replace(self.latest, budget=budget, tick_s=tick_s)

    def reloaded(self, error: str | None = None) -> None:
        """Publish the result of a reload."""
        if error is None:
            self._reload = ReloadState(True, self._now())
        else:
            self._reload = ReloadState(False, self._reload.success_s, error)
        self.latest = replace(self.latest, reload=self._reload)

    def observe(self, tick: TickRecord, places: Places | None) -> Snapshot:
        """Add a tick to the counters and publish the new snapshot."""
        counters = self._counters
        counters.add(tick)
        if places is not None:
            counters.stage_in[Stage.DECIDE] += int(places.resident_pages.sum())
        counters.stage_in[Stage.OBSERVE] += 1
        self._ticked_s = self._now()
        for stage in tick.stage_s.keys() - tick.failed:
            self._succeeded_s[stage] = self._ticked_s
        self._recent_moves.add(tick, counters, self._clock() - self._begun_s)
        self._places, self._memory = places, tick.memory
        self.latest = self._snapshot(places)
        return self.latest

    def observed(self, seconds: float, failed: bool) -> None:
        """Add the duration of the observe stage itself; the next snapshot shows it."""
        self._counters.stage_seconds[Stage.OBSERVE].add(seconds)
        self._counters.stage_failures[Stage.OBSERVE] += failed
        if not failed:
            self._counters.stage_out[Stage.OBSERVE] += 1
            self._succeeded_s[Stage.OBSERVE] = self._now()

    def _snapshot(self, places: Places | None) -> Snapshot:
        counters, setting = self._counters, self._setting
        resident = self._resident(places)
        return Snapshot(
            version=__version__,
            pid=os.getpid(),
            started_s=self._started_s,
            uptime_s=self._clock() - self._begun_s,
            config_file=setting.config_file,
            dry_run=setting.dry_run,
            tick_s=setting.tick_s * self._budget.stretch,
            cpu_quota=setting.cpu_quota,
            overhead_limit=setting.overhead,
            policy=setting.policy,
            tiers=counters.topology.tiers,
            nodes=_nodes(counters.topology, self._memory, self._demoting),
            sampler=self._source(),
            reload=self._reload,
            ticks=counters.ticks,
            ticked_s=self._ticked_s,
            planned=dict(counters.planned_pages),
            calls=counters.calls,
            moved_bytes=dict(counters.moved_bytes),
            paged_out_bytes=counters.paged_out_bytes,
            pages_by_status={s.name.lower(): n for s, n in counters.pages_by_status.items()},
            failure_reasons=FAILURE_REASONS,
            heat_pages=_rows(places.heat_pages) if places else ((),) * counters.tier_count,
            heat_table_bytes=places.heat.bytes if places else 0,
            detail_chunks=places.heat.details if places else 0,
            heat_changes=places.heat.changes if places else 0,
            details_lost=places.heat.details_lost if places else 0,
            details_dropped=places.heat.details_dropped if places else 0,
            savings=replace(counters.savings_tracker.savings),
            tick_seconds=counters.tick_seconds.copy(),
            stages={stage: self._stage(stage) for stage in Stage},
            cpu_s=self._own.cpu_s,
            resident_bytes=self._own.resident_bytes,
            targets=self._targets(resident),
            processes=self._processes(resident),
            recent_moves=self._recent_moves.latest(),
            control=self._control,
            budget=self._budget,
            guard=self._guard,
        )

    def _source(self) -> SamplerNumbers:
        sampler = self._sampler
        return SamplerNumbers(
            name=sampler.name,
            period=sampler.period,
            shortest=min(sampler.ladder),
            longest=max(sampler.ladder),
            stats=replace(sampler.stats),
            outside_cpu_s=sampler.outside_cpu_s,
        )

    def _stage(self, stage: Stage) -> StageNumbers:
        counters, stats = self._counters, self._sampler.stats
        sampled = stage is Stage.SAMPLE
        read = stats.samples + stats.dropped + stats.corrupt
        return StageNumbers(
            seconds=counters.stage_seconds[stage].copy(),
            items_in=read if sampled else counters.stage_in[stage],
            items_out=stats.samples if sampled else counters.stage_out[stage],
            failures=counters.stage_failures[stage],
            succeeded_s=self._succeeded_s[stage],
        )

    def _resident(self, places: Places | None) -> npt.NDArray[np.int64]:
        """Return resident bytes by process and tier."""
        counters = self._counters
        if places is None:
            return np.zeros((len(counters.followed), counters.tier_count), np.int64)
        return counters.tier_bytes(places.resident_pages)

    def _targets(self, resident: npt.NDArray[np.int64]) -> tuple[TargetNumbers, ...]:
        counters = self._counters
        by_target = np.zeros((len(counters.names), counters.tier_count), np.int64)
        np.add.at(by_target, counters.target_row, resident)
        counts = np.bincount(counters.target_row, minlength=len(counters.names)).tolist()
        totals = _totals(counters.targets, by_target)
        return tuple(
            TargetNumbers(name, count, numbers)
            for name, count, numbers in zip(counters.names, counts, totals, strict=True)
        )

    def _processes(self, resident: npt.NDArray[np.int64]) -> tuple[ProcessNumbers, ...]:
        """Return the processes with most resident memory."""
        counters = self._counters
        largest = np.argsort(-resident.sum(axis=1), kind="stable")[:MAX_LISTED].tolist()
        listed = [counters.followed[row] for row in largest]
        self._names = {p: self._names.get(p) or self._name(p) for p in listed}
        rows = np.array(largest, np.intp)
        totals = _totals(counters.processes.taken_over(rows), resident[rows])
        return tuple(
            ProcessNumbers(
                process, self._names[process], counters.names[counters.target_row[row]], numbers
            )
            for process, row, numbers in zip(listed, largest, totals, strict=True)
        )

    def _name(self, process: ProcessId) -> str:
        stat = read_stat(process.pid, self._proc)
        return stat.name.decode("utf-8", "replace") if stat else "?"


def _totals(sums: RowSums, resident: npt.NDArray[np.int64]) -> list[AccessTotals]:
    """Return the figures of each row; whole columns become lists, which costs 2 µs per row."""
    columns = zip(
        sums.accesses.tolist(),
        sums.fast_shares(),
        sums.samples.tolist(),
        resident.tolist(),
        sums.promoted_bytes.tolist(),
        sums.demoted_bytes.tolist(),
        sums.failed_pages.tolist(),
        strict=True,
    )
    return [
        AccessTotals(tuple(accesses), share, samples, tuple(tiers), promoted, demoted, failed)
        for accesses, share, samples, tiers, promoted, demoted, failed in columns
    ]


def _nodes(
    topology: Topology, memory: Sequence[NodeMemory], demoting: frozenset[int]
) -> tuple[NodeNumbers, ...]:
    latency_ns = topology.latency_ns
    cache = {each.node: each.cache_bytes for each in memory}
    size = {node.id: node.total_bytes for node in topology.nodes}
    return tuple(
        NodeNumbers(node, tier, size[node], latency_ns[node], cache.get(node, 0), node in demoting)
        for tier, nodes in enumerate(topology.tiers)
        for node in nodes
    )


def _rows(table: npt.NDArray[np.int64]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in table.tolist())
