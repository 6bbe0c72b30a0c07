"""Counters over all ticks: per process, per target and in total.

Takes ``TickRecord``s. The counters only grow, except for recent accesses, which decay. Costs a few
passes over the samples and moves of a tick and over the processes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hmd.machine.nodes.topology import Topology
from hmd.machine.process_id import ProcessId
from hmd.migrate.move_status import FAILURES, MoveStatus
from hmd.observe.limits import MAX_TARGETS
from hmd.observe.row_sums import RowSums
from hmd.observe.savings import SavingsTracker
from hmd.observe.tick_record import Stage, TickRecord
from hmd.units import PAGE_BYTES

DURATION_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

OTHER = "other"
"""The name under which targets after the first ``MAX_TARGETS`` are counted."""

FAILURE_REASONS = tuple(status.name.lower() for status in sorted(FAILURES))

DIRECTIONS = ("up", "down", "level")
"""Of a planned move: to a faster tier, to a slower one, to another node of the same tier."""


@dataclass(slots=True)
class Durations:
    """A histogram of seconds: ``counts[i]`` has those up to bound i, the last count the rest."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BOUNDS_S) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(DURATION_BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def copy(self) -> Durations:
        """Return a copy of the histogram."""
        return Durations(list(self.counts), self.sum_s)


