# SPDX-License-Identifier: MIT
"""The daemon's status: one frozen record per tick, and the only definition of its figures.

:class:`~hmd.metrics.observer.Observer` makes a ``Status`` after each tick. Metrics read it when
they are scraped (:mod:`hmd.metrics.definitions`); the status socket sends it as JSON, and the
dashboard checks what it receives against the same types (:mod:`hmd.control.status_json`). A tick
replaces the whole record, so that readers in other threads need no lock.

The names of fields are the keys of the JSON, except where ``alias`` gives another. Bytes are bytes,
times seconds, pages base pages, shares and ratios 1 for all. Sums count from the daemon's start.

The limits keep the daemon's memory and its answers bounded, whatever it observes. This module
imports neither numpy nor numba, since the dashboard's process has no need of them.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar, Final, NamedTuple

from pydantic import ConfigDict, Field

from hmd.linux.topology import NodeUse

MAX_TARGETS: Final = 64
"""Targets with figures of their own; the others are summed up."""

MAX_LISTED: Final = 256
"""Listed processes (those with most resident memory), and listed pins."""

MAX_TICKS_KEPT: Final = 32
"""Recent ticks with moves."""

MAX_FLOWS: Final = 8
"""Flows between nodes per tick with moves."""

MAX_TIERS: Final = 16
MAX_NODES: Final = 1024

HEAT_LOG2: Final = tuple(range(-8, 16))
"""Bins of heat: bin b begins at 2**b accesses per second and ends below twice that; the first and
the last bin take the rest."""

NEEDED_SHARES: Final = (0.9, 0.95, 0.99)
FAST_STEPS: Final = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)

DURATION_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

Text = Annotated[str, Field(max_length=4096)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Amount = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
NodeId = Annotated[int, Field(ge=-1, lt=2**15)]
"""A memory node; -1 is an unknown one."""

ByTier = Annotated[tuple[Count, ...], Field(max_length=MAX_TIERS)]
ByName = Annotated[Mapping[Text, Count], Field(max_length=64)]


class Stage(StrEnum):
    """The stages of a tick, in their order."""

    SAMPLE = "sample"
    HEAT = "heat"
    DECIDE = "decide"
    MIGRATE = "migrate"
    OBSERVE = "observe"


class Work(StrEnum):
    """What CPU time is used for.

    Samples: reading and counting them, and kernel threads that sample for hmd. Discovery: scans for
    processes. Other: admin requests, and the loop itself. Threads that answer clients are in none.
    """

    SAMPLES = "samples"
    SWEEP = "sweep"
    DISCOVERY = "discovery"
    DECIDE = "decide"
    MIGRATE = "migrate"
    OBSERVE = "observe"
    OTHER = "other"


@dataclass(slots=True)
class Durations:
    """A histogram of seconds: ``counts[i]`` has those up to bound i, the last count the rest."""

    counts: Annotated[list[Count], Field(max_length=64)] = field(
        default_factory=lambda: [0] * (len(DURATION_BOUNDS_S) + 1)
    )
    sum_s: Amount = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(DURATION_BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def copy(self) -> Durations:
        """Return a copy of the histogram."""
        return Durations(list(self.counts), self.sum_s)


@dataclass(frozen=True, slots=True)
class StageStatus:
    """One stage: items in and out, and the Unix time of its last success."""

    seconds: Durations
    items_in: Count
    items_out: Count
    succeeded_s: Amount


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """CPU seconds by work, what is owed (negative: saved), and what is in force to save CPU time.

    ``stretch`` is the interval between ticks over the configured one, ``plan_ticks`` the ticks per
    plan, ``plans_delayed`` how many plans waited because of the quota. Shares are of one CPU.
    ``overhead`` is the share of a CPU that records of samples took of its programs, ``quota`` the
    share of one that all work may take now, ``calm`` whether nothing has changed or paid for long.
    """

    cpu_s: Mapping[Work, Amount] = field(default_factory=lambda: dict.fromkeys(Work, 0.0))
    owed_s: float = 0.0
    stretch: Amount = 1.0
    plan_ticks: Count = 1
    plans_delayed: Count = 0
    sweep_share: Amount = 0.0
    discovery_s: Amount = 0.0
    overhead: Amount = 0.0
    quota: Amount = 0.0
    calm: bool = False


@dataclass(frozen=True, slots=True)
class ReloadStatus:
    """The result of the last reload; ``success_s`` is the Unix time of the last successful one."""

    successful: bool
    success_s: Amount
    error: Text = ""


@dataclass(frozen=True, slots=True)
class SamplerStatus:
    """The sampler with its counters, which :class:`~hmd.sample.sampler.SamplerStats` describes.

    The CPU quota and the overhead select a period from ``shortest_period`` to ``longest_period``.
    ``outside_cpu_s`` is CPU time of kernel threads that sample for hmd.
    """

    name: Text
    period: Count
    shortest_period: Count
    longest_period: Count
    outside_cpu_s: Amount
    samples: Count
    lost: Count
    dropped: Count
    throttled: Count
    wakeups: Count
    corrupt: Count
    records: Count
    running_share: Amount
    kernel_addresses: Count = 0


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A memory node; ``latency_ns`` is the load latency of the unloaded node.

    Moves may replace ``cache_bytes`` of its page cache. ``demoting``: unused page cache is being
    demoted from it.
    """

    id: NodeId
    tier: Count
    total_bytes: Count
    latency_ns: Amount
    cache_bytes: Count = 0
    demoting: bool = False


