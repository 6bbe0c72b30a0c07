"""The CPU budget: what CPU time went to, and what gives way to keep sample.cpu_quota."""

from __future__ import annotations

from typing import Final

from hmd.observe.metric_family import counter, gauge, of

FAMILIES: Final = (
    counter(
        "hmd_budget_cpu_seconds",
        "seconds",
        "CPU time by kind of work. samples: reading and counting them, kernel threads included; "
        "sweep: where pages are; discovery: scans for processes; other: admin requests, the loop. "
        "Threads that answer clients are in none.",
        lambda now: {(work.value,): spent_s for work, spent_s in now.budget.cpu_s.items()},
        "work",
    ),
    gauge(
        "hmd_budget_owed_seconds",
        "seconds",
        "CPU time used beyond the quota and not yet made up for; negative: saved for a burst.",
        of(lambda now: now.budget.owed_s),
    ),
    gauge(
        "hmd_budget_tick_stretch_ratio",
        "ratio",
        "Interval between ticks now over the configured one; 1 unless the quota requires more.",
        of(lambda now: now.budget.stretch),
    ),
    gauge(
        "hmd_budget_plan_interval_ticks",
        "ticks",
        "Ticks per plan now; 1 unless the quota requires more.",
        of(lambda now: now.budget.plan_ticks),
    ),
    counter(
        "hmd_budget_delayed_plans",
        "plans",
        "Ticks whose plan waited until the CPU time of earlier moves was made up for.",
        of(lambda now: now.budget.plans_delayed),
    ),
    gauge(
        "hmd_budget_sweep_ratio",
        "ratio",
        "Share of one CPU that sweeps may take: half of the quota, or less where the quota "
        "requires it.",
        of(lambda now: now.budget.sweep_share),
    ),
    gauge(
        "hmd_budget_discovery_interval_seconds",
        "seconds",
        "Interval between scans for processes now: rescan, or longer where the quota requires it.",
        of(lambda now: now.budget.discovery_s),
    ),
)
