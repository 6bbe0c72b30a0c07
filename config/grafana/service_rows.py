# SPDX-License-Identifier: MIT
"""Rows of panels on hmd itself: all machines, overview, stages, sampling, cost."""

from __future__ import annotations

from panel import Panel, Query, stat

FLEET = [
    Panel(
        "Stall time saved by machine",
        "Stall seconds per second that recent moves save on each machine, minus those that they "
        "cost, by samples. A machine that stays below zero is better without moves.",
        "suffix: s/s",
        (
            Query(
                "sum by (instance) (rate(hmd_realised_saving_seconds_total[R])) - "
                "sum by (instance) (rate(hmd_realised_loss_seconds_total[R]))",
                "{{instance}}",
            ),
        ),
    ),
    Panel(
        "CPU of hmd by machine",
        "Share of one CPU that each daemon uses, including kernel threads that sample for it.",
        "percentunit",
        (
            Query(
                "rate(hmd_cpu_seconds_total[R]) + rate(hmd_sampler_cpu_seconds_total[R])",
                "{{instance}}",
            ),
        ),
    ),
    Panel(
        "Versions and machines that need a look",
        "Machines by version and commit; those that Prometheus does not reach, whose last reload "
        "failed, that are paused, or in a dry run.",
        "none",
        (
            Query("count by (version, revision) (hmd_build_info)", "{{version}} {{revision}}"),
            Query('sum(1 - up{job="hmd"})', "down"),
            Query("sum(1 - hmd_config_last_reload_successful)", "reload failed"),
            Query("sum(hmd_paused)", "paused"),
            Query("sum(hmd_dry_run)", "dry run"),
        ),
    ),
]

OVERVIEW = [
    stat(
        "State",
        "Whether Prometheus reaches the daemon.",
        "none",
        'up{, job="hmd"}',
        names=(("1", "up", "green"), ("0", "down", "red")),
    ),
    stat(
        "Last tick",
        "Time since the last tick. If it is many times the tick interval, the daemon hangs.",
        "s",
        "time() - hmd_last_tick_timestamp_seconds{}",
        steps=((30, "orange"), (120, "red")),
    ),
    stat(
        "Fast share",
        "Share of the targets' sampled accesses that the fastest tier served.",
        "percentunit",
        'sum(rate(hmd_target_accesses_total{, tier="0"}[R])) / '
        'sum(rate(hmd_target_accesses_total{, tier!="unknown"}[R]))',
        legend="all targets",
    ),
    stat(
        "Fast memory of targets",
        "Share of the fastest tier that holds pages of targets.",
        "percentunit",
        'sum(hmd_target_resident_bytes{, tier="0"}) / sum(hmd_node_memory_bytes{, tier="0"})',
        legend="all targets",
    ),
    stat(
        "Stall time saved",
        "Stall seconds per second that recent moves save, minus those that they cost, by samples.",
        "suffix: s/s",
        "sum(rate(hmd_realised_saving_seconds_total{}[R])) - "
        "sum(rate(hmd_realised_loss_seconds_total{}[R]))",
        legend="all targets",
    ),
    stat(
        "CPU of hmd",
        "Share of one CPU that the daemon uses, including kernel threads that sample for it.",
        "percentunit",
        "rate(hmd_cpu_seconds_total{}[R]) + rate(hmd_sampler_cpu_seconds_total{}[R])",
        steps=((0.05, "orange"), (0.2, "red")),
    ),
    stat(
        "Configuration",
        "Result of the last reload. After a failure the old configuration stays in force.",
        "none",
        "hmd_config_last_reload_successful{}",
        names=(("1", "in force", "green"), ("0", "reload failed", "red")),
    ),
    stat(
        "Build",
        "Version, policy and sampler.",
        "none",
        "hmd_build_info{} * on (instance) group_left (policy) hmd_policy_info{} "
        "* on (instance) group_left (sampler) hmd_sampler_info{}",
        legend="{{version}} {{policy}} {{sampler}}",
        by_name=True,
    ),
]