class Counters:
    """All counters since the daemon's start; ``add`` takes the next tick.

    Row i of ``processes`` belongs to ``followed[i]``, whose target is row ``target_row[i]`` of
    ``targets``, named ``names[target_row[i]]``.
    """

    def __init__(self, topology: Topology) -> None:
        """Start at zero, with an entry for each pair of nodes and each reason of failure."""
        self.topology = topology
        self.tier_count = len(topology.tiers)
        self._tier_of_node = _tier_of_node(topology)
        nodes = [node.id for node in topology.nodes]
        self.followed: tuple[ProcessId, ...] = ()
        self.target_row = np.empty(0, np.intp)
        self._target_names: tuple[str, ...] = ()
        self._rows: dict[str, int] = {}
        self.processes = RowSums.zeros(0, self.tier_count)
        self.targets = RowSums.zeros(0, self.tier_count)
        self.moved_bytes = {(a, b): 0 for a in nodes for b in nodes if a != b}
        self.pages_by_status: dict[MoveStatus, int] = {
            s: 0 for s in MoveStatus if s is not MoveStatus.PENDING
        }
        self.planned_pages = dict.fromkeys(DIRECTIONS, 0)
        self.savings_tracker = SavingsTracker(topology)
        self.paged_out_bytes = 0
        self.calls = 0
        self.ticks = 0
        self.tick_seconds = Durations()
        self.stage_seconds = {stage: Durations() for stage in Stage}
        self.stage_failures = dict.fromkeys(Stage, 0)
        self.stage_in = dict.fromkeys(Stage, 0)
        self.stage_out = dict.fromkeys(Stage, 0)

    def add_targets(self, names: Iterable[str]) -> None:
        """Start counters of these targets at zero, so that their series exist from the start."""
        self._name_rows(names)
        rows = np.arange(len(self._rows), dtype=np.intp)
        if len(rows) > len(self.targets):
            rows[len(self.targets) :] = -1
            self.targets = self.targets.taken_over(rows)

    def use_targets(self, names: Iterable[str]) -> None:
        """Keep these targets and those that still have a process; drop the counters of others.

        A batch system may create thousands of targets over time.
        """
        before, self._rows = self._rows, {}
        rest = [OTHER] if OTHER in before else []
        self._name_rows([*names, *self._target_names, *rest])
        rows = np.array([before.get(name, -1) for name in self._rows], np.intp)
        self.targets = self.targets.taken_over(rows)
        self.target_row = self._rows_of(self._target_names)

    def _name_rows(self, names: Iterable[str]) -> None:
        for name in names:
            known = name in self._rows or len(self._rows) < MAX_TARGETS
            self._rows.setdefault(name if known else OTHER, len(self._rows))

    def _rows_of(self, names: Iterable[str]) -> npt.NDArray[np.intp]:
        return np.array([self._rows.get(n, self._rows.get(OTHER, -1)) for n in names], np.intp)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rows of ``targets``."""
        return tuple(self._rows)

    def tier_bytes(self, pages: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return bytes by tier of pages by node id; shapes ``(n, tiers)`` and ``(n, nodes)``."""
        of_tier = self._tier_of_node[: pages.shape[1], None] == np.arange(self.tier_count)
        sums: npt.NDArray[np.int64] = pages @ of_tier.astype(np.int64) * PAGE_BYTES
        return sums

    def tier(self, node: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
        """Return the tier of each node, one past the slowest where unknown."""
        return self._tier_of_node[np.clip(node, -1, len(self._tier_of_node) - 1)]

    def add(self, tick: TickRecord) -> None:
        """Add one tick to all counters."""
        self._follow(tick.processes, tick.targets)
        self._add_stage_items(tick)
        self._add_accesses(tick)
        self._add_moves(tick)
        self.savings_tracker.add(tick)
        self.ticks += 1
        self.tick_seconds.add(sum(tick.stage_s.values()))
        for stage, seconds in tick.stage_s.items():
            self.stage_seconds[stage].add(seconds)
        for stage in tick.failed:
            self.stage_failures[stage] += 1

    def _follow(self, processes: Sequence[ProcessId], targets: Sequence[str]) -> None:
        if (self.followed, self._target_names) == (processes, targets):
            return
        self._target_names = tuple(targets)
        self.add_targets(dict.fromkeys(targets))
        self.target_row = self._rows_of(targets)
        rows = {process: row for row, process in enumerate(self.followed)}
        self.followed = tuple(processes)
        self.processes = self.processes.taken_over(
            np.array([rows.get(process, -1) for process in processes], np.intp)
        )

    def _add_stage_items(self, tick: TickRecord) -> None:
        """Count the items into and out of the stages."""
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
        batch = tick.batch
        if not len(batch):
            return
        tier = self.tier(tick.node)
        self.processes.add_accesses(batch.process, tier, batch.period)
        self.targets.add_accesses(self.target_row[batch.process], tier, batch.period)

    def _add_moves(self, tick: TickRecord) -> None:
        plan, outcome = tick.plan, tick.outcome
        change = self.tier(plan.to_node) - self.tier(plan.from_node)
        for direction, chosen in zip(
            DIRECTIONS, (change < 0, change > 0, change == 0), strict=True
        ):
            self.planned_pages[direction] += int(plan.pages[chosen].sum())
        self.paged_out_bytes += tick.paged_out_bytes
        if outcome is None:
            return
        self.calls += outcome.calls
        for status, pages in outcome.pages.items():
            self.pages_by_status[status] = self.pages_by_status.get(status, 0) + pages
        if outcome.dry_run:
            return
        for (source, target), pages in outcome.moved.items():
            flow = self.moved_bytes
            flow[source, target] = flow.get((source, target), 0) + pages * PAGE_BYTES
        rows = {process: row for row, process in enumerate(self.followed)}
        row = np.array([rows.get(process, -1) for process in plan.processes], np.intp)
        row = row[plan.process]
        known = row >= 0
        moved = outcome.moved_pages.astype(np.int64) * PAGE_BYTES
        failed = np.where(np.isin(outcome.status, sorted(FAILURES)), plan.pages, 0)
        columns = (moved * (change < 0), moved * (change > 0), failed.astype(np.int64))
        up, down, lost = (column[known] for column in columns)
        self.processes.add_moves(row[known], up, down, lost)
        self.targets.add_moves(self.target_row[row[known]], up, down, lost)


def _tier_of_node(topology: Topology) -> npt.NDArray[np.int16]:
    """Return tiers by node id; ids without memory and the last entry (-1) get one past all."""
    tiers = topology.tiers
    highest = max(node.id for node in topology.nodes)
    table = np.full(highest + 2, len(tiers), np.int16)
    for tier, nodes in enumerate(tiers):
        table[list(nodes)] = tier
    return table