@dataclass(frozen=True, slots=True)
class HeatStatus:
    """Pages by tier and by bin of heat; the first bin is ``first_log2`` of ``HEAT_LOG2``."""

    first_log2: Annotated[int, Field(ge=-64, le=64)]
    pages: Annotated[
        tuple[Annotated[tuple[Count, ...], Field(max_length=128)], ...],
        Field(max_length=MAX_TIERS),
    ]


@dataclass(frozen=True, slots=True)
class HeatTableStatus:
    """The heat table: its memory, and chunks (2 MiB) whose pages are counted one by one.

    ``changed_processes`` counts how often samples refuted the known heat of a process,
    ``lost_chunks`` and ``dropped_chunks`` the chunks whose pages are no longer counted one by one:
    since the pages of others differ more, or for lack of memory.
    """

    bytes: Count = 0
    detail_chunks: Count = 0
    changed_processes: Count = 0
    lost_chunks: Count = 0
    dropped_chunks: Count = 0


@dataclass(frozen=True, slots=True)
class NodeFlow:
    """Bytes moved from one node to another."""

    from_node: NodeId
    to_node: NodeId
    bytes: Count


@dataclass(frozen=True, slots=True)
class MovesStatus:
    """All moves. ``planned_by_direction`` is up, down or level (to a node of the same tier).

    ``pages_by_status`` has each planned page by its ``MoveStatus``; ``failures`` are the pages that
    could not be moved, by reason. ``flows`` has pairs of nodes with moves.
    """

    planned_pages: Count
    promoted_bytes: Count
    demoted_bytes: Count
    paged_out_bytes: Count
    failed_pages: Count
    deferred_pages: Count
    would_move_pages: Count
    calls: Count
    planned_by_direction: ByName
    pages_by_status: ByName
    failures: ByName
    flows: Annotated[tuple[NodeFlow, ...], Field(max_length=MAX_NODES**2)]


@dataclass(frozen=True, slots=True)
class FarStatus:
    """Memory that was paged out: ``out_bytes`` have not been seen back.

    ``ahead_bytes`` were read ahead of use. Nothing goes out of ``held_processes``, whose groups
    wait for memory, and of none where ``stopped`` says why.
    """

    out_bytes: Count = 0
    ahead_bytes: Count = 0
    held_processes: Count = 0
    stopped: Text = ""


@dataclass(frozen=True, slots=True)
class ProfilesStatus:
    """Profiles of programs in the folder: ``count`` of ``bytes``.

    ``processes`` are planned for with a profile of former runs, by which moves have saved
    ``saved_s``, less what they cost, since the daemon began. ``refused`` counts files that could
    not be read, written or trusted; ``stopped`` says why none is read or written now.
    """

    count: Count = 0
    bytes: Count = 0
    processes: Count = 0
    refused: Count = 0
    stopped: Text = ""
    saved_s: Amount = 0.0


@dataclass(slots=True)
class Savings:
    """Seconds of stall time by moves to nodes with lower (saved) and higher latency (lost).

    ``returned_pages`` moved back to their former tier soon.
    """

    predicted_saved_s: float = 0.0
    realised_saved_s: float = 0.0
    predicted_lost_s: float = 0.0
    realised_lost_s: float = 0.0
    returned_pages: Amount = 0.0

    @property
    def net_s(self) -> float:
        """What moves have saved by samples, less what they lost."""
        return self.realised_saved_s - self.realised_lost_s