STAGES = [
    Panel(
        "Samples through the stages",
        "Records that the sampler read, samples of targets, and samples whose page is known.",
        "suffix: /s",
        (
            Query('sum by (stage) (rate(hmd_stage_in_total{, item="samples"}[R]))', "{{stage}} in"),
            Query(
                'sum by (stage) (rate(hmd_stage_out_total{, item="samples"}[R]))', "{{stage}} out"
            ),
        ),
    ),
    Panel(
        "Pages through the stages",
        "Pages that the policy considered per tick, pages planned to move, and pages moved.",
        "suffix: /s",
        (
            Query('sum by (stage) (rate(hmd_stage_in_total{, item="pages"}[R]))', "{{stage}} in"),
            Query('sum by (stage) (rate(hmd_stage_out_total{, item="pages"}[R]))', "{{stage}} out"),
        ),
    ),
    Panel(
        "Time of stages",
        "Mean time per tick of each stage.",
        "s",
        (
            Query(
                "sum by (stage) (rate(hmd_stage_duration_seconds_sum{}[R])) / "
                "sum by (stage) (rate(hmd_stage_duration_seconds_count{}[R]))",
                "{{stage}}",
            ),
        ),
        stack=True,
    ),
    Panel(
        "Time of ticks",
        "Median and 99th percentile of the time that a tick takes.",
        "s",
        (
            Query(
                "histogram_quantile(0.5, sum by (le) "
                "(rate(hmd_tick_duration_seconds_bucket{}[R])))",
                "median",
            ),
            Query(
                "histogram_quantile(0.99, sum by (le) "
                "(rate(hmd_tick_duration_seconds_bucket{}[R])))",
                "p99",
            ),
            Query("max(hmd_tick_interval_seconds{})", "interval"),
        ),
    ),
    Panel(
        "Failures of stages",
        "Share of ticks in which a stage failed; the daemon's log has the reason.",
        "percentunit",
        (
            Query(
                "sum by (stage) (rate(hmd_stage_failures_total{}[R])) / ignoring (stage) "
                "group_left sum(rate(hmd_ticks_total{}[R]))",
                "{{stage}}",
            ),
        ),
        most=1,
    ),
    Panel(
        "Since the last success",
        "Time since the last success of each stage.",
        "s",
        (
            Query(
                "time() - min by (stage) (hmd_stage_last_success_timestamp_seconds{})",
                "{{stage}}",
            ),
        ),
    ),
]

SAMPLING = [
    Panel(
        "Samples",
        "Samples of targets, dropped samples (those of other programs or of the kernel), and all "
        "records on programs' CPUs.",
        "suffix: /s",
        (
            Query("sum(rate(hmd_samples_total{}[R]))", "taken"),
            Query("sum(rate(hmd_samples_dropped_total{}[R]))", "dropped"),
            Query("sum(rate(hmd_sampler_records_total{}[R]))", "records"),
        ),
    ),
    Panel(
        "Losses",
        "Share of the samples of all programs that a full ring lost; throttling by the kernel; "
        "corrupt records.",
        "none",
        (
            Query(
                "sum(rate(hmd_samples_lost_total{}[R])) / (sum(rate(hmd_samples_lost_total{}[R])) "
                "+ sum(rate(hmd_samples_total{}[R])) + sum(rate(hmd_samples_dropped_total{}[R])) "
                "> 0 or vector(1))",
                "lost share",
            ),
            Query("sum(rate(hmd_sampler_throttles_total{}[R]))", "throttles/s"),
            Query("sum(rate(hmd_sampler_corrupt_records_total{}[R]))", "corrupt/s"),
        ),
    ),
    Panel(
        "Sampling period",
        "Accesses per sample (DAMON: milliseconds between two cycles), and the bounds within "
        "which it follows the CPU quota.",
        "none",
        (
            Query("max(hmd_sampler_period{})", "in force"),
            Query("min(hmd_sampler_period_shortest{})", "shortest"),
            Query("max(hmd_sampler_period_longest{})", "longest"),
        ),
    ),
    Panel(
        "Overhead of samples",
        "Share of a CPU that records of samples take of its programs, on the CPU with most of "
        "them, and sample.overhead.",
        "percentunit",
        (
            Query("max(hmd_sampler_overhead_ratio{})", "in the last tick"),
            Query("max(hmd_sampler_overhead_limit_ratio{})", "limit"),
        ),
    ),
]

