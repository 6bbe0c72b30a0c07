# SPDX-License-Identifier: MIT
"""The metrics of the daemon: names, meanings, labels, and where their values are in a ``Status``.

One table: it makes what Prometheus scrapes (:mod:`hmd.metrics.exporter`) and the tables of
docs/reference/metrics.md (packaging/pages/metrics_reference.py). Names follow
prometheus.io/docs/practices/naming. The number of series is bounded by tiers, nodes and (at most
64) targets; there is none per process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal

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
    DryRunStatus,
    Durations,
    NodeStatus,
    Stage,
    StageStatus,
    Status,
    TargetStatus,
)
from hmd.migrate.status import FAILURES

Labels = tuple[str, ...]
Values = Mapping[Labels, float]
Kind = Literal["gauge", "counter", "histogram"]

FAILURE_REASONS: Final = tuple(status.label for status in sorted(FAILURES))


@dataclass(frozen=True, slots=True)
class Family:
    """A family of series; ``name`` is without the ``_total`` that counters have in addition.

    ``unit`` is empty for states and names. ``meaning`` is the help text, a sentence or two.
    ``values`` returns a number for each tuple of label values, one number without labels, for
    histograms durations.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str
    labels: Labels
    values: Callable[[Status], float | Values | Mapping[Labels, Durations]]

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
        values = self.values(now)
        rows = values.items() if isinstance(values, Mapping) else (((), values),)
        if self.kind == "histogram":
            histogram = HistogramMetricFamily(self.name, self.meaning, labels=self.labels)
            bounds = [*map(str, DURATION_BOUNDS_S), "+Inf"]
            for labels, value in rows:
                assert isinstance(value, Durations)
                buckets = list(zip(bounds, accumulate(value.counts), strict=True))
                histogram.add_metric(labels, buckets, value.sum_s)
            return histogram
        kind = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        metric: CounterMetricFamily | GaugeMetricFamily = kind(
            self.name, self.meaning, labels=self.labels
        )
        for labels, value in rows:
            assert not isinstance(value, Durations)
            metric.add_metric(labels, value)
        return metric


def _unit(name: str) -> str:
    """Return the unit that a name ends with, as the conventions want it."""
    return name.rpartition("_")[2]


def gauge(
    name: str,
    meaning: str,
    values: Callable[[Status], float | Values],
    *labels: str,
    unit: str | None = None,
) -> Family:
    """Return a family whose values go up and down."""
    return Family(name, "gauge", _unit(name) if unit is None else unit, meaning, labels, values)


def counter(
    name: str,
    meaning: str,
    values: Callable[[Status], float | Values],
    *labels: str,
    unit: str | None = None,
) -> Family:
    """Return a family whose values only grow while the daemon runs."""
    return Family(name, "counter", _unit(name) if unit is None else unit, meaning, labels, values)


def histogram(
    name: str, meaning: str, values: Callable[[Status], Mapping[Labels, Durations]], *labels: str
) -> Family:
    """Return a family of durations, counted by ``DURATION_BOUNDS_S``."""
    return Family(name, "histogram", "seconds", meaning, labels, values)


ITEMS: Final = {
    Stage.SAMPLE: "samples",
    Stage.HEAT: "samples",
    Stage.DECIDE: "pages",
    Stage.MIGRATE: "pages",
    Stage.OBSERVE: "ticks",
}
"""The items of each stage."""


def _by_item(value: Callable[[StageStatus], float]) -> Callable[[Status], Values]:
    return lambda now: {
        (name.value, ITEMS[name]): value(stage) for name, stage in now.stages.items()
    }


def _by_target(value: Callable[[TargetStatus], float]) -> Callable[[Status], Values]:
    return lambda now: {(target.name,): value(target) for target in now.targets}


def _by_node(value: Callable[[NodeStatus], float]) -> Callable[[Status], Values]:
    return lambda now: {(str(node.id), str(node.tier)): value(node) for node in now.nodes}


