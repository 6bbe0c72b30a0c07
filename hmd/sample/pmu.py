"""Sampling with the CPU's own PMU: PEBS on Intel, IBS on AMD.

There is one event per CPU for all processes (:mod:`hmd.sample.perf_control`). Periods are fixed,
and samples have no timestamps unless requested, because the kernel then empties a PEBS buffer once
for many samples; TIME costs an interrupt per sample (LARGE_PEBS_FLAGS in
arch/x86/events/perf_event.h).

For pairs, a second counter with another period counts loads, on all CPUs or on none. If counters
are missing, there are no pairs, and ``detail`` states the reason.

An idle machine costs nothing. A sample costs its program about 0.3 µs and the daemon some tens of
nanoseconds, so the period determines the overhead of both.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hmd.errors import UnavailableError
from hmd.machine.process_id import PROC
from hmd.machine.procfs import parse_ids, read_text
from hmd.sample.access_batch import Kind
from hmd.sample.capabilities import CAPABILITIES
from hmd.sample.cpu_model import read_cpu_model
from hmd.sample.memory_events import EventChoice, EventSpec, choose_events, event_period
from hmd.sample.perf_control import PerfControl
from hmd.sample.perf_events import (
    EventRing,
    PerfError,
    PerfEvent,
    open_rings,
    ring_pages_within,
)
from hmd.sample.perf_ring import SampleType
from hmd.sample.period_control import PRIMES, clamp, partner
from hmd.sample.pid_attribution import TrackedPids
from hmd.sample.record_cost import IBS_RECORD, PEBS_RECORD, RecordCost
from hmd.sample.ring_sampler import RingSampler

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
    *,
    timestamps: bool = False,
    pairs: bool = False,
) -> RingSampler:
    """Return a sampler of loads and stores; ``period`` (1009) is in loads, by IBS in 16 ops.

    If stores cannot be sampled in addition to loads, only loads are; the sampler's ``detail``
    states which. ``timestamps``: samples have a time. ``pairs``: a second counter samples loads,
    if there is one.
    Raises MissingError without a suitable PMU, PerfError if perf refuses the events.
    """
    specs = choose_events(choice, sysfs, proc)
    sample_type = _SAMPLE_TYPE | SampleType.TIME if timestamps else _SAMPLE_TYPE
    period = clamp(period or START_PERIOD, PRIMES)
    online = parse_ids(read_text(sysfs / "devices/system/cpu/online"))
    loads = sum(spec.kind is Kind.LOAD for spec in specs) if pairs else 0
    ring_pages = ring_pages_within(len(online) * (len(specs) + loads), ring_pages)
    opened = _open_all(specs, period, online, ring_pages, sample_type)
    seconds, note = _open_seconds(opened, partner(period)) if pairs else ((), "")
    rings = [ring for event in opened for ring in event.rings]
    scales = [event.spec.period_scale for event in opened for _ in event.rings]
    names = [
        f"{event.spec.name} twice" if seconds and event.spec.twice else event.spec.name
        for event in opened
    ]
    return RingSampler(
        "pmu",
        f"{' and '.join(names)} on {len(online)} CPUs{note}",
        [*rings, *seconds],
        PerfControl(
            rings,
            scales,
            seconds,
            _record_cost(specs).seconds(buffered=not timestamps),
            thins_stores=not timestamps,
        ),
        TrackedPids(proc),
        capabilities=CAPABILITIES["pmu"],
        period=period,
        ladder=PRIMES,
        ns_per_weight=read_cpu_model(proc).ns_per_cycle,
        pairs=bool(seconds),
    )


def _record_cost(specs: Sequence[EventSpec]) -> RecordCost:
    return IBS_RECORD if any(spec.name.startswith("ibs") for spec in specs) else PEBS_RECORD


@dataclass(frozen=True, slots=True)
class _Opened:
    """An event and its rings, one a CPU."""

    spec: EventSpec
    rings: list[EventRing]


def _open_all(
    specs: Sequence[EventSpec],
    period: int,
    online: Sequence[int],
    pages: int,
    sample_type: SampleType,
) -> list[_Opened]:
    """Open the first event, and of the others those that the PMU has."""
    opened: list[_Opened] = []
    try:
        for spec in specs:
            try:
                rings = _open(spec, period, online, pages, sample_type)
            except PerfError as error:
                lacking = (errno.EINVAL, errno.ENOENT, errno.EOPNOTSUPP)
                if not opened or error.errno not in lacking:
                    raise
                continue
            opened.append(_Opened(spec, rings))
    except UnavailableError:
        _close(ring for event in opened for ring in event.rings)
        raise
    return opened


def _open_seconds(opened: Sequence[_Opened], period: int) -> tuple[tuple[EventRing, ...], str]:
    """Open loads' second counters, all or none; where none, say why.

    That nothing but pairs is missing is no reason not to sample.
    """
    loads = [event for event in opened if event.spec.kind is Kind.LOAD]
    single = [event.spec.name for event in loads if not event.spec.twice]
    if single:
        return (), f", without pairs: a CPU has one counter for {single[0]}"
    seconds: list[EventRing] = []
    try:
        for event in loads:
            for ring in event.rings:
                seconds.append(ring.second(period, event.spec.name))
    except PerfError as error:
        _close(seconds)
        return (), f", without pairs: {error}"
    return tuple(seconds), ""


def _close(rings: Iterable[EventRing]) -> None:
    for ring in rings:
        ring.close()


def _open(
    spec: EventSpec, period: int, online: Sequence[int], pages: int, sample_type: SampleType
) -> list[EventRing]:
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
        period=event_period(spec.kind, period, spec.period_scale),
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