COST = [
    Panel(
        "CPU",
        "Shares of one CPU. Without answers to clients, the sum is within sample.cpu_quota.",
        "percentunit",
        (
            Query("sum(rate(hmd_cpu_seconds_total{}[R]))", "daemon"),
            Query("sum(rate(hmd_sampler_cpu_seconds_total{}[R]))", "sampler's threads"),
            Query("sum(hmd_cpu_quota_ratio{})", "quota"),
            Query("sum(hmd_budget_quota_ratio{})", "quota now"),
        ),
    ),
    Panel(
        "CPU by work",
        "What the daemon's loop and kernel threads that sample for it use, as shares of one CPU; "
        "and the share that the residency sweep may take.",
        "percentunit",
        (
            Query("sum by (work) (rate(hmd_budget_cpu_seconds_total{}[R]))", "{{work}}"),
            Query("sum(hmd_budget_sweep_ratio{})", "sweep, at most"),
        ),
    ),
    Panel(
        "What gives way to the quota",
        "Length of ticks over the configured one, ticks per plan, plans that waited.",
        "none",
        (
            Query("max(hmd_budget_tick_stretch_ratio{})", "length of ticks"),
            Query("max(hmd_budget_plan_interval_ticks{})", "ticks per plan"),
            Query("sum(increase(hmd_budget_delayed_plans_total{}[R]))", "plans delayed"),
        ),
    ),
    Panel(
        "CPU time owed",
        "CPU time beyond the quota that ticks still make up for, negative where it is saved for a "
        "burst; interval between scans for processes.",
        "s",
        (
            Query("max(hmd_budget_owed_seconds{})", "owed"),
            Query("max(hmd_budget_discovery_interval_seconds{})", "between two scans"),
        ),
    ),
    Panel(
        "Memory",
        "Resident memory of the daemon, and of its heat table.",
        "bytes",
        (
            Query("sum(hmd_resident_memory_bytes{})", "resident"),
            Query("sum(hmd_heat_table_bytes{})", "heat table"),
        ),
    ),
    Panel(
        "Chunks in detail",
        "Chunks of 2 MiB whose pages are counted one by one, those that lose that to others, "
        "and those that lose it near the memory limit.",
        "suffix: chunks",
        (
            Query("sum(hmd_heat_detail_chunks{})", "in detail"),
            Query("sum(rate(hmd_heat_detail_lost_chunks_total{}[R]))", "lost per second"),
            Query("sum(rate(hmd_heat_detail_dropped_chunks_total{}[R]))", "dropped per second"),
        ),
    ),
    Panel(
        "Hot sets that moved",
        "Processes whose known heat the samples of a tick refuted, so that it was forgotten.",
        "suffix: /s",
        (Query("sum(rate(hmd_heat_changed_processes_total{}[R]))", "processes"),),
    ),
    Panel(
        "Calls and reads",
        "Calls of move_pages that moved pages, and reads of the sampler that returned samples.",
        "suffix: /s",
        (
            Query("sum(rate(hmd_move_calls_total{}[R]))", "move_pages"),
            Query("sum(rate(hmd_sampler_wakeups_total{}[R]))", "sampler reads"),
        ),
    ),
]

ADMIN_REQUESTS = [
    Panel(
        "Admin requests in force",
        "Pause, a policy other than the configured one, drained nodes, pins.",
        "none",
        (
            Query("hmd_paused{}", "paused"),
            Query("hmd_policy_overridden{}", "another policy"),
            Query("hmd_node_drained{}", "node {{numa_node}} drained"),
            Query("hmd_pins{}", "pins"),
            Query("hmd_admin_state_lost{}", "not restored"),
        ),
        width=12,
    ),
    Panel(
        "Admin requests",
        "Admin requests received, by outcome: done or refused.",
        "none",
        (Query("increase(hmd_admin_requests_total{}[R])", "{{command}} {{outcome}}"),),
        width=12,
    ),
]