def _resident_bytes(now: Status) -> Values:
    return {
        (target.name, str(tier)): size
        for target in now.targets
        for tier, size in enumerate(target.resident_bytes)
    }


def _accesses(now: Status) -> Values:
    tiers = [*map(str, range(len(now.tiers))), "unknown"]
    return {
        (target.name, tier): count
        for target in now.targets
        for tier, count in zip(tiers, target.accesses, strict=True)
    }


def _dry_run_bytes(now: Status) -> Values:
    up: dict[Labels, float] = {(t.name, "up"): t.would.promoted_bytes for t in now.targets}
    return up | {(t.name, "down"): t.would.demoted_bytes for t in now.targets}


def _moves_and_dry_run(
    value: Callable[[TargetStatus | DryRunStatus], float],
) -> Callable[[Status], Values]:
    return lambda now: {
        (target.name, name): value(of)
        for target in now.targets
        for name, of in (("moves", target), ("dry_run", target.would))
    }


def _fast_shares(now: Status) -> Values:
    shares = {(target.name,): target.fast_share for target in now.targets}
    return {labels: share for labels, share in shares.items() if share is not None}


def _needed_bytes(now: Status) -> Values:
    return {
        (target.name, f"{share:g}"): size
        for target in now.targets
        if target.demand is not None
        for share, size in zip(NEEDED_SHARES, target.demand.needed_bytes, strict=True)
    }


def _predicted_runtimes(now: Status) -> Values:
    return {
        (target.name, f"{step:g}"): runtime
        for target in now.targets
        if target.demand is not None
        for step, runtime in zip(FAST_STEPS, target.demand.runtime, strict=False)
    }


def _heat(now: Status) -> Values:
    return {
        (str(tier), str(log2)): pages
        for tier, row in enumerate(now.heat.pages)
        for log2, pages in zip(HEAT_LOG2, row or [0] * len(HEAT_LOG2), strict=True)
    }


def _drained(now: Status) -> Values:
    nodes = {node.id: 0 for node in now.nodes} | {d.node: 1 for d in now.control.drains}
    return {(str(node),): drained for node, drained in nodes.items()}


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


_FOLLOWED: Final = f"in the {WINDOW_TICKS} ticks after each move"

