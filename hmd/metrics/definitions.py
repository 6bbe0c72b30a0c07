# SPDX-License-Identifier: MIT
"""The metrics of the daemon: names, meanings, labels, and where their values are in a ``Status``.

One table: it makes what Prometheus scrapes (:mod:`hmd.metrics.exporter`) and the tables of
docs/reference/metrics.md (packaging/pages/metrics_reference.py). Names follow
prometheus.io/docs/practices/naming. The number of series is bounded by tiers, nodes and (at most
64) targets; there is none per process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from hmd.metrics.savings import RETURN_TICKS, WINDOW_TICKS
from hmd.metrics.status import (
    DURATION_BOUNDS_S,
    FAST_STEPS,
    HEAT_LOG2,
    NEEDED_SHARES,
    Stage,
    Status,
    TargetStatus,
)
from hmd.migrate.status import FAILURES

Labels = tuple[str, ...]
Values = Mapping[Labels, Any]
"""By the values of labels a number, or for histograms ``Durations``."""

FAILURE_REASONS: Final = tuple(status.label for status in sorted(FAILURES))

_FOLLOWED: Final = f"in the {WINDOW_TICKS} ticks after each move"

TABLE: Final = f"""\
The daemon:
gauge hmd_build_info(version, revision) []
    Version of hmd, and the commit that a package was built from.
gauge hmd_policy_info(policy) = policy []
    Policy in force.
gauge hmd_start_time_seconds = started_s
    Unix time at which the daemon started.
counter hmd_cpu_seconds = cpu_s
    CPU time of the daemon since it was ready, all threads.
gauge hmd_cpu_quota_ratio = cpu_quota
    Share of one CPU that hmd may use at most (sample: cpu_quota; unset: 1% of all CPUs).
gauge hmd_resident_memory_bytes = resident_bytes
    Resident memory of the daemon.
gauge hmd_config_last_reload_successful = reload.successful []
    1 if the last reload of the configuration succeeded, else 0.
gauge hmd_config_last_reload_success_timestamp_seconds = reload.success_s
    Unix time of the last successful load of the configuration.
gauge hmd_dry_run = dry_run []
    1 in a dry run of the whole: moves are planned, not executed.
CPU budget:
counter hmd_budget_cpu_seconds(work) = budget.cpu_s
    CPU time by kind of work. samples: reading and counting them, kernel threads included; sweep:
    where pages are; discovery: scans for processes; other: admin requests, the loop. Threads that
    answer clients are in none.
gauge hmd_budget_quota_ratio = budget.quota
    Share of one CPU that hmd may use now: cpu_quota or, where it is unset, by the gain.
gauge hmd_budget_owed_seconds = budget.owed_s
    CPU time used beyond the quota and not yet made up for; negative: saved for a burst.
gauge hmd_budget_tick_stretch_ratio = budget.stretch
    Interval between ticks now over the configured one; 1 unless the quota requires more.
gauge hmd_budget_plan_interval_ticks = budget.plan_ticks
    Ticks per plan now; 1 unless the quota requires more.
counter hmd_budget_delayed_plans = budget.plans_delayed
    Ticks whose plan waited until the CPU time of earlier moves was made up for.
gauge hmd_budget_sweep_ratio = budget.sweep_share
    Share of one CPU that sweeps may take: half of the quota, or less where the quota requires it.
gauge hmd_budget_discovery_interval_seconds = budget.discovery_s
    Interval between scans for processes now: rescan, or longer where the quota requires it.
Ticks and stages:
counter hmd_ticks = ticks
    Ticks done.
gauge hmd_tick_interval_seconds = tick_s
    Interval between ticks now: tick, longer for the CPU quota, shorter after many moves.
gauge hmd_last_tick_timestamp_seconds = ticked_s
    Unix time of the last tick; before the first tick, of the start.
histogram hmd_tick_duration_seconds = tick_seconds
    Duration of a tick, without the observe stage.
histogram hmd_stage_duration_seconds(stage) = stages.seconds
    Duration of one stage of a tick.
counter hmd_stage_in(stage, item) = stages.items_in [items]
    Items into a stage. sample: records read; heat: samples; decide: resident pages, summed over
    ticks; migrate: planned pages; observe: ticks.
counter hmd_stage_out(stage, item) = stages.items_out [items]
    Items out of a stage. sample: samples of targets; heat: samples of known pages; decide: planned
    pages; migrate: moved pages; observe: published ticks.
counter hmd_stage_failures(stage) = stage_failures [ticks]
    Ticks in which a stage failed; the log has the error.
