"""What the daemon says of itself at the end of a tick: one frozen record for all who ask.

Metrics and the status socket read it from their own threads; the tick replaces it whole, so
that none of them ever sees half a tick or needs a lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hmd.machine.process_id import ProcessId
from hmd.machine.topology import NodeUse
from hmd.observe.counters import Durations
from hmd.observe.recent_moves import TickMoves
from hmd.observe.savings import Savings
from hmd.observe.tick_record import Stage
from hmd.sample.sampler import SamplerStats

HEAT_LOG2 = tuple(range(-8, 16))
"""Bins of heat: bin b is from 2**b accesses a tick, below twice that; the ends take the rest."""


@dataclass(frozen=True, slots=True)
class AccessTotals:
    """Sums of one process or target; ``accesses`` by tier, last those of no known place.

    ``resident_bytes`` by tier is what sweeps of all pages found, also of those never sampled.
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
    """One target, with the processes it has now."""

    name: str
    process_count: int
    numbers: AccessTotals


@dataclass(frozen=True, slots=True)
class SamplerNumbers:
    """The source of accesses; ``period`` and ``outside_cpu_s`` as the ``Sampler`` has them.

    ``shortest`` and ``longest`` are the periods between which the CPU quota may choose.
    """

    name: str
    period: int
    shortest: int
    longest: int
    stats: SamplerStats
    outside_cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeNumbers:
    """A memory node as hmd takes it to be; the latency of a load is that of an unloaded node."""

    id: int
    tier: int
    total_bytes: int
    latency_ns: float


@dataclass(frozen=True, slots=True)
class StageNumbers:
    """One stage: items in and out, ticks in which it failed, Unix time when it last did not."""

    seconds: Durations
    items_in: int
    items_out: int
    failures: int
    succeeded_s: float


@dataclass(frozen=True, slots=True)
class ReloadState:
    """How the last reload went; ``success_s`` is Unix time of the last one that did."""

    successful: bool
    success_s: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class PinNumbers:
    """A process that is pinned, or with pid 0 a target; ``node`` None is where its pages are."""

    pid: int
    start_ticks: int
    target: str
    node: int | None
    uid: int


@dataclass(frozen=True, slots=True)
class DrainNumbers:
    """A node that is being emptied, or is empty; pages are of 4 KiB.

    ``waiting_pages`` are those of followed processes that ticks have still to move,
    ``moved_pages`` those that the thread beside them has moved in ``passes``; ``left`` is by reason
    what it could not move. ``settled``: what is left will stay. A node that is not ``there`` any
    more was taken out.
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
    """All that hmd tells. Sums are since the start; pages are of 4 KiB; of processes the largest.

    ``started_s`` and ``ticked_s`` (of the last tick; at first of the start) are Unix time,
    ``uptime_s`` how long after the start the snapshot was taken.
    ``tiers`` are node ids, fastest first; ``moved_bytes`` is by (from node, to node),
    ``planned`` pages by direction, ``pages_by_status`` what became of them, ``heat_pages`` pages by
    tier and by the bins of ``HEAT_LOG2``; ``paged_out_bytes`` left memory altogether.
    ``rounds`` are the last ones that planned something, ``control`` what people have ordered.
    """

    version: str
    pid: int
    started_s: float
    uptime_s: float
    config_file: str
    dry_run: bool
    tick_s: float
    cpu_quota: float
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
    savings: Savings
    tick_seconds: Durations
    stages: Mapping[Stage, StageNumbers]
    cpu_s: float
    resident_bytes: int
    targets: tuple[TargetNumbers, ...] = ()
    processes: tuple[ProcessNumbers, ...] = ()
    rounds: tuple[TickMoves, ...] = ()
    control: ControlNumbers = ControlNumbers()

    def tier_of(self, node: int) -> int:
        """Return the tier of a node, -1 where it has none."""
        return next((i for i, nodes in enumerate(self.tiers) if node in nodes), -1)

    @property
    def planned_pages(self) -> int:
        """Pages that plans named."""
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