@dataclass(frozen=True, slots=True)
class MoveFlow:
    """Pages of one target that a plan moved from one node to another.

    ``heat`` is the mean heat of a page in the plan. ``left`` has planned pages that were not
    moved, by status.
    """

    target: Text
    from_node: NodeId
    to_node: NodeId
    planned_pages: Count
    moved_pages: Count
    heat: float
    left: ByName


@dataclass(frozen=True, slots=True)
class TickMoves:
    """The moves of one tick, ``uptime_s`` after the daemon's start; ``tick`` counts from 1."""

    tick: Count
    uptime_s: Amount
    dry_run: bool
    planned_pages: Count
    flows: Annotated[tuple[MoveFlow, ...], Field(max_length=MAX_FLOWS)]


@dataclass(frozen=True, slots=True)
class Demand:
    """What fast memory is worth, by the heat of all known pages; of a target, or of all.

    ``needed_bytes`` hold the shares ``NEEDED_SHARES`` of all accesses. ``runtime`` is what the
    runtime would be over that of now, with ``FAST_STEPS`` times the fastest tier's memory of now,
    what is kept free included; empty where CPU time or the latency of a second tier is not known.
    """

    needed_bytes: Annotated[tuple[Count, ...], Field(max_length=len(NEEDED_SHARES))]
    runtime: Annotated[tuple[Amount, ...], Field(max_length=len(FAST_STEPS))]


@dataclass(frozen=True, slots=True)
class AccessTotals:
    """Figures of a process or target; ``accesses`` by tier, the last of pages on no known node.

    ``resident_bytes`` by tier are of all pages, sampled or not. Of the share ``known`` it was asked
    for each page where it is; the others are distributed by the kernel's totals. ``fast_share`` is
    the share of recent accesses that tier 0 served. ``requested_bytes`` moved by request.
    ``saved_s`` and ``lost_s`` are stall time that moves saved and cost by later samples;
    ``measured_s`` is the latency of ``measured_loads`` sampled loads.
    """

    name: Text
    resident_bytes: ByTier
    fast_share: Share | None
    samples: Count
    accesses: Annotated[tuple[Amount, ...], Field(max_length=MAX_TIERS + 1)]
    promoted_bytes: Count
    demoted_bytes: Count
    failed_pages: Count
    known: Share
    requested_bytes: Count = 0
    saved_s: Amount = 0.0
    lost_s: Amount = 0.0
    measured_loads: Count = 0
    measured_s: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunStatus:
    """What a dry run of so many seconds would have done, by the samples of the pages.

    ``promoted_bytes`` and ``demoted_bytes`` have each page once; what a plan names is bounded by
    migrate.rate, as it is without a dry run. ``saved_s`` and ``lost_s`` are stall time that these
    moves would have saved and cost, as ``Savings`` have it.
    """

    seconds: Amount = 0.0
    promoted_bytes: Count = 0
    demoted_bytes: Count = 0
    saved_s: Amount = 0.0
    lost_s: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStatus(AccessTotals):
    """One target, with its number of processes, or why it has none; ``would``: its dry runs.

    ``demand`` is None until its pages have been counted. ``resting``: outside of its hours.
    ``off_fastest_bytes`` of a target that is never slow are on other tiers than the fastest now;
    None of others.
    """

    process_count: Count
    empty_reason: Text = ""
    dry_run: bool = False
    would: DryRunStatus = DryRunStatus()
    demand: Demand | None = None
    resting: bool = False
    off_fastest_bytes: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus(AccessTotals):
    """One process."""

    pid: Count
    start_ticks: Count
    target: Text


@dataclass(frozen=True, slots=True)
class PinStatus:
    """A pinned process, or with pid 0 a target; ``node`` is None for a pin in place."""

    pid: Count
    start_ticks: Count
    target: Text
    node: NodeId | None
    uid: Count


@dataclass(frozen=True, slots=True)
class DrainStatus:
    """A drained node.

    Ticks still have to move ``waiting_pages`` of targets' processes; the drain thread has moved
    ``moved_pages`` in ``passes`` over all other processes and could not move ``left``, by reason.
    ``settled``: the rest will stay. ``there``: the node has not been removed.
    """

    node: NodeId
    there: bool
    use: NodeUse
    waiting_pages: Count
    moved_pages: Count
    passes: Count
    left: ByName
    settled: bool


