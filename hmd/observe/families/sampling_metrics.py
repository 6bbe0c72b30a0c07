"""Where accesses come from, how rarely they are sampled, and what is lost of them."""

from __future__ import annotations

from typing import Final

from hmd.observe.metric_family import counter, gauge, of

FAMILIES: Final = (
    gauge(
        "hmd_sampler_info",
        "",
        "Source of sampled accesses.",
        lambda now: {(now.sampler.name,): 1},
        "sampler",
    ),
    gauge(
        "hmd_sampler_period",
        "accesses",
        "How rarely is sampled: accesses that one sample stands for, with DAMON milliseconds.",
        of(lambda now: now.sampler.period),
    ),
    gauge(
        "hmd_sampler_period_shortest",
        "accesses",
        "Shortest period that the CPU quota may choose.",
        of(lambda now: now.sampler.shortest),
    ),
    gauge(
        "hmd_sampler_period_longest",
        "accesses",
        "Longest period that the CPU quota may choose.",
        of(lambda now: now.sampler.longest),
    ),
    counter(
        "hmd_sampler_cpu_seconds",
        "seconds",
        "CPU time of kernel threads that sample for hmd, beside hmd_cpu_seconds_total.",
        of(lambda now: now.sampler.outside_cpu_s),
    ),
    counter(
        "hmd_samples",
        "samples",
        "Samples taken of targets.",
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
        "Records of the kernel that made no sense.",
        of(lambda now: now.sampler.stats.corrupt),
    ),
    counter(
        "hmd_sampler_throttles",
        "times",
        "Times that the kernel throttled sampling.",
        of(lambda now: now.sampler.stats.throttled),
    ),
    counter(
        "hmd_sampler_wakeups",
        "reads",
        "Reads of the sampler that found something.",
        of(lambda now: now.sampler.stats.wakeups),
    ),
)