gauge hmd_stage_last_success_timestamp_seconds(stage) = stages.succeeded_s
    Unix time of the last success of a stage; before the first, of the start.
Sampling:
gauge hmd_sampler_info(sampler) = sampler.name []
    The sampler in use.
gauge hmd_sampler_period = sampler.period [accesses]
    Sampling period: accesses per sample; for DAMON the sampling interval in milliseconds.
gauge hmd_sampler_period_shortest = sampler.shortest_period [accesses]
    Shortest period that cpu_quota and overhead may set.
gauge hmd_sampler_period_longest = sampler.longest_period [accesses]
    Longest period that cpu_quota and overhead may set.
counter hmd_sampler_cpu_seconds = sampler.outside_cpu_s
    CPU time of kernel threads that sample for hmd (kdamond), not in hmd_cpu_seconds_total.
gauge hmd_sampler_overhead_ratio = budget.overhead
    Share of a CPU that records of samples took of its programs in the last tick, on the CPU with
    most of them.
gauge hmd_sampler_overhead_limit_ratio = overhead_limit
    Most of it (sample: overhead), unless the period is set.
gauge hmd_sampler_running_ratio = sampler.running_share
    Least share of its time for which a sampling event had a counter; below 1, others use the CPU's
    counters too.
counter hmd_sampler_records = sampler.records
    Records of samples on programs' CPUs, lost ones and those of other programs included.
counter hmd_samples = sampler.samples
    Samples of processes of targets.
counter hmd_samples_lost = sampler.lost [samples]
    Samples lost because a ring was full.
counter hmd_samples_dropped = sampler.dropped [samples]
    Samples of other programs, of the kernel, of guests, or of accesses that hit a cache.
counter hmd_samples_kernel = sampler.kernel_addresses [samples]
    Those of the kernel's own memory among them, which sample.kernel_mode costs.
counter hmd_sampler_corrupt_records = sampler.corrupt
    Records from the kernel that could not be parsed.
counter hmd_sampler_throttles = sampler.throttled [times]
    Times that the kernel throttled sampling (PERF_RECORD_THROTTLE).
counter hmd_sampler_wakeups = sampler.wakeups [reads]
    Reads of the sampler that returned samples.
Tiers and heat:
gauge hmd_tiers
    Memory tiers; with one tier hmd moves no pages.
gauge hmd_node_tier(numa_node) = nodes.tier []
    Tier of a memory node; 0 is the fastest.
gauge hmd_node_memory_bytes(numa_node, tier) = nodes.total_bytes
    Memory of a node; node_exporter reports the free part.
gauge hmd_node_page_cache_room_bytes(numa_node, tier) = nodes.cache_bytes
    Page cache of a node that moves to the node may replace (migrate.page_cache).
gauge hmd_node_page_cache_demoting(numa_node, tier) = nodes.demoting []
    1 while unused page cache of a node moves to a slower one (migrate.cache_headroom).
gauge hmd_node_load_latency_seconds(numa_node, tier)
    Load latency of an unloaded node: from the firmware (HMAT), or 90 ns without it.
gauge hmd_heat_pages(tier, heat_log2)
    Base pages by tier and by log2 of their accesses per second.
gauge hmd_heat_table_bytes = heat_table.bytes
    Memory of the heat table.
gauge hmd_heat_detail_chunks = heat_table.detail_chunks
    Chunks of 2 MiB whose pages are counted one by one; the others are counted as a whole.
counter hmd_heat_changed_processes = heat_table.changed_processes
    Processes whose known heat a tick's samples refuted: their hot set had moved.
counter hmd_heat_detail_lost_chunks = heat_table.lost_chunks
    Chunks that are counted as a whole again, since the pages of others differ more.
counter hmd_heat_detail_dropped_chunks = heat_table.dropped_chunks
    Chunks that are counted as a whole again, since the memory limit of the service is near.
Decisions and moves:
counter hmd_planned_pages(direction) = moves.planned_by_direction
    Pages in plans, by direction: up to a faster tier, down to a slower one, level to another node
    of the same tier.
counter hmd_moved_bytes(from_numa_node, to_numa_node, from_tier, to_tier)
    Bytes moved between memory nodes.
counter hmd_unmoved_pages(reason)
    Planned pages that were not tried, by reason: the budget was spent (deferred), they were on the
    node already (already_there), they failed recently (in_backoff), ...
counter hmd_move_failures(reason) [pages]
    Pages that could not be moved, by reason.
