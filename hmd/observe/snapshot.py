"""The daemon's state at the end of a tick: one frozen record for all readers.

Metrics and the status socket read it in their own threads. A tick replaces the whole record, so
that no reader sees half a tick or needs a lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hmd.decide.move_guard import GuardState
from hmd.machine.nodes.topology import NodeUse
from hmd.machine.process_id import ProcessId
from hmd.observe.budget_numbers import BudgetNumbers
from hmd.observe.counters import Durations
from hmd.observe.recent_moves import TickMoves
from hmd.observe.savings import Savings
from hmd.observe.tick_record import Stage
from hmd.sample.sampler import SamplerStats

HEAT_LOG2 = tuple(range(-8, 16))
"""Bins of heat: bin b begins at 2**b accesses per second and ends below twice that; the first and
the last bin take the rest."""


@dataclass(frozen=True, slots=True)
class AccessTotals:
    """Sums of one process or target; ``accesses`` by tier, the last of pages on no known node.

    ``resident_bytes`` by tier is from sweeps over all pages, also those that were never sampled.
    """

    accesses: tuple[float, ...]
    fast_share: float | None
    samples: int
    resident_bytes: tuple[int, ...]
    promoted_bytes: int
    demoted_bytes: int
    failed_pages: int


@dataclass(frozen=True, slots=True)
class ProcessNumbers:
    """One process."""

    process: ProcessId
    name: str
    target: str
    numbers: AccessTotals


@dataclass(frozen=True, slots=True)
class TargetNumbers:
    """One target, with the number of its present processes."""

    name: str
    process_count: int
    numbers: AccessTotals


@dataclass(frozen=True, slots=True)
class SamplerNumbers:
    """The sampler; ``period`` and ``outside_cpu_s`` are those of ``Sampler``.

    ``shortest`` and ``longest`` bound the period that the CPU quota and the overhead select.
    """

    name: str
    period: int
    shortest: int
    longest: int
    stats: SamplerStats
    outside_cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeNumbers:
    """A memory node; ``latency_ns`` is the load latency of the unloaded node.

    ``cache_bytes`` of its page cache count as room for moves. ``demoting``: unused page cache
    leaves it now.
    """

    id: int
    tier: int
    total_bytes: int
    latency_ns: float
    cache_bytes: int = 0
    demoting: bool = False


@dataclass(frozen=True, slots=True)
class StageNumbers:
    """One stage: items in and out, ticks in which it failed, Unix time of its last success."""

    seconds: Durations
    items_in: int
    items_out: int
    failures: int
    succeeded_s: float


@dataclass(frozen=True, slots=True)
class ReloadState:
    """The result of the last reload; ``success_s`` is the Unix time of the last successful one."""

    successful: bool
    success_s: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class PinNumbers:
    """A pinned process, or with pid 0 a target; ``node`` is None for a pin in place."""

    pid: int
    start_ticks: int
    target: str
    node: int | None
    uid: int


@dataclass(frozen=True, slots=True)
class DrainNumbers:
    """A drained node; pages are of 4 KiB.

    ``waiting_pages`` of targets' processes are still to be moved by ticks; ``moved_pages`` were
    moved by the drain thread in ``passes`` over all other processes; ``left`` has, by reason, what
    it could not move. ``settled``: the rest will stay. ``there``: the node has not been removed.
    """

    node: int
    there: bool
    use: NodeUse
    waiting_pages: int
    moved_pages: int
    passes: int
    left: Mapping[str, int]
    settled: bool


@dataclass(frozen=True, slots=True)
class ControlNumbers:
    """The admin state, and the requests so far by command and outcome (done, refused).

    ``policy_override`` replaces the policy of the configuration. ``pinned`` counts pins, of which
    ``pins`` has the first.
    """

    paused: bool = False
    policy_override: str | None = None
    drains: tuple[DrainNumbers, ...] = ()
    pins: tuple[PinNumbers, ...] = ()
    pinned: int = 0
    requests: Mapping[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The daemon's state. Sums are since the start, pages are of 4 KiB.

    ``started_s`` and ``ticked_s`` (the last tick, before the first the start) are Unix times,
    ``uptime_s`` is the age of the daemon at the snapshot, ``tick_s`` the present interval between
    ticks, ``overhead_limit`` the setting ``sample.overhead``. ``tiers`` are node ids, fastest
    first.
    ``moved_bytes`` is by (from node, to node), ``planned`` pages by direction, ``pages_by_status``
    by the result of each planned page, ``heat_pages`` by tier and bin of ``HEAT_LOG2``;
    ``paged_out_bytes`` went to swap or files. ``processes`` are those with most resident memory,
    ``recent_moves`` the last ticks that planned moves, ``control`` the admin state, ``budget`` what
    the daemon's CPU time went to. ``guard`` is None where moves are not guarded.
    """

    version: str
    pid: int
    started_s: float
    uptime_s: float
    config_file: str
    dry_run: bool
    tick_s: float
    cpu_quota: float
    overhead_limit: float
    policy: str
    tiers: tuple[tuple[int, ...], ...]
    nodes: tuple[NodeNumbers, ...]
    sampler: SamplerNumbers
    reload: ReloadState
    ticks: int
    ticked_s: float
    planned: Mapping[str, int]
    calls: int
    moved_bytes: Mapping[tuple[int, int], int]
    paged_out_bytes: int
    pages_by_status: Mapping[str, int]
    failure_reasons: tuple[str, ...]
    heat_pages: tuple[tuple[int, ...], ...]
    heat_table_bytes: int
    detail_chunks: int
    heat_changes: int
    details_lost: int
    details_dropped: int
    savings: Savings
    tick_seconds: Durations
    stages: Mapping[Stage, StageNumbers]
    cpu_s: float
    resident_bytes: int
    targets: tuple[TargetNumbers, ...] = ()
    processes: tuple[ProcessNumbers, ...] = ()
    recent_moves: tuple[TickMoves, ...] = ()
    control: ControlNumbers = ControlNumbers()
    budget: BudgetNumbers = field(default_factory=BudgetNumbers)
    guard: GuardState | None = None

    def tier_of(self, node: int) -> int:
        """Return the tier of a node, -1 where it is in none."""
        return next((i for i, nodes in enumerate(self.tiers) if node in nodes), -1)

    @property
    def planned_pages(self) -> int:
        """Pages in plans."""
        return sum(self.planned.values())

    @property
    def promoted_bytes(self) -> int:
        """Bytes moved to a faster tier."""
        flows = self.moved_bytes.items()
        return sum(size for (a, b), size in flows if self.tier_of(b) < self.tier_of(a))

    @property
    def demoted_bytes(self) -> int:
        """Bytes moved to a slower tier."""
        flows = self.moved_bytes.items()
        return sum(size for (a, b), size in flows if self.tier_of(b) > self.tier_of(a))

    @property
    def failed_pages(self) -> int:
        """Pages that could not be moved."""
        return sum(self.pages_by_status[reason] for reason in self.failure_reasons)
