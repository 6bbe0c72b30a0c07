# SPDX-License-Identifier: MIT
"""Rows of panels on memory: tiers, targets, decisions and moves."""

from __future__ import annotations

from panel import Panel, Query

TIERS = [
    Panel(
        "Memory of targets by tier",
        "Resident pages of all targets, including pages never sampled, and page cache that moves "
        "to the tier may replace.",
        "bytes",
        (
            Query("sum by (tier) (hmd_target_resident_bytes{})", "tier {{tier}}"),
            Query("sum by (tier) (hmd_node_page_cache_room_bytes{})", "cache, tier {{tier}}"),
        ),
        stack=True,
    ),
    Panel(
        "Accesses by tier",
        "Sampled accesses times the period, by the tier that served them; unknown if the page "
        "was not yet found.",
        "suffix: /s",
        (Query("sum by (tier) (rate(hmd_target_accesses_total{}[R]))", "tier {{tier}}"),),
        stack=True,
    ),
    Panel(
        "Hot memory by tier",
        "Pages with at least one access per second. Hot memory on a slow tier can still be gained.",
        "bytes",
        (
            Query(
                'sum by (tier) (hmd_heat_pages{, heat_log2=~"[0-9]+"}) * 4096',
                "tier {{tier}}",
            ),
        ),
        width=5,
    ),
    Panel(
        "Latency of nodes",
        "Assumed latency of a load from an idle node; 90 ns if the firmware reports none.",
        "s",
        (Query("hmd_node_load_latency_seconds{}", "node {{numa_node}}, tier {{tier}}"),),
        kind="bargauge",
        width=3,
    ),
]

TARGETS = [
    Panel(
        "Fast share by target",
        "Share of each target's recent sampled accesses that the fastest tier served.",
        "percentunit",
        (Query("hmd_target_fast_access_ratio{T}", "{{target}}"),),
        most=1,
    ),
    Panel(
        "Fast memory by target",
        "Resident pages on the fastest tier.",
        "bytes",
        (Query('sum by (target) (hmd_target_resident_bytes{T, tier="0"})', "{{target}}"),),
        stack=True,
    ),
    Panel(
        "Slower memory by target",
        "Resident pages on all other tiers.",
        "bytes",
        (
            Query(
                "sum by (target) (hmd_target_resident_bytes{T}) - "
                'sum by (target) (hmd_target_resident_bytes{T, tier="0"})',
                "{{target}}",
            ),
        ),
        stack=True,
    ),
    Panel(
        "Never slow: memory off the fastest tier",
        "What targets with never_slow have on slower tiers, as the kernel counts it: 0 is proof.",
        "bytes",
        (Query("hmd_target_off_fastest_bytes{T}", "{{target}}"),),
    ),
    Panel(
        "Memory with 90 % of accesses",
        "The hottest pages of each target that have nine tenths of its accesses.",
        "bytes",
        (Query('hmd_target_needed_bytes{T, share="0.9"}', "{{target}}"),),
    ),
    Panel(
        "Runtime with other fast memory",
        "Predicted runtime over that of now, with half and with twice the fast memory of now.",
        "none",
        (
            Query(
                'hmd_target_predicted_runtime_ratio{T, fast=~"0.5|2"}',
                "{{target}}, {{fast}} times",
            ),
        ),
    ),
    Panel(
        "Accesses by target",
        "Sampled accesses times the period.",
        "suffix: /s",
        (Query("sum by (target) (rate(hmd_target_accesses_total{T}[R]))", "{{target}}"),),
    ),
    Panel(
        "Moves by target",
        "Bytes promoted to a faster tier and (below zero) demoted to a slower one, per second.",
        "Bps",
        (
            Query("sum by (target) (rate(hmd_target_promoted_bytes_total{T}[R]))", "{{target}} up"),
            Query(
                "sum by (target) (rate(hmd_target_demoted_bytes_total{T}[R]))", "{{target}} down"
            ),
        ),
        below="/ down$/",
    ),
    Panel(
        "Processes and failed pages",
        "Processes of each target, the share of its memory whose place was asked for page by page, "
        "and its pages that could not be moved.",
        "none",
        (
            Query("sum by (target) (hmd_target_processes{T})", "{{target}} processes"),
            Query("min by (target) (hmd_target_resident_known_ratio{T})", "{{target}} known"),
            Query(
                "sum by (target) (rate(hmd_target_move_failures_total{T}[R]))",
                "{{target}} failed pages/s",
            ),
        ),
    ),
    Panel(
        "Waiting saved by target",
        "Seconds per second that a target waited less for memory through moves, less what they"
        " cost it, from later samples; for a dry run, what it would have been.",
        "s",
        (
            Query(
                "sum by (target, of) (rate(hmd_target_saving_seconds_total{T}[R]))"
                " - sum by (target, of) (rate(hmd_target_loss_seconds_total{T}[R]))",
                "{{target}} {{of}}",
            ),
        ),
        width=12,
    ),
    Panel(
        "Dry runs: memory that would have moved",
        "Bytes that dry runs would have moved since the start, each page once.",
        "bytes",
        (
            Query("sum by (target) (hmd_target_dry_run{T})", "{{target}} in a dry run"),
            Query("sum by (target) (hmd_target_resting{T})", "{{target}} outside of its hours"),
            Query(
                "sum by (target, direction) (hmd_dry_run_bytes_total{T})",
                "{{target}} {{direction}}",
            ),
        ),
        width=12,
    ),
]