counter hmd_move_calls = moves.calls
    Calls of move_pages(2) that moved pages.
counter hmd_paged_out_bytes = moves.paged_out_bytes
    Bytes of idle pages paged out to swap, zram or their files.
gauge hmd_far_bytes = far.out_bytes
    Bytes that were paged out and have not been seen back.
counter hmd_read_ahead_bytes = far.ahead_bytes
    Bytes of pages that were read from swap ahead of use.
gauge hmd_pageout_held_processes = far.held_processes
    Processes of which nothing is paged out, as their groups wait for memory.
gauge hmd_pageout_stopped []
    1 while nothing is paged out, as swap does not work; the status has the reason.
gauge hmd_profiles = profiles.count
    Programs of which a profile is kept.
gauge hmd_profiles_bytes = profiles.bytes
    Bytes of these profiles.
gauge hmd_profiled_processes = profiles.processes
    Processes that are planned for with a profile of their program's former runs.
gauge hmd_profiles_saved_seconds = profiles.saved_s
    Stall time that moves by profiles have saved, less what they cost, since the daemon began.
counter hmd_profiles_refused = profiles.refused []
    Profiles that could not be read or written, or were damaged or not trusted; the log has each.
counter hmd_predicted_saving_seconds = savings.predicted_saved_s
    Stall time that moves to nodes with lower latency were predicted to save, from the heat of the
    pages in the plan, {_FOLLOWED}.
counter hmd_realised_saving_seconds = savings.realised_saved_s
    Stall time that the same moves saved, from the samples {_FOLLOWED}.
counter hmd_predicted_loss_seconds = savings.predicted_lost_s
    Stall time that moves to nodes with higher latency were predicted to cost, from the heat of the
    pages in the plan, {_FOLLOWED}.
counter hmd_realised_loss_seconds = savings.realised_lost_s
    Stall time that the same moves cost, from the samples {_FOLLOWED}.
counter hmd_ping_pong_pages = savings.returned_pages
    Pages that moved back to their former tier within {RETURN_TICKS} ticks.
Targets:
gauge hmd_target_processes(target) = targets.process_count
    Processes of a target.
gauge hmd_target_resident_bytes(target, tier) = targets.resident_bytes
    Resident memory of a target in a tier.
gauge hmd_target_resident_known_ratio(target) = targets.known
    Share of a target's resident memory whose pages were found one by one; the rest is distributed
    over tiers by totals of the kernel.
counter hmd_target_accesses(target, tier)
    Accesses of a target by the tier that served them: samples times the sampling period.
gauge hmd_target_fast_access_ratio(target) = targets.fast_share
    Share of a target's recent accesses that the fastest tier served.
gauge hmd_target_needed_bytes(target, share)
    Memory that holds a share of a target's accesses: its hottest pages.
gauge hmd_target_predicted_runtime_ratio(target, fast)
    Runtime of a target over that of now, with so many times its memory on the fastest tier of now,
    what is kept free for allocations included.
counter hmd_target_samples(target) = targets.samples
    Samples of a target.
counter hmd_target_promoted_bytes(target) = targets.promoted_bytes
    Bytes of a target moved to a faster tier.
counter hmd_target_demoted_bytes(target) = targets.demoted_bytes
    Bytes of a target moved to a slower tier.
counter hmd_target_move_failures(target) = targets.failed_pages [pages]
    Pages of a target that could not be moved.
counter hmd_target_saving_seconds(target, of)
    Stall time that moves saved a target, from the samples {_FOLLOWED}; dry_run: that they would
    have saved.
counter hmd_target_loss_seconds(target, of)
    The same, that they cost.
gauge hmd_target_dry_run(target) = targets.dry_run []
    1 for a target in a dry run, of its own or of the whole: nothing of it moves.
gauge hmd_target_resting(target) = targets.resting []
    1 for a target outside of its hours (active): it is observed, and nothing of it moves.
gauge hmd_target_off_fastest_bytes(target)
    Memory of a target with never_slow that is not on the fastest tier, as the kernel counts it; 0
    proves that all is. Without the page cache of files that it maps.
counter hmd_dry_run_bytes(target, direction)
    Memory of a target that a dry run would have moved, each page once.
Admin requests:
gauge hmd_paused = control.paused []
    1 while hmd is paused: it samples, but moves no pages.
gauge hmd_policy_overridden []
    1 while an admin request replaces the policy of the configuration.
gauge hmd_node_drained(numa_node) []
    1 for a drained memory node: hmd empties it and moves no pages to it.
