"""Sampling with the CPU's own PMU: PEBS on Intel, IBS on AMD.

One event per CPU for all processes (``PerfControl`` says why). Sampling is with fixed periods
and, unless they are asked for, without timestamps, because a PEBS buffer is then emptied once for
many samples; TIME costs an interrupt a sample (LARGE_PEBS_FLAGS in arch/x86/events/perf_event.h).

An idle machine costs nothing; a sample costs its program about 0.3 µs and the daemon some tens
of nanoseconds, so that the period (``period``) sets the overhead of both.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from hmd.errors import MissingError
from hmd.machine.process import PROC
from hmd.machine.pseudofile import parse_ids, read_text
from hmd.sample.cpu_model import read_cpu_model
from hmd.sample.events import EventChoice, EventSpec, choose_events
from hmd.sample.perf import PerfControl, PerfError, PerfEvent, PerfRing, open_rings
from hmd.sample.period import PRIMES
from hmd.sample.ring import SampleType
from hmd.sample.ring_sampler import RingSampler
from hmd.sample.tracked import TrackedPids

RING_PAGES = 64
"""Data pages of a ring: 256 KiB hold about 4600 samples between two reads."""
START_PERIOD = 1009

_SAMPLE_TYPE = (
    SampleType.IP
    | SampleType.TID
    | SampleType.ADDR
    | SampleType.CPU
    | SampleType.PERIOD
    | SampleType.WEIGHT
    | SampleType.DATA_SRC
)


def open_pmu(
    choice: EventChoice,
    period: int | None = None,
    proc: Path = PROC,
    sysfs: Path = Path("/sys"),
    ring_pages: int = RING_PAGES,
    timestamps: bool = False,
) -> RingSampler:
    """Return a sampler of loads and stores; ``period`` (1009) is in loads, by IBS in 16 ops.

    Where stores cannot be sampled beside loads, loads alone are; the sampler's ``detail`` says
    what is. ``timestamps``: samples have their time. Raises MissingError where there is no PMU for
    it, or no permission.
    """
    specs = choose_events(choice, sysfs, proc)
    sample_type = _SAMPLE_TYPE | SampleType.TIME if timestamps else _SAMPLE_TYPE
    period = min(max(period or START_PERIOD, PRIMES[0]), PRIMES[-1])
    online = parse_ids(read_text(sysfs / "devices/system/cpu/online"))
    rings: list[PerfRing] = []
    scales: list[int] = []
    opened: list[str] = []
    try:
        for spec in specs:
            try:
                new = _open(spec, period, online, ring_pages, sample_type)
            except PerfError as error:
                if not rings or error.errno not in (errno.EINVAL, errno.ENOENT, errno.EOPNOTSUPP):
                    raise
                continue
            rings += new
            scales += [spec.period_scale] * len(new)
            opened.append(spec.name)
    except MissingError:
        for ring in rings:
            ring.close()
        raise
    return RingSampler(
        "pmu",
        f"{' and '.join(opened)} on {len(online)} CPUs",
        rings,
        PerfControl(rings, scales),
        TrackedPids(proc),
        period=period,
        ladder=PRIMES,
        ns_per_weight=read_cpu_model(proc).ns_per_cycle,
    )


def _open(
    spec: EventSpec, period: int, online: Sequence[int], pages: int, sample_type: SampleType
) -> list[PerfRing]:
    """Open the event on its CPUs, with the highest precision that the kernel grants."""
    cpus = online if spec.cpus is None else [cpu for cpu in spec.cpus if cpu in online]
    levels = spec.precise or (0,)
    for level in levels:
        try:
            return open_rings(
                _event(spec, period, level, sample_type),
                spec.kind,
                cpus,
                pages,
                leader=_leader(spec),
                what=spec.name,
            )
        except PerfError as error:
            if level == levels[-1] or error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
    raise AssertionError("unreachable: the last level returns or raises")


def _event(spec: EventSpec, period: int, precise_ip: int, sample_type: SampleType) -> PerfEvent:
    return PerfEvent(
        type=spec.type,
        config=spec.words.config,
        config1=spec.words.config1,
        config2=spec.words.config2,
        precise_ip=precise_ip,
        sample_type=sample_type,
        period=period * spec.period_scale,
        exclude_kernel=spec.exclude_kernel,
    )


def _leader(spec: EventSpec) -> PerfEvent | None:
    if spec.leader is None:
        return None
    return PerfEvent(
        type=spec.type,
        config=spec.leader.config,
        config1=spec.leader.config1,
        config2=spec.leader.config2,
        exclude_kernel=spec.exclude_kernel,
    )
