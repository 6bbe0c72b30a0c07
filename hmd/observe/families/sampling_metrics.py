"""The sampler: period, samples and losses."""

from __future__ import annotations

from typing import Final

from hmd.observe.metric_family import counter, gauge, of

FAMILIES: Final = (
    gauge(
        "hmd_sampler_info",
        "",
        "The sampler in use.",
        lambda now: {(now.sampler.name,): 1},
        "sampler",
    ),
    gauge(
        "hmd_sampler_period",
        "accesses",
        "Sampling period: accesses per sample; for DAMON the sampling interval in milliseconds.",
        of(lambda now: now.sampler.period),
    ),
    gauge(
        "hmd_sampler_period_shortest",
        "accesses",
        "Shortest period that the CPU quota may set.",
        of(lambda now: now.sampler.shortest),
    ),
    gauge(
        "hmd_sampler_period_longest",
        "accesses",
        "Longest period that the CPU quota may set.",
        of(lambda now: now.sampler.longest),
    ),
    counter(
        "hmd_sampler_cpu_seconds",
        "seconds",
        "CPU time of kernel threads that sample for hmd (kdamond), not in hmd_cpu_seconds_total.",
        of(lambda now: now.sampler.outside_cpu_s),
    ),
    counter(
        "hmd_samples",
        "samples",
        "Samples of processes of targets.",
        of(lambda now: now.sampler.stats.samples),
    ),
    counter(
        "hmd_samples_lost",
        "samples",
        "Samples lost because a ring was full.",
        of(lambda now: now.sampler.stats.lost),
    ),
    counter(
        "hmd_samples_dropped",
        "samples",
        "Samples of other programs or of the kernel.",
        of(lambda now: now.sampler.stats.dropped),
    ),
    counter(
        "hmd_sampler_corrupt_records",
        "records",
        "Records from the kernel that could not be parsed.",
        of(lambda now: now.sampler.stats.corrupt),
    ),
    counter(
        "hmd_sampler_throttles",
        "times",
        "Times that the kernel throttled sampling (PERF_RECORD_THROTTLE).",
        of(lambda now: now.sampler.stats.throttled),
    ),
    counter(
        "hmd_sampler_wakeups",
        "reads",
        "Reads of the sampler that returned samples.",
        of(lambda now: now.sampler.stats.wakeups),
    ),
)
