"""Which sampler: the best that works here, or the one that was asked for.

Takes settings and the machine; gives an open sampler and the reason in a line, for the log and
for people. Samplers are tried by opening them, because nothing else tells whether the kernel,
the hardware and our privileges agree. In order: the CPU's PMU, the emulated machine's, page
faults. Costs a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from hmd.errors import MissingError
from hmd.machine.emulated import find_device
from hmd.machine.process import PROC
from hmd.sample.emulated import open_emulated
from hmd.sample.events import EventChoice
from hmd.sample.faults import open_faults
from hmd.sample.pmu import open_pmu
from hmd.sample.ring_sampler import RingSampler

SamplerName = Literal["pmu", "emulated", "faults"]
SYSFS = Path("/sys")


@dataclass(frozen=True, slots=True)
class SampleSettings:
    """``sampler`` auto takes the first that works; ``period`` None is the sampler's own start.

    The rest is for the PMU: see ``EventChoice``; without ``timestamps`` its samples have no time,
    and cost less. ``pairs``: loads are counted twice where that can be done, with two periods, so
    that now and then two samples are of accesses close together.
    """

    sampler: Literal["auto"] | SamplerName = "auto"
    period: int | None = None
    loads: Literal["latency", "miss"] = "latency"
    ldlat_cycles: int = 30
    stores: bool = True
    timestamps: bool = False
    pairs: bool = False


@dataclass(frozen=True, slots=True)
class Chosen:
    """An open sampler, and why it is this one."""

    sampler: RingSampler
    reason: str


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a sampler works here; ``detail`` says what it samples, or why not and what to do."""

    name: SamplerName
    works: bool
    detail: str


def open_sampler(settings: SampleSettings, proc: Path = PROC, sysfs: Path = SYSFS) -> Chosen:
    """Return the sampler that was asked for, or the first that works.

    Raises MissingError: for one asked for, what it lacks; else what the last one lacks.
    """
    refusals: list[str] = []
    openers = _openers(settings, proc, sysfs)
    if settings.sampler != "auto":
        sampler = openers[settings.sampler]()
        return Chosen(sampler, f"sampling {sampler.detail} (as configured)")
    for name, opener in openers.items():
        if name == "emulated" and find_device(sysfs) is None:
            continue  # which is no reason that anybody has to be told
        try:
            sampler = opener()
        except MissingError as error:
            refusals.append(str(error))
            continue
        # On the emulated machine nobody looks for another PMU.
        why = f", because: {'; '.join(refusals)}" if refusals and name == "faults" else ""
        return Chosen(sampler, f"sampling {sampler.detail}{why}")
    raise MissingError(f"nothing to sample accesses with: {'; '.join(refusals)}")


def available(
    settings: SampleSettings, proc: Path = PROC, sysfs: Path = SYSFS
) -> tuple[Availability, ...]:
    """Return what each sampler says when it is opened; all are closed again. Best first."""
    found: list[Availability] = []
    for name, opener in _openers(settings, proc, sysfs).items():
        try:
            sampler = opener()
        except MissingError as error:
            found.append(Availability(name, False, str(error)))
        else:
            found.append(Availability(name, True, sampler.detail))
            sampler.close()
    return tuple(found)


def _openers(
    settings: SampleSettings, proc: Path, sysfs: Path
) -> dict[SamplerName, Callable[[], RingSampler]]:
    events = EventChoice(settings.loads, settings.ldlat_cycles, settings.stores)
    return {
        "pmu": partial(
            open_pmu,
            events,
            settings.period,
            proc,
            sysfs,
            timestamps=settings.timestamps,
            pairs=settings.pairs,
        ),
        "emulated": partial(open_emulated, settings.period, proc, sysfs, pairs=settings.pairs),
        "faults": partial(open_faults, settings.period, proc, sysfs),
    }