SECTIONS: Final[Mapping[str, tuple[Family, ...]]] = {
    "The daemon": (
        gauge(
            "hmd_build_info",
            "Version of hmd, and the commit that a package was built from.",
            lambda now: {(now.version, now.revision): 1},
            "version",
            "revision",
            unit="",
        ),
        gauge(
            "hmd_policy_info", "Policy in force.", lambda now: {(now.policy,): 1}, "policy", unit=""
        ),
        gauge(
            "hmd_start_time_seconds",
            "Unix time at which the daemon started.",
            lambda now: now.started_s,
        ),
        counter(
            "hmd_cpu_seconds",
            "CPU time of the daemon since it was ready, all threads.",
            lambda now: now.cpu_s,
        ),
        gauge(
            "hmd_cpu_quota_ratio",
            "Share of one CPU that hmd may use at most (sample: cpu_quota; unset: 1% of all CPUs).",
            lambda now: now.cpu_quota,
        ),
        gauge(
            "hmd_resident_memory_bytes",
            "Resident memory of the daemon.",
            lambda now: now.resident_bytes,
        ),
        gauge(
            "hmd_config_last_reload_successful",
            "1 if the last reload of the configuration succeeded, else 0.",
            lambda now: now.reload.successful,
            unit="",
        ),
        gauge(
            "hmd_config_last_reload_success_timestamp_seconds",
            "Unix time of the last successful load of the configuration.",
            lambda now: now.reload.success_s,
        ),
        gauge(
            "hmd_dry_run",
            "1 in a dry run of the whole: moves are planned, not executed.",
            lambda now: now.dry_run,
            unit="",
        ),
    ),
    "CPU budget": (
        counter(
            "hmd_budget_cpu_seconds",
            "CPU time by kind of work. samples: reading and counting them, kernel threads "
            "included; sweep: where pages are; discovery: scans for processes; other: admin "
            "requests, the loop. Threads that answer clients are in none.",
            lambda now: {(work.value,): spent_s for work, spent_s in now.budget.cpu_s.items()},
            "work",
        ),
        gauge(
            "hmd_budget_quota_ratio",
            "Share of one CPU that hmd may use now: cpu_quota or, where it is unset, by the gain.",
            lambda now: now.budget.quota,
        ),
        gauge(
            "hmd_budget_owed_seconds",
            "CPU time used beyond the quota and not yet made up for; negative: saved for a burst.",
            lambda now: now.budget.owed_s,
        ),
        gauge(
            "hmd_budget_tick_stretch_ratio",
            "Interval between ticks now over the configured one; 1 unless the quota requires more.",
            lambda now: now.budget.stretch,
        ),
        gauge(
            "hmd_budget_plan_interval_ticks",
            "Ticks per plan now; 1 unless the quota requires more.",
            lambda now: now.budget.plan_ticks,
        ),
        counter(
            "hmd_budget_delayed_plans",
            "Ticks whose plan waited until the CPU time of earlier moves was made up for.",
            lambda now: now.budget.plans_delayed,
        ),
        gauge(
            "hmd_budget_sweep_ratio",
            "Share of one CPU that sweeps may take: half of the quota, or less where the quota "
            "requires it.",
            lambda now: now.budget.sweep_share,
        ),
        gauge(
            "hmd_budget_discovery_interval_seconds",
            "Interval between scans for processes now: rescan, or longer where the quota "
            "requires it.",
            lambda now: now.budget.discovery_s,
        ),
    ),
    "Ticks and stages": (
        counter("hmd_ticks", "Ticks done.", lambda now: now.ticks),
        gauge(
            "hmd_tick_interval_seconds",
            "Interval between ticks now: tick, longer for the CPU quota, shorter after many moves.",
            lambda now: now.tick_s,
        ),
        gauge(
            "hmd_last_tick_timestamp_seconds",
            "Unix time of the last tick; before the first tick, of the start.",
            lambda now: now.ticked_s,
        ),
        histogram(
            "hmd_tick_duration_seconds",
            "Duration of a tick, without the observe stage.",
            lambda now: {(): now.tick_seconds},
        ),
        histogram(
            "hmd_stage_duration_seconds",
            "Duration of one stage of a tick.",
            lambda now: {(name.value,): stage.seconds for name, stage in now.stages.items()},
            "stage",
        ),
        counter(
            "hmd_stage_in",
            "Items into a stage. sample: records read; heat: samples; decide: resident pages, "
            "summed over ticks; migrate: planned pages; observe: ticks.",
            _by_item(lambda stage: stage.items_in),
            "stage",
            "item",
            unit="items",
        ),
        counter(
            "hmd_stage_out",
            "Items out of a stage. sample: samples of targets; heat: samples of known pages; "
            "decide: planned pages; migrate: moved pages; observe: published ticks.",
            _by_item(lambda stage: stage.items_out),
            "stage",
            "item",
            unit="items",
        ),
        counter(
            "hmd_stage_failures",
            "Ticks in which a stage failed; the log has the error.",
            lambda now: {(stage.value,): n for stage, n in now.stage_failures.items()},
            "stage",
            unit="ticks",
        ),
        gauge(
            "hmd_stage_last_success_timestamp_seconds",
            "Unix time of the last success of a stage; before the first, of the start.",
            lambda now: {(name.value,): stage.succeeded_s for name, stage in now.stages.items()},
            "stage",
        ),
    ),
    "Sampling": (
        gauge(
            "hmd_sampler_info",
            "The sampler in use.",
            lambda now: {(now.sampler.name,): 1},
            "sampler",
            unit="",
        ),
        gauge(
            "hmd_sampler_period",
            "Sampling period: accesses per sample; for DAMON the sampling interval in "
            "milliseconds.",
            lambda now: now.sampler.period,
            unit="accesses",
        ),
        gauge(
            "hmd_sampler_period_shortest",
            "Shortest period that cpu_quota and overhead may set.",
            lambda now: now.sampler.shortest_period,
            unit="accesses",
        ),
        gauge(
            "hmd_sampler_period_longest",
            "Longest period that cpu_quota and overhead may set.",
            lambda now: now.sampler.longest_period,
            unit="accesses",
        ),
        counter(
            "hmd_sampler_cpu_seconds",
            "CPU time of kernel threads that sample for hmd (kdamond), not in "
            "hmd_cpu_seconds_total.",
            lambda now: now.sampler.outside_cpu_s,
        ),
        gauge(
            "hmd_sampler_overhead_ratio",
            "Share of a CPU that records of samples took of its programs in the last tick, on the "
            "CPU with most of them.",
            lambda now: now.budget.overhead,
        ),
        gauge(
            "hmd_sampler_overhead_limit_ratio",
            "Most of it (sample: overhead), unless the period is set.",
            lambda now: now.overhead_limit,
        ),
        gauge(
            "hmd_sampler_running_ratio",
            "Least share of its time for which a sampling event had a counter; below 1, others "
            "use the CPU's counters too.",
            lambda now: now.sampler.running_share,
        ),
        counter(
            "hmd_sampler_records",
            "Records of samples on programs' CPUs, lost ones and those of other programs included.",
            lambda now: now.sampler.records,
        ),
        counter("hmd_samples", "Samples of processes of targets.", lambda now: now.sampler.samples),
        counter(
            "hmd_samples_lost",
            "Samples lost because a ring was full.",
            lambda now: now.sampler.lost,
            unit="samples",
        ),
        counter(
            "hmd_samples_dropped",
            "Samples of other programs, of the kernel, of guests, or of accesses that hit a cache.",
            lambda now: now.sampler.dropped,
            unit="samples",
        ),
        counter(
            "hmd_samples_kernel",
            "Those of the kernel's own memory among them, which sample.kernel_mode costs.",
            lambda now: now.sampler.kernel_addresses,
            unit="samples",
        ),
        counter(
            "hmd_sampler_corrupt_records",
            "Records from the kernel that could not be parsed.",
            lambda now: now.sampler.corrupt,
        ),
        counter(
            "hmd_sampler_throttles",
            "Times that the kernel throttled sampling (PERF_RECORD_THROTTLE).",
            lambda now: now.sampler.throttled,
            unit="times",
        ),
        counter(
            "hmd_sampler_wakeups",
            "Reads of the sampler that returned samples.",
            lambda now: now.sampler.wakeups,
            unit="reads",
        ),
    ),
    "Tiers and heat": (
        gauge(
            "hmd_tiers",
            "Memory tiers; with one tier hmd moves no pages.",
            lambda now: len(now.tiers),
        ),
        gauge(
            "hmd_node_tier",
            "Tier of a memory node; 0 is the fastest.",
            lambda now: {(str(node.id),): node.tier for node in now.nodes},
            "numa_node",
            unit="",
        ),
        gauge(
            "hmd_node_memory_bytes",
            "Memory of a node; node_exporter reports the free part.",
            _by_node(lambda node: node.total_bytes),
            "numa_node",
            "tier",
        ),
        gauge(
            "hmd_node_page_cache_room_bytes",
            "Page cache of a node that moves to the node may replace (migrate.page_cache).",
            _by_node(lambda node: node.cache_bytes),
            "numa_node",
            "tier",
        ),
        gauge(
            "hmd_node_page_cache_demoting",
            "1 while unused page cache of a node moves to a slower one (migrate.cache_headroom).",
            _by_node(lambda node: node.demoting),
            "numa_node",
            "tier",
            unit="",
        ),
        gauge(
            "hmd_node_load_latency_seconds",
            "Load latency of an unloaded node: from the firmware (HMAT), or 90 ns without it.",
            _by_node(lambda node: node.latency_ns / 1e9),
            "numa_node",
            "tier",
        ),
        gauge(
            "hmd_heat_pages",
            "Base pages by tier and by log2 of their accesses per second.",
            _heat,
            "tier",
            "heat_log2",
        ),
        gauge(
            "hmd_heat_table_bytes", "Memory of the heat table.", lambda now: now.heat_table.bytes
        ),
        gauge(
            "hmd_heat_detail_chunks",
            "Chunks of 2 MiB whose pages are counted one by one; the others are counted as a "
            "whole.",
            lambda now: now.heat_table.detail_chunks,
        ),
        counter(
            "hmd_heat_changed_processes",
            "Processes whose known heat a tick's samples refuted: their hot set had moved.",
            lambda now: now.heat_table.changed_processes,
        ),
        counter(
            "hmd_heat_detail_lost_chunks",
            "Chunks that are counted as a whole again, since the pages of others differ more.",
            lambda now: now.heat_table.lost_chunks,
        ),
        counter(
            "hmd_heat_detail_dropped_chunks",
            "Chunks that are counted as a whole again, since the memory limit of the service "
            "is near.",
            lambda now: now.heat_table.dropped_chunks,
        ),
    ),
    "Decisions and moves": (
        counter(
            "hmd_planned_pages",
            "Pages in plans, by direction: up to a faster tier, down to a slower one, level to "
            "another node of the same tier.",
            lambda now: {
                (direction,): pages for direction, pages in now.moves.planned_by_direction.items()
            },
            "direction",
        ),
        counter(
            "hmd_moved_bytes",
            "Bytes moved between memory nodes.",
            _moved_bytes,
            "from_numa_node",
            "to_numa_node",
            "from_tier",
            "to_tier",
        ),
        counter(
            "hmd_unmoved_pages",
            "Planned pages that were not tried, by reason: the budget was spent (deferred), they "
            "were on the node already (already_there), they failed recently (in_backoff), ...",
            _unmoved_pages,
            "reason",
        ),
        counter(
            "hmd_move_failures",
            "Pages that could not be moved, by reason.",
            lambda now: {
                (reason,): now.moves.pages_by_status[reason] for reason in FAILURE_REASONS
            },
            "reason",
            unit="pages",
        ),
        counter(
            "hmd_move_calls",
            "Calls of move_pages(2) that moved pages.",
            lambda now: now.moves.calls,
        ),
        counter(
            "hmd_paged_out_bytes",
            "Bytes of idle pages paged out to swap, zram or their files.",
            lambda now: now.moves.paged_out_bytes,
        ),
        counter(
            "hmd_predicted_saving_seconds",
            "Stall time that moves to nodes with lower latency were predicted to save, from the "
            f"heat of the pages in the plan, {_FOLLOWED}.",
            lambda now: now.savings.predicted_saved_s,
        ),
        counter(
            "hmd_realised_saving_seconds",
            f"Stall time that the same moves saved, from the samples {_FOLLOWED}.",
            lambda now: now.savings.realised_saved_s,
        ),
        counter(
            "hmd_predicted_loss_seconds",
            "Stall time that moves to nodes with higher latency were predicted to cost, from the "
            f"heat of the pages in the plan, {_FOLLOWED}.",
            lambda now: now.savings.predicted_lost_s,
        ),
        counter(
            "hmd_realised_loss_seconds",
            f"Stall time that the same moves cost, from the samples {_FOLLOWED}.",
            lambda now: now.savings.realised_lost_s,
        ),
        counter(
            "hmd_ping_pong_pages",
            f"Pages that moved back to their former tier within {RETURN_TICKS} ticks.",
            lambda now: now.savings.returned_pages,
        ),
    ),
    "Targets": (
        gauge(
            "hmd_target_processes",
            "Processes of a target.",
            _by_target(lambda target: target.process_count),
            "target",
        ),
        gauge(
            "hmd_target_resident_bytes",
            "Resident memory of a target in a tier.",
            _resident_bytes,
            "target",
            "tier",
        ),
        gauge(
            "hmd_target_resident_known_ratio",
            "Share of a target's resident memory whose pages were found one by one; the rest is"
            " distributed over tiers by totals of the kernel.",
            _by_target(lambda target: target.known),
            "target",
        ),
        counter(
            "hmd_target_accesses",
            "Accesses of a target by the tier that served them: samples times the sampling period.",
            _accesses,
            "target",
            "tier",
        ),
        gauge(
            "hmd_target_fast_access_ratio",
            "Share of a target's recent accesses that the fastest tier served.",
            _fast_shares,
            "target",
        ),
        gauge(
            "hmd_target_needed_bytes",
            "Memory that holds a share of a target's accesses: its hottest pages.",
            _needed_bytes,
            "target",
            "share",
        ),
        gauge(
            "hmd_target_predicted_runtime_ratio",
            "Runtime of a target over that of now, with so many times its memory on the fastest "
            "tier of now; if all accesses were loads that wait.",
            _predicted_runtimes,
            "target",
            "fast",
        ),
        counter(
            "hmd_target_samples",
            "Samples of a target.",
            _by_target(lambda target: target.samples),
            "target",
        ),
        counter(
            "hmd_target_promoted_bytes",
            "Bytes of a target moved to a faster tier.",
            _by_target(lambda target: target.promoted_bytes),
            "target",
        ),
        counter(
            "hmd_target_demoted_bytes",
            "Bytes of a target moved to a slower tier.",
            _by_target(lambda target: target.demoted_bytes),
            "target",
        ),
        counter(
            "hmd_target_move_failures",
            "Pages of a target that could not be moved.",
            _by_target(lambda target: target.failed_pages),
            "target",
            unit="pages",
        ),
        counter(
            "hmd_target_saving_seconds",
            f"Stall time that moves saved a target, from the samples {_FOLLOWED}; dry_run: that "
            "they would have saved.",
            _moves_and_dry_run(lambda of: of.saved_s),
            "target",
            "of",
        ),
        counter(
            "hmd_target_loss_seconds",
            "The same, that they cost.",
            _moves_and_dry_run(lambda of: of.lost_s),
            "target",
            "of",
        ),
        gauge(
            "hmd_target_dry_run",
            "1 for a target in a dry run, of its own or of the whole: nothing of it moves.",
            _by_target(lambda target: target.dry_run),
            "target",
            unit="",
        ),
        counter(
            "hmd_dry_run_bytes",
            "Memory of a target that a dry run would have moved, each page once.",
            _dry_run_bytes,
            "target",
            "direction",
        ),
    ),
    "Admin requests": (
        gauge(
            "hmd_paused",
            "1 while hmd is paused: it samples, but moves no pages.",
            lambda now: now.control.paused,
            unit="",
        ),
        gauge(
            "hmd_policy_overridden",
            "1 while an admin request replaces the policy of the configuration.",
            lambda now: now.control.policy_override is not None,
            unit="",
        ),
        gauge(
            "hmd_node_drained",
            "1 for a drained memory node: hmd empties it and moves no pages to it.",
            _drained,
            "numa_node",
            unit="",
        ),
        gauge(
            "hmd_pins",
            "Pinned processes and targets, whose pages policies do not move.",
            lambda now: now.control.pinned,
        ),
        gauge(
            "hmd_admin_state_lost",
            "1 where a pause, policy, drain or pin from before the restart could not be restored.",
            lambda now: bool(now.control.not_restored),
            unit="",
        ),
        counter(
            "hmd_admin_requests",
            "Admin requests on the status socket, by command and outcome: done or refused.",
            lambda now: {
                (command, outcome): count
                for command, outcomes in now.control.requests.items()
                for outcome, count in outcomes.items()
            },
            "command",
            "outcome",
        ),
    ),
}
"""Families by the heading under which the reference lists them."""

FAMILIES: Final = tuple(family for families in SECTIONS.values() for family in families)
