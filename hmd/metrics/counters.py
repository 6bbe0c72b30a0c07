# SPDX-License-Identifier: MIT
"""Counters over all ticks: per process, per target and in total.

They only grow, except for recent accesses, which decay. A tick costs a few passes over its samples
and moves, and one over each column of sums per process or target: ten thousand processes are rows
of arrays, not objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.linux.process_table import ProcessTable, carry_over
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Topology
from hmd.metrics.savings import SavingsTracker
from hmd.metrics.status import (
    MAX_TARGETS,
    DryRunStatus,
    Durations,
    MovesStatus,
    NodeFlow,
    Stage,
)
from hmd.metrics.tick_record import TickRecord
from hmd.migrate.status import FAILURES, MoveStatus
from hmd.sample.access_batch import AccessBatch, Kind

RECENT_DECAY: Final = 0.8
"""Factor per tick on recent accesses: their half-life is 3 ticks."""

OTHER: Final = "other"
"""The name under which targets after the first ``MAX_TARGETS`` are counted."""

DIRECTIONS: Final = ("up", "down", "level")
"""Of a planned move: to a faster tier, to a slower one, to another node of the same tier."""


@dataclass(frozen=True, slots=True)
class TargetUse:
    """What a target has done in recent ticks, per second.

    ``loads`` that waited, ``accesses`` of all kinds: by tier, shape ``(tiers + 1,)``, the last of
    pages on no known node; ``moved_pages``.
    """

    loads: npt.NDArray[np.float64]
    accesses: npt.NDArray[np.float64]
    moved_pages: float


@dataclass(slots=True)
class RowSums:
    """Sums by process or by target, with one row each.

    ``accesses`` and ``recent`` are sampled accesses by tier, shape ``(n, tiers + 1)``, the last
    column for pages on no known node; ``recent`` decays, and so do ``recent_loads``, of which each
    counts for the share of its node's idle latency that it took, and ``recent_moves``, in pages.
    The other columns have shape ``(n,)``.
    Those of ``AccessTotals`` and ``DryRunStatus`` have the names that they have there; ``dry_`` is
    of dry runs.
    """

    accesses: npt.NDArray[np.float64]
    recent: npt.NDArray[np.float64]
    recent_loads: npt.NDArray[np.float64]
    recent_moves: npt.NDArray[np.float64]
    samples: npt.NDArray[np.int64]
    promoted_bytes: npt.NDArray[np.int64]
    demoted_bytes: npt.NDArray[np.int64]
    failed_pages: npt.NDArray[np.int64]
    requested_bytes: npt.NDArray[np.int64]
    dry_promoted_bytes: npt.NDArray[np.int64]
    dry_demoted_bytes: npt.NDArray[np.int64]
    saved_s: npt.NDArray[np.float64]
    lost_s: npt.NDArray[np.float64]
    measured_loads: npt.NDArray[np.float64]
    measured_s: npt.NDArray[np.float64]
    dry_seconds: npt.NDArray[np.float64]
    dry_saved_s: npt.NDArray[np.float64]
    dry_lost_s: npt.NDArray[np.float64]

    @classmethod
    def zeros(cls, rows: int, tiers: int) -> Self:
        """Return sums that are all zero."""
        by_tier, sums = np.zeros((3, rows, tiers + 1)), np.zeros((8, rows))
        return cls(*by_tier, *sums[:1], *np.zeros((7, rows), np.int64), *sums[1:])

    def decay(self) -> None:
        """Let recent sums fade by a tick."""
        self.recent *= RECENT_DECAY
        self.recent_loads *= RECENT_DECAY
        self.recent_moves *= RECENT_DECAY

    def __len__(self) -> int:
        return len(self.samples)

    def rearranged(self, former: npt.NDArray[np.int64]) -> Self:
        """Return sums whose row i is ``former[i]`` of these, or zero where that is -1."""
        return type(self)(*(carry_over(getattr(self, c.name), former) for c in fields(self)))

    def add_accesses(
        self,
        row: npt.NDArray[np.integer],
        tier: npt.NDArray[np.integer],
        period: npt.NDArray[np.integer],
        loads: npt.NDArray[np.float64],
    ) -> None:
        """Count samples, each for ``period`` accesses and as many ``loads``; ``(samples,)``."""
        rows, width = self.accesses.shape
        cell = row.astype(np.int64) * width + tier
        counted = np.bincount(cell, period, rows * width).reshape(rows, width)
        self.accesses += counted
        self.recent += counted
        self.recent_loads += np.bincount(cell, loads, rows * width).reshape(rows, width)
        self.samples += np.bincount(row, minlength=rows)

    def add_latencies(
        self, row: npt.NDArray[np.integer], latency_ns: npt.NDArray[np.uint32]
    ) -> None:
        """Count loads whose latency was measured; columns have shape ``(loads,)``."""
        self.measured_loads += np.bincount(row, minlength=len(self))
        self.measured_s += np.bincount(row, latency_ns, len(self)) * 1e-9

    def add(self, row: npt.NDArray[np.integer], columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Add values to the columns of these names, each in its ``row``; shapes ``(values,)``."""
        for name, values in columns.items():
            if values.any():
                np.add.at(getattr(self, name), row, values)

    def totals(
        self, resident_bytes: npt.NDArray[np.int64], known_bytes: npt.NDArray[np.float64]
    ) -> Iterator[dict[str, Any]]:
        """Yield each row's fields of ``AccessTotals`` but the name, in 3 µs per row.

        ``resident_bytes`` by tier, of which the pages of ``known_bytes`` have been found.
        """
        sums = resident_bytes.sum(axis=1)
        found = np.divide(known_bytes, sums, out=np.ones(len(sums)), where=sums > 0)
        known = self.recent[:, :-1].sum(axis=1)
        counted = known > 1e-6
        shares = np.divide(self.recent[:, 0], known, out=np.zeros_like(known), where=counted)
        fast_shares = [
            share if n else None for share, n in zip(shares.tolist(), counted, strict=True)
        ]
        names = ("samples", "promoted_bytes", "demoted_bytes", "failed_pages", "requested_bytes")
        columns = {
            "resident_bytes": map(tuple, resident_bytes.tolist()),
            "fast_share": fast_shares,
            "accesses": map(tuple, self.accesses.tolist()),
            "known": np.minimum(found, 1.0).tolist(),
            "measured_loads": self.measured_loads.astype(np.int64).tolist(),
            **{n: getattr(self, n).tolist() for n in (*names, "saved_s", "lost_s", "measured_s")},
        }
        for row in zip(*columns.values(), strict=True):
            yield dict(zip(columns, row, strict=True))


