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
        "Shortest period that cpu_quota and overhead may set.",
        of(lambda now: now.sampler.shortest),
    ),
    gauge(
        "hmd_sampler_period_longest",
        "accesses",
        "Longest period that cpu_quota and overhead may set.",
        of(lambda now: now.sampler.longest),
    ),
    counter(
        "hmd_sampler_cpu_seconds",
        "seconds",
        "CPU time of kernel threads that sample for hmd (kdamond), not in hmd_cpu_seconds_total.",
        of(lambda now: now.sampler.outside_cpu_s),
    ),
    gauge(
        "hmd_sampler_overhead_ratio",
        "ratio",
        "Share of a CPU that records of samples took of its programs in the last tick, on the CPU "
        "with most of them.",
        of(lambda now: now.budget.overhead),
    ),
    gauge(
        "hmd_sampler_overhead_limit_ratio",
        "ratio",
        "Most of it (sample: overhead), unless the period is set.",
        of(lambda now: now.overhead_limit),
    ),
    counter(
        "hmd_sampler_records",
        "records",
        "Records of samples on programs' CPUs, lost ones and those of other programs included.",
        of(lambda now: now.sampler.stats.records),
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
