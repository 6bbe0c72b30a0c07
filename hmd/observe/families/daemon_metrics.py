"""The daemon itself: what it is, what it costs, which configuration it runs."""

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
        "CPU time that the daemon used since it was ready.",
        of(lambda now: now.cpu_s),
    ),
    gauge(
        "hmd_cpu_quota_ratio",
        "ratio",
        "Share of one CPU that hmd's work for a tick is to take (sample: cpu_quota).",
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
        "1 where the last reload of the configuration succeeded.",
        of(lambda now: float(now.reload.successful)),
    ),
    gauge(
        "hmd_config_last_reload_success_timestamp_seconds",
        "seconds",
        "Unix time of the last successful (re)load of the configuration.",
        of(lambda now: now.reload.success_s),
    ),
    gauge(
        "hmd_dry_run",
        "",
        "1 where moves are decided but not made.",
        of(lambda now: float(now.dry_run)),
    ),
)