MOVES = [
    Panel(
        "Decisions",
        "Planned pages by destination: up to a faster tier, down to a slower one, or to another "
        "node of the same tier.",
        "suffix: pages/s",
        (Query("sum by (direction) (rate(hmd_planned_pages_total{}[R]))", "{{direction}}"),),
    ),
    Panel(
        "Moved",
        "Bytes moved between tiers, and bytes paged out to swap, zram or files.",
        "Bps",
        (
            Query(
                "sum by (from_tier, to_tier) (rate(hmd_moved_bytes_total{}[R]))",
                "tier {{from_tier}} to {{to_tier}}",
            ),
            Query("sum(rate(hmd_paged_out_bytes_total{}[R]))", "paged out"),
            Query("sum(rate(hmd_read_ahead_bytes_total{}[R]))", "read ahead of use"),
        ),
    ),
    Panel(
        "Far memory",
        "Memory that was paged out and has not been seen back.",
        "bytes",
        (Query("sum(hmd_far_bytes{})", "out"),),
    ),
    Panel(
        "Programs known from former runs",
        "Profiles that are kept, processes that are planned for with one, and profiles that could "
        "not be used or written.",
        "short",
        (
            Query("sum(hmd_profiles{})", "profiles"),
            Query("sum(hmd_profiled_processes{})", "processes"),
            Query("sum(increase(hmd_profiles_refused_total{}[R]))", "refused"),
        ),
    ),
    Panel(
        "Saved by profiles",
        "Stall time that moves by profiles of former runs saved, less what they cost.",
        "s",
        (Query("sum(hmd_profiles_saved_seconds{})", "saved"),),
    ),
    Panel(
        "Memory of profiles",
        "What the profiles take on disk.",
        "bytes",
        (Query("sum(hmd_profiles_bytes{})", "profiles"),),
    ),
    Panel(
        "Not attempted, by reason",
        "Planned pages that were not attempted: deferred by the budget, in backoff after a "
        "failure, already there, or in a dry run.",
        "suffix: pages/s",
        (Query("sum by (reason) (rate(hmd_unmoved_pages_total{}[R]))", "{{reason}}"),),
    ),
    Panel(
        "Failed, by reason",
        "Pages that the kernel did not move. docs/reference/metrics.md explains the reasons.",
        "suffix: pages/s",
        (Query("sum by (reason) (rate(hmd_move_failures_total{}[R]))", "{{reason}}"),),
    ),
    Panel(
        "Predicted and realised saving",
        "Stall time that recent moves were predicted to save, and saved by later samples; below "
        "zero, what demotions were predicted to cost, and cost. Seconds per second.",
        "suffix: s/s",
        (
            Query("sum(rate(hmd_predicted_saving_seconds_total{}[R]))", "predicted saving"),
            Query("sum(rate(hmd_realised_saving_seconds_total{}[R]))", "realised saving"),
            Query("sum(rate(hmd_predicted_loss_seconds_total{}[R]))", "predicted loss"),
            Query("sum(rate(hmd_realised_loss_seconds_total{}[R]))", "realised loss"),
        ),
        below="/ loss$/",
    ),
    Panel(
        "Ping-pong",
        "Share of moved pages that moved back within 10 ticks.",
        "percentunit",
        (
            Query(
                "4096 * sum(rate(hmd_ping_pong_pages_total{}[R])) / "
                "(sum(rate(hmd_moved_bytes_total{}[R])) > 0 or vector(1))",
                "moved back",
            ),
        ),
    ),
]
