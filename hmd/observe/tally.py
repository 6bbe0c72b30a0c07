"""Running sums of what ticks did: per process, per target and over all.

Takes ``Tick``s, keeps plain numbers that only grow (and a short memory of recent accesses).
Costs one ``bincount`` over the samples and one over the moves a tick.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hmd.machine.process import ProcessId
from hmd.machine.topology import Topology
from hmd.migrate.outcome import PAGE_BYTES
from hmd.migrate.status import FAILURES, Status
from hmd.observe.tick import Stage, Tick

RECENT_DECAY = 0.8
"""What a tick leaves of the accesses before it in the recent share: half is gone in 3 ticks."""

DURATION_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

MAX_TARGETS = 64
OTHER = "other"
"""Where targets are counted that came after the first ``MAX_TARGETS`` names."""

FAILURE_REASONS = tuple(status.name.lower() for status in sorted(FAILURES))


@dataclass(slots=True)
class Durations:
    """A histogram of seconds: ``counts[i]`` are those up to bound i, the last all longer."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BOUNDS_S) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        place = sum(seconds > bound for bound in DURATION_BOUNDS_S)
        self.counts[place] += 1
        self.sum_s += seconds


@dataclass(slots=True)
class Counts:
    """Sums of one process or one target.

    ``accesses`` and ``recent`` are sampled accesses by tier, the last entry for those whose page
    lay nowhere known; ``recent`` fades. ``failed_pages`` and bytes are of moves.
    """

    accesses: npt.NDArray[np.float64]
    recent: npt.NDArray[np.float64]
    samples: int = 0
    promoted_bytes: int = 0
    demoted_bytes: int = 0
    failed_pages: int = 0

    @property
    def fast_share(self) -> float | None:
        """Share of recent sampled accesses to known places that tier 0 served; None without."""
        known = float(self.recent[:-1].sum())
        return float(self.recent[0]) / known if known > 1e-6 else None


class Tally:
    """All sums since the daemon's start; ``add`` takes one tick more."""

    def __init__(self, topology: Topology) -> None:
        """Start at zero, with a zero for each pair of nodes and each reason of failure."""
        self.topology = topology
        self.tier_count = len(topology.tiers)
        self._tier_of_node = _tier_of_node(topology)
        nodes = [node.id for node in topology.nodes]
        self.processes: dict[ProcessId, Counts] = {}
        self.process_target: dict[ProcessId, str] = {}
        self.targets: dict[str, Counts] = {}
        self.moved_bytes = {(a, b): 0 for a in nodes for b in nodes if a != b}
        self.pages_by_status: dict[Status, int] = {s: 0 for s in Status if s is not Status.PENDING}
        self.planned_pages = 0
        self.calls = 0
        self.ticks = 0
        self.tick_seconds = Durations()
        self.stage_seconds = {stage: Durations() for stage in Stage}
        self.stage_failures = dict.fromkeys(Stage, 0)

    def know_targets(self, names: Iterable[str]) -> None:
        """Start the sums of these targets at zero, so that their series exist from the first."""
        for name in names:
            self._target(name)

    def tier(self, node: int) -> int | None:
        """Return the tier of a node, None where it has none."""
        tier = int(self._tier_of_node[node]) if 0 <= node < len(self._tier_of_node) else -1
        return tier if 0 <= tier < self.tier_count else None

    def tier_bytes(self, by_node: Mapping[int, int]) -> tuple[int, ...]:
        """Return bytes by tier of bytes by node."""
        sums = [0] * self.tier_count
        for node, size in by_node.items():
            tier = self.tier(node)
            if tier is not None:
                sums[tier] += size
        return tuple(sums)

    def add(self, tick: Tick) -> None:
        """Take one tick into all sums."""
        self._follow(tick.processes, tick.targets)
        self._add_accesses(tick)
        self._add_moves(tick)
        self.ticks += 1
        self.tick_seconds.add(sum(tick.stage_s.values()))
        for stage, seconds in tick.stage_s.items():
            self.stage_seconds[stage].add(seconds)
        for stage in tick.failed:
            self.stage_failures[stage] += 1

    def _follow(self, processes: Sequence[ProcessId], targets: Sequence[str]) -> None:
        self.know_targets(targets)
        self.process_target = dict(zip(processes, targets, strict=True))
        for process in self.processes.keys() - self.process_target.keys():
            del self.processes[process]
        for process in self.process_target.keys() - self.processes.keys():
            self.processes[process] = self._zero()

    def _add_accesses(self, tick: Tick) -> None:
        batch, width = tick.batch, self.tier_count + 1
        for counts in (*self.processes.values(), *self.targets.values()):
            counts.recent *= RECENT_DECAY
        if not len(batch):
            return
        slot = batch.process.astype(np.int64) * width + self._rank(tick.node)
        size = len(tick.processes) * width
        accesses = np.bincount(slot, batch.period, size).reshape(-1, width)
        samples = np.bincount(batch.process, minlength=len(tick.processes))
        for i in np.flatnonzero(samples).tolist():
            for counts in self._both(tick.processes[i]):
                counts.accesses += accesses[i]
                counts.recent += accesses[i]
                counts.samples += int(samples[i])

    def _add_moves(self, tick: Tick) -> None:
        plan, outcome = tick.plan, tick.outcome
        self.planned_pages += int(plan.pages.sum())
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
        change = self._rank(plan.to_node) - self._rank(plan.from_node)
        moved = outcome.moved_pages.astype(np.int64) * PAGE_BYTES
        failed = np.where(np.isin(outcome.status, sorted(FAILURES)), plan.pages, 0)
        for i, process in enumerate(plan.processes):
            mine = plan.process == i
            if process not in self.processes or not mine.any():
                continue
            for counts in self._both(process):
                counts.promoted_bytes += int(moved[mine & (change < 0)].sum())
                counts.demoted_bytes += int(moved[mine & (change > 0)].sum())
                counts.failed_pages += int(failed[mine].sum())

    def _rank(self, node: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
        """Return the tier of each node, one past the slowest where it is not known."""
        return self._tier_of_node[np.clip(node, -1, len(self._tier_of_node) - 1)]

    def _both(self, process: ProcessId) -> tuple[Counts, Counts]:
        return self.processes[process], self._target(self.process_target[process])

    def _target(self, name: str) -> Counts:
        if name not in self.targets and len(self.targets) >= MAX_TARGETS:
            name = OTHER
        return self.targets.setdefault(name, self._zero())

    def _zero(self) -> Counts:
        width = self.tier_count + 1
        return Counts(np.zeros(width), np.zeros(width))


def _tier_of_node(topology: Topology) -> npt.NDArray[np.int16]:
    """Return tiers by node id; ids without memory, and the last entry (-1), get one past all."""
    tiers = topology.tiers
    highest = max(node.id for node in topology.nodes)
    table = np.full(highest + 2, len(tiers), np.int16)
    for tier, nodes in enumerate(tiers):
        table[list(nodes)] = tier
    return table