@dataclass(frozen=True, slots=True)
class ControlStatus:
    """The admin state, and the requests by command and outcome (done, refused).

    ``policy_override`` replaces the policy of the configuration. ``pinned`` counts all pins,
    ``pins`` lists the first. ``until_restart`` names what ends with the daemon, ``restored`` what
    was in force before its start and is again, ``not_restored`` what could not be.
    """

    paused: bool = False
    policy_override: Annotated[Text | None, Field(alias="policy_ordered")] = None
    drains: Annotated[tuple[DrainStatus, ...], Field(max_length=MAX_NODES)] = ()
    pins: Annotated[tuple[PinStatus, ...], Field(max_length=MAX_LISTED)] = ()
    pinned: Count = 0
    until_restart: Annotated[tuple[Text, ...], Field(max_length=MAX_LISTED)] = ()
    restored: Text = ""
    not_restored: Text = ""
    requests: Annotated[Mapping[Text, ByName], Field(max_length=64)] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Status:
    """The daemon's state.

    ``revision`` is the commit that hmd was built from, empty in a checkout.
    ``started_s`` and ``ticked_s`` (the last tick, before the first the start) are Unix times,
    ``uptime_s`` is the age of the daemon at the last tick, ``tick_s`` the present interval between
    ticks, ``tick_seconds`` the durations of ticks, ``overhead_limit`` the setting
    ``sample.overhead``. ``tiers`` are node ids, fastest first, ``tier_rates`` bytes per second of
    migrate.tier_rates. While kernels are compiled, no process is followed (``compiling``).
    """

    __pydantic_config__: ClassVar = ConfigDict(strict=True, allow_inf_nan=False)

    version: Text
    revision: Text
    pid: Count
    started_s: Amount
    uptime_s: Amount
    config_file: Text
    dry_run: bool
    policy: Text
    tick_s: Amount
    cpu_quota: Amount
    overhead_limit: Amount
    budget: BudgetStatus
    ticks: Count
    ticked_s: Amount
    tick_seconds: Durations
    stages: Mapping[Stage, StageStatus]
    stage_failures: Mapping[Stage, Count]
    cpu_s: Amount
    resident_bytes: Count
    reload: ReloadStatus
    sampler: SamplerStatus
    control: ControlStatus
    tiers: Annotated[
        tuple[Annotated[tuple[NodeId, ...], Field(max_length=MAX_NODES)], ...],
        Field(min_length=1, max_length=MAX_TIERS),
    ]
    tier_bytes: ByTier
    nodes: Annotated[tuple[NodeStatus, ...], Field(max_length=MAX_NODES)]
    heat: HeatStatus
    heat_table: HeatTableStatus
    moves: MovesStatus
    savings: Savings
    recent_moves: Annotated[tuple[TickMoves, ...], Field(alias="rounds", max_length=MAX_TICKS_KEPT)]
    targets: Annotated[tuple[TargetStatus, ...], Field(max_length=MAX_TARGETS + 1)]
    processes: Annotated[tuple[ProcessStatus, ...], Field(max_length=MAX_LISTED)]
    compiling: bool = False
    demand: Demand | None = None
    far: FarStatus = FarStatus()
    profiles: ProfilesStatus = ProfilesStatus()
    tier_rates: Annotated[tuple[Count, ...], Field(max_length=MAX_TIERS)] = ()

    @property
    def at_s(self) -> float:
        """Unix time of the status."""
        return self.started_s + self.uptime_s


ALLOWED_TICKS: Final = 3
"""Ticks that may be missed: the next one waits while one takes too long."""

ALLOWED_S: Final = 30.0
"""Added to them: one tick may wait for the kernel, as move_pages does under memory pressure."""


class TickHealth(NamedTuple):
    """Whether ticks end in time, and one line for a person."""

    healthy: bool
    text: str


class TickWatch:
    """The time of the last tick, for liveness probes; one thread records, any thread reads.

    An answer alone proves nothing: the threads that answer outlive a tick that hangs.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: tuple[float, float] | None = None

    def record_tick(self, tick_s: float) -> None:
        """Record that a tick has ended and that the next is due in ``tick_s``."""
        self._last = self._clock(), ALLOWED_TICKS * tick_s + ALLOWED_S

    def health(self) -> TickHealth:
        """Return unhealthy before the first tick, and where the last one is too long ago."""
        if self._last is None:
            return TickHealth(False, "no tick yet")
        ended_s, limit_s = self._last
        age_s = self._clock() - ended_s
        text = f"last tick {age_s:.1f} s ago, at most {limit_s:.0f} s"
        return TickHealth(age_s <= limit_s, text)
