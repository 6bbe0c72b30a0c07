"""The daemon itself: version, cost, configuration."""

from __future__ import annotations

from typing import Final

from hmd.observe.metric_family import counter, gauge, of

FAMILIES: Final = (
    gauge("hmd_build_info", "", "Version of hmd.", lambda now: {(now.version,): 1}, "version"),
    gauge("hmd_policy_info", "", "Policy in force.", lambda now: {(now.policy,): 1}, "policy"),
    gauge(
        "hmd_start_time_seconds",
        "seconds",
        "Unix time at which the daemon started.",
        of(lambda now: now.started_s),
    ),
    counter(
        "hmd_cpu_seconds",
        "seconds",
        "CPU time of the daemon since it was ready, all threads.",
        of(lambda now: now.cpu_s),
    ),
    gauge(
        "hmd_cpu_quota_ratio",
        "ratio",
        "Share of one CPU that hmd may use (sample: cpu_quota).",
        of(lambda now: now.cpu_quota),
    ),
    gauge(
        "hmd_resident_memory_bytes",
        "bytes",
        "Resident memory of the daemon.",
        of(lambda now: now.resident_bytes),
    ),
    gauge(
        "hmd_config_last_reload_successful",
        "",
        "1 if the last reload of the configuration succeeded, else 0.",
        of(lambda now: float(now.reload.successful)),
    ),
    gauge(
        "hmd_config_last_reload_success_timestamp_seconds",
        "seconds",
        "Unix time of the last successful load of the configuration.",
        of(lambda now: now.reload.success_s),
    ),
    gauge(
        "hmd_dry_run",
        "",
        "1 in a dry run: moves are planned, not executed.",
        of(lambda now: float(now.dry_run)),
    ),
)