gauge hmd_pins = control.pinned
    Pinned processes and targets, whose pages policies do not move.
gauge hmd_admin_state_lost []
    1 where a pause, policy, drain or pin from before the restart could not be restored.
counter hmd_admin_requests(command, outcome) = control.requests
    Admin requests on the status socket, by command and outcome: done or refused; and hints of
    programs (command hint).
"""
"""Each family by the heading of its section in the reference: a line with kind, name, labels and
the field of ``Status``, then its meaning, which is the help text.

A field of ``targets``, ``nodes`` or ``stages`` is that of each row (``_ROWS`` has their labels), a
mapping has its keys as labels, a tuple of numbers the tier. Families without a field are in
``_COMPUTED``. Counters have ``_total`` behind their name. The unit ends the name, or is in
brackets; it is empty for states and names.
"""


@dataclass(frozen=True, slots=True)
class Family:
    """A family of series; ``name`` is without the ``_total`` that counters have in addition."""

    name: str
    kind: str
    unit: str
    meaning: str
    labels: Labels
    values: Callable[[Status], Values]

    @property
    def series(self) -> tuple[str, ...]:
        """The names that queries use."""
        match self.kind:
            case "counter":
                return (f"{self.name}_total",)
            case "histogram":
                return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)

    def metric(self, now: Status) -> Metric:
        """Return the family with its values."""
        if self.kind == "histogram":
            histogram = HistogramMetricFamily(self.name, self.meaning, labels=self.labels)
            bounds = [*map(str, DURATION_BOUNDS_S), "+Inf"]
            for labels, durations in self.values(now).items():
                buckets = list(zip(bounds, accumulate(durations.counts), strict=True))
                histogram.add_metric(labels, buckets, durations.sum_s)
            return histogram
        kind = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        metric: CounterMetricFamily | GaugeMetricFamily = kind(
            self.name, self.meaning, labels=self.labels
        )
        for labels, value in self.values(now).items():
            metric.add_metric(labels, value)
        return metric


ITEMS: Final = {
    Stage.SAMPLE: "samples",
    Stage.HEAT: "samples",
    Stage.DECIDE: "pages",
    Stage.MIGRATE: "pages",
    Stage.OBSERVE: "ticks",
}
"""The items of each stage."""

_ROWS: Final[Mapping[str, Callable[[Status], Mapping[Labels, object]]]] = {
    "targets": lambda now: {(target.name,): target for target in now.targets},
    "nodes": lambda now: {(str(node.id), str(node.tier)): node for node in now.nodes},
    "stages": lambda now: {(name, ITEMS[name]): stage for name, stage in now.stages.items()},
}
"""The rows of a status by their labels, of which a family has the first."""


def _read(path: str, labels: int, now: Status) -> Values:
    """Return the values of a field of the status, with so many labels."""
    head, _, field = path.partition(".")
    if head not in _ROWS:
        return dict(_flat(attrgetter(path)(now)))
    found: dict[Labels, Any] = {}
    get = attrgetter(field)
    for row_labels, row in _ROWS[head](now).items():
        value = get(row)
        if isinstance(value, int | float):
            found[row_labels[:labels]] = value
        else:
            found.update(((*row_labels, *more)[:labels], v) for more, v in _flat(value))
    return found


def _flat(value: Any) -> Iterator[tuple[Labels, Any]]:
    """Yield the numbers in a value with their labels; a text is a label of 1, None no number."""
    if isinstance(value, str):
        yield (value,), 1
    elif isinstance(value, Mapping | tuple):
        rows = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in rows:
            yield from (((str(key), *labels), number) for labels, number in _flat(inner))
    elif value is not None:
        yield (), value


def _by_target(
    now: Status, figures: Callable[[TargetStatus], Iterable[tuple[str, float]]]
) -> Values:
    """Return figures of each target by its name and the label that each of them has."""
    return {(target.name, label): n for target in now.targets for label, n in figures(target)}


def _accesses(now: Status) -> Values:
    tiers = [*map(str, range(len(now.tiers))), "unknown"]
    return _by_target(now, lambda target: zip(tiers, target.accesses, strict=True))


def _needed_bytes(target: TargetStatus) -> Iterable[tuple[str, float]]:
    needed = target.demand.needed_bytes if target.demand else ()
    return zip(map("{:g}".format, NEEDED_SHARES), needed, strict=False)


def _predicted_runtimes(target: TargetStatus) -> Iterable[tuple[str, float]]:
    runtimes = target.demand.runtime if target.demand else ()
    return zip(map("{:g}".format, FAST_STEPS), runtimes, strict=False)


def _heat(now: Status) -> Values:
    return {
        (str(tier), str(log2)): pages
        for tier, row in enumerate(now.heat.pages)
        for log2, pages in zip(HEAT_LOG2, row or [0] * len(HEAT_LOG2), strict=True)
    }


def _drained(now: Status) -> Values:
    nodes = {node.id: 0 for node in now.nodes} | {d.node: 1 for d in now.control.drains}
    return {(str(node),): drained for node, drained in nodes.items()}


def _failed_pages(now: Status) -> Values:
    return {(reason,): now.moves.pages_by_status[reason] for reason in FAILURE_REASONS}


def _unmoved_pages(now: Status) -> Values:
    other = {"moved", *FAILURE_REASONS}
    return {(r,): pages for r, pages in now.moves.pages_by_status.items() if r not in other}


def _moved_bytes(now: Status) -> Values:
    tier = {node: tier for tier, nodes in enumerate(now.tiers) for node in nodes}
    flows = {(a, b): 0 for a in tier for b in tier if a != b}
    flows |= {(flow.from_node, flow.to_node): flow.bytes for flow in now.moves.flows}
    return {
        (str(a), str(b), str(tier.get(a, -1)), str(tier.get(b, -1))): size
        for (a, b), size in flows.items()
    }


_COMPUTED: Final[Mapping[str, Callable[[Status], Values]]] = {
    "hmd_build_info": lambda now: {(now.version, now.revision): 1},
    "hmd_tiers": lambda now: {(): len(now.tiers)},
    "hmd_node_load_latency_seconds": lambda now: {
        (str(node.id), str(node.tier)): node.latency_ns / 1e9 for node in now.nodes
    },
    "hmd_heat_pages": _heat,
    "hmd_moved_bytes": _moved_bytes,
    "hmd_unmoved_pages": _unmoved_pages,
    "hmd_move_failures": _failed_pages,
    "hmd_pageout_stopped": lambda now: {(): bool(now.far.stopped)},
    "hmd_target_accesses": _accesses,
    "hmd_target_needed_bytes": lambda now: _by_target(now, _needed_bytes),
    "hmd_target_predicted_runtime_ratio": lambda now: _by_target(now, _predicted_runtimes),
    "hmd_target_saving_seconds": lambda now: _by_target(
        now, lambda target: (("moves", target.saved_s), ("dry_run", target.would.saved_s))
    ),
    "hmd_target_loss_seconds": lambda now: _by_target(
        now, lambda target: (("moves", target.lost_s), ("dry_run", target.would.lost_s))
    ),
    "hmd_target_off_fastest_bytes": lambda now: {
        (target.name,): target.off_fastest_bytes
        for target in now.targets
        if target.off_fastest_bytes is not None
    },
    "hmd_dry_run_bytes": lambda now: _by_target(
        now,
        lambda target: (("up", target.would.promoted_bytes), ("down", target.would.demoted_bytes)),
    ),
    "hmd_policy_overridden": lambda now: {(): now.control.policy_override is not None},
    "hmd_node_drained": _drained,
    "hmd_admin_state_lost": lambda now: {(): bool(now.control.not_restored)},
}

_HEAD: Final = re.compile(
    r"(?P<kind>gauge|counter|histogram) (?P<name>\w+)(?:\((?P<labels>.*?)\))?"
    r"(?: = (?P<path>[\w.]+))?(?: \[(?P<unit>\w*)\])?"
)


def _families(table: str) -> dict[str, tuple[Family, ...]]:
    sections: dict[str, tuple[Family, ...]] = {}
    for line in re.sub(r"\n +", " ", table.strip()).splitlines():
        head = _HEAD.match(line)
        if head is None:
            title = line.removesuffix(":")
            sections[title] = ()
            continue
        name, unit = head["name"], head["unit"]
        labels = tuple(head["labels"].split(", ")) if head["labels"] else ()
        if unit is None:
            unit = "seconds" if head["kind"] == "histogram" else name.rpartition("_")[2]
        values = partial(_read, head["path"], len(labels)) if head["path"] else _COMPUTED[name]
        meaning = line[head.end() :].strip()
        sections[title] += (Family(name, head["kind"], unit, meaning, labels, values),)
    return sections


SECTIONS: Final[Mapping[str, tuple[Family, ...]]] = _families(TABLE)
"""Families by the heading under which the reference lists them."""

FAMILIES: Final = tuple(family for families in SECTIONS.values() for family in families)