class Counters:
    """All counters since the daemon's start; ``add`` takes the next tick.

    Row i of ``processes`` belongs to ``table.processes[i]``. Its target is row ``target_row[i]``
    of ``targets``, named ``names[target_row[i]]``.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.tier_count = len(topology.tiers)
        self._tier_of_node = _tier_of_node(topology)
        self.table = ProcessTable()
        self.target_row = np.empty(0, np.intp)
        self._target_names: tuple[str, ...] = ()
        self._rows: dict[str, int] = {}
        self.processes = RowSums.zeros(0, self.tier_count)
        self.targets = RowSums.zeros(0, self.tier_count)
        self._moved_bytes: dict[tuple[int, int], int] = {}
        self._pages_by_status: dict[MoveStatus, int] = {
            s: 0 for s in MoveStatus if s is not MoveStatus.PENDING
        }
        self._planned_pages = dict.fromkeys(DIRECTIONS, 0)
        self._paged_out_bytes = self._calls = 0
        self._recent_s = 0.0
        self.savings_tracker = SavingsTracker(topology)
        self.dry_run_tracker = SavingsTracker(topology, dry_run=True)
        self.dry_targets: frozenset[str] = frozenset()
        self.ticks = 0
        self.tick_seconds = Durations()
        self.stage_seconds = {stage: Durations() for stage in Stage}
        self.stage_failures = dict.fromkeys(Stage, 0)
        self.stage_in = dict.fromkeys(Stage, 0)
        self.stage_out = dict.fromkeys(Stage, 0)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rows of ``targets``."""
        return tuple(self._rows)

    def add_targets(self, names: Iterable[str]) -> None:
        """Start counters of these targets at zero, so that their series exist from the start."""
        self._name_rows(names)
        if len(self._rows) > len(self.targets):
            rows = np.arange(len(self._rows))
            self.targets = self.targets.rearranged(np.where(rows < len(self.targets), rows, -1))

    def retain_targets(self, names: Iterable[str]) -> None:
        """Keep these targets and those that still have a process; drop the counters of others.

        A batch system may create thousands of targets over time.
        """
        before, self._rows = self._rows, {}
        rest = [OTHER] if OTHER in before else []
        self._name_rows([*names, *self._target_names, *rest])
        self.targets = self.targets.rearranged(
            np.array([before.get(name, -1) for name in self._rows], np.int64)
        )
        self.target_row = self._rows_of(self._target_names)

    def _name_rows(self, names: Iterable[str]) -> None:
        for name in names:
            known = name in self._rows or len(self._rows) < MAX_TARGETS
            self._rows.setdefault(name if known else OTHER, len(self._rows))

    def _rows_of(self, names: Iterable[str]) -> npt.NDArray[np.intp]:
        return np.array([self._rows.get(n, self._rows.get(OTHER, -1)) for n in names], np.intp)

    def tier_bytes(self, pages: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return bytes by tier of pages by node id; shapes ``(n, tiers)`` and ``(n, nodes)``."""
        of_tier = self._tier_of_node[: pages.shape[1], None] == np.arange(self.tier_count)
        sums: npt.NDArray[np.int64] = pages @ of_tier.astype(np.int64) * PAGE_BYTES
        return sums

    def tier(self, node: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
        """Return the tier of each node, one past the slowest where unknown."""
        return self._tier_of_node[np.clip(node, -1, len(self._tier_of_node) - 1)]

    def moves(self) -> MovesStatus:
        """Return what all moves came to."""
        by_status = {s.label: pages for s, pages in self._pages_by_status.items()}
        failures = {s.label: self._pages_by_status[s] for s in sorted(FAILURES)}
        flows = self._moved_bytes.items()
        tier = self._tier_of_node
        return MovesStatus(
            planned_pages=sum(self._planned_pages.values()),
            promoted_bytes=sum(size for (a, b), size in flows if tier[b] < tier[a]),
            demoted_bytes=sum(size for (a, b), size in flows if tier[b] > tier[a]),
            paged_out_bytes=self._paged_out_bytes,
            failed_pages=sum(failures.values()),
            deferred_pages=self._pages_by_status[MoveStatus.DEFERRED],
            would_move_pages=int(
                (self.targets.dry_promoted_bytes + self.targets.dry_demoted_bytes).sum()
            )
            // PAGE_BYTES,
            calls=self._calls,
            planned_by_direction=dict(self._planned_pages),
            pages_by_status=by_status,
            failures={reason: pages for reason, pages in failures.items() if pages},
            flows=tuple(NodeFlow(a, b, size) for (a, b), size in sorted(flows) if size),
        )

    def add(self, tick: TickRecord) -> None:
        """Add one tick to all counters."""
        self._track_processes(tick.processes, tick.targets)
        self._add_stage_items(tick)
        self._add_accesses(tick)
        self._add_moves(tick)
        real, dry = self.savings_tracker.add(tick), self.dry_run_tracker.add(tick)
        slot = self.table.slots_of(tick.processes)
        savings = {
            "saved_s": real.realised_saved_s,
            "lost_s": real.realised_lost_s,
            "dry_saved_s": dry.realised_saved_s,
            "dry_lost_s": dry.realised_lost_s,
            "dry_promoted_bytes": dry.new_up_pages.astype(np.int64) * PAGE_BYTES,
            "dry_demoted_bytes": dry.new_down_pages.astype(np.int64) * PAGE_BYTES,
        }
        self.processes.add(slot, savings)
        self.targets.add(self.target_row[slot], savings)
        for name in self.dry_targets & self._rows.keys():
            self.targets.dry_seconds[self._rows[name]] += tick.tick_s
        self.ticks += 1
        self.tick_seconds.add(sum(tick.stage_s.values()))
        for stage, seconds in tick.stage_s.items():
            self.stage_seconds[stage].add(seconds)
        for stage in tick.failed:
            self.stage_failures[stage] += 1

    def _track_processes(self, processes: Sequence[ProcessId], targets: Sequence[str]) -> None:
        if (self.table.processes, self._target_names) == (processes, targets):
            return
        self._target_names = tuple(targets)
        self.add_targets(dict.fromkeys(targets))
        self.target_row = self._rows_of(targets)
        former = self.table.replace(processes)
        if former is not None:
            self.processes = self.processes.rearranged(former)

    def _add_stage_items(self, tick: TickRecord) -> None:
        samples, outcome = len(tick.batch), tick.outcome
        planned = int(tick.plan.pages.sum())
        self.stage_in[Stage.HEAT] += samples
        self.stage_out[Stage.HEAT] += int(np.count_nonzero(tick.node >= 0))
        self.stage_out[Stage.DECIDE] += planned
        self.stage_in[Stage.MIGRATE] += planned
        if outcome is not None and not outcome.dry_run:
            self.stage_out[Stage.MIGRATE] += sum(outcome.moved.values())

    def _add_accesses(self, tick: TickRecord) -> None:
        self.processes.decay()
        self.targets.decay()
        self._recent_s = self._recent_s * RECENT_DECAY + tick.tick_s
        batch = tick.batch
        if not len(batch):
            return
        tier = self.tier(tick.node)
        loads = self._waiting_loads(batch, tick.node)
        self.processes.add_accesses(batch.process, tier, batch.period, loads)
        row = self.target_row[batch.process]
        self.targets.add_accesses(row, tier, batch.period, loads)
        measured = np.flatnonzero(batch.latency_ns)
        if len(measured):
            latency_ns = batch.latency_ns[measured]
            self.processes.add_latencies(batch.process[measured], latency_ns)
            self.targets.add_latencies(row[measured], latency_ns)

    def _waiting_loads(
        self, batch: AccessBatch, node: npt.NDArray[np.int16]
    ) -> npt.NDArray[np.float64]:
        """Return the loads that samples stand for, less those whose lines were on their way."""
        of_node = np.array([*self.topology.latency_ns, 0.0])
        idle_ns = of_node[np.clip(node, -1, len(of_node) - 1)]
        # Samples without a latency did not wait, where there are any that have one.
        known = (idle_ns > 0) & bool(batch.latency_ns.any())
        share = np.divide(batch.latency_ns, idle_ns, out=np.ones(len(batch)), where=known)
        loads: npt.NDArray[np.float64] = np.where(
            batch.kind == Kind.STORE, 0.0, np.minimum(share, 1.0) * batch.period
        )
        return loads

    def target_uses(self) -> dict[str, TargetUse]:
        """Return what each target has done in recent ticks."""
        sums, elapsed_s = self.targets, max(self._recent_s, 1e-9)
        return {
            name: TargetUse(
                sums.recent_loads[row] / elapsed_s,
                sums.recent[row] / elapsed_s,
                float(sums.recent_moves[row]) / elapsed_s,
            )
            for name, row in self._rows.items()
        }

    def dry_runs(self) -> list[DryRunStatus]:
        """Return what a dry run would have done for each target, in the order of ``names``."""
        columns = {
            field.name: getattr(self.targets, f"dry_{field.name}").tolist()
            for field in fields(DryRunStatus)
        }
        rows = zip(*columns.values(), strict=True)
        return [DryRunStatus(**dict(zip(columns, row, strict=True))) for row in rows]

    def _add_moves(self, tick: TickRecord) -> None:
        plan, outcome = tick.plan, tick.outcome
        change = self.tier(plan.to_node) - self.tier(plan.from_node)
        up, down = change < 0, change > 0
        for direction, chosen in zip(DIRECTIONS, (up, down, change == 0), strict=True):
            self._planned_pages[direction] += int(plan.pages[chosen].sum())
        self._paged_out_bytes += tick.paged_out_bytes
        if outcome is None:
            return
        self._calls += outcome.calls
        for status, pages in outcome.pages.items():
            self._pages_by_status[status] = self._pages_by_status.get(status, 0) + pages
        if outcome.dry_run:
            return
        for flow, pages in outcome.moved.items():
            self._moved_bytes[flow] = self._moved_bytes.get(flow, 0) + pages * PAGE_BYTES
        row = self.table.slots_of(plan.processes)[plan.process]
        known = row >= 0
        moved = outcome.moved_pages.astype(np.int64) * PAGE_BYTES
        failed = np.where(np.isin(outcome.status, sorted(FAILURES)), plan.pages, 0)
        columns = {
            "promoted_bytes": (moved * up)[known],
            "demoted_bytes": (moved * down)[known],
            "failed_pages": failed.astype(np.int64)[known],
            "requested_bytes": (moved * (np.arange(len(plan)) < plan.requested))[known],
        }
        self.processes.add(row[known], columns)
        columns["recent_moves"] = outcome.moved_pages[known].astype(np.float64)
        self.targets.add(self.target_row[row[known]], columns)


def _tier_of_node(topology: Topology) -> npt.NDArray[np.int16]:
    """Return tiers by node id; ids without memory and the last entry (-1) get one past all."""
    tiers = topology.tiers
    highest = max(node.id for node in topology.nodes)
    table = np.full(highest + 2, len(tiers), np.int16)
    for tier, nodes in enumerate(tiers):
        table[list(nodes)] = tier
    return table
