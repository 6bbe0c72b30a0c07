"""Selection of a sampler: the best that works on this machine, or the configured one.

Takes settings and the machine; gives an open sampler and the reason in one line, for the log. hmd
tries samplers by opening them, because only that shows whether the kernel, the hardware and the
privileges suffice. The order is the CPU's PMU, the emulated machine's, DAMON, idle page tracking,
page faults (docs/reference/samplers.md describes what each of them observes). Soft-dirty bits are
used only if the configuration names them, since checkpointing tools use them too. Costs a few
milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from hmd.errors import (
    Exit,
    MissingError,
    NotPermittedError,
    TransientError,
    UnavailableError,
    is_transient,
)
from hmd.machine.damon.damon_ownership import holder as damon_holder
from hmd.machine.damon.damon_ownership import stop_left_behind
from hmd.machine.damon.damon_sysfs import Kdamonds
from hmd.machine.plugin_memory import find_device
from hmd.machine.process_id import PROC
from hmd.sample.capabilities import CAPABILITIES, SamplerChoice, SamplerName
from hmd.sample.damon_sampler import DETAIL as DAMON_DETAIL
from hmd.sample.damon_sampler import DamonSampler, open_damon
from hmd.sample.emulated_pebs import open_emulated
from hmd.sample.fault_sampler import open_faults
from hmd.sample.idle_pages import open_idle_pages
from hmd.sample.memory_events import EventChoice
from hmd.sample.pmu import open_pmu
from hmd.sample.sampler import Sampler
from hmd.sample.soft_dirty import open_soft_dirty

SYSFS = Path("/sys")


@dataclass(frozen=True, slots=True)
class SampleSettings:
    """``sampler`` auto selects the first that works; ``period`` None is the sampler's own default.

    The others are for the PMU, see ``EventChoice``. Without ``timestamps`` its samples have no time
    and cost less. With ``pairs``, two counters of different period count loads if the PMU has them,
    so that some samples are of accesses close together.
    """

    sampler: SamplerChoice = "auto"
    period: int | None = None
    loads: Literal["latency", "miss"] = "latency"
    ldlat_cycles: int = 30
    stores: bool = True
    timestamps: bool = False
    pairs: bool = False


@dataclass(frozen=True, slots=True)
class Chosen:
    """An open sampler and the reason for its selection.

    ``better_later``: a better one could not be opened for a reason that may pass.
    """

    sampler: Sampler
    reason: str
    better_later: bool = False


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a sampler works here; ``detail``: what it samples, or why not and what to do."""

    name: SamplerName
    works: bool
    detail: str


def open_sampler(
    settings: SampleSettings,
    proc: Path = PROC,
    sysfs: Path = SYSFS,
    before: Sampler | None = None,
    better_than: str | None = None,
) -> Chosen:
    """Return the configured sampler, or with "auto" the first that works.

    With "auto" and ``better_than``, only those are tried that come before the one of that name.

    ``before`` is an open sampler, which the caller closes unless it is returned: some are
    exclusive. A kdamond that a killed hmd left running is stopped.
    Raises UnavailableError with what the configured sampler lacks, or with "auto" what each of them
    lacks; TransientError if one of them may work later, NotPermittedError if more privileges would
    make one of them work.
    """
    stop_left_behind(Kdamonds(sysfs))
    refusals: list[UnavailableError] = []
    openers = _openers(settings, proc, sysfs, before)
    if settings.sampler != "auto":
        sampler = openers[settings.sampler]()
        return Chosen(sampler, f"sampling {sampler.detail} (as configured)")
    for name, opener in openers.items():
        able = CAPABILITIES[name]
        if not able.automatic or (able.modelled_clock and find_device(sysfs) is None):
            continue  # not a reason worth reporting
        if name == better_than:
            break
        try:
            sampler = opener()
        except UnavailableError as error:
            refusals.append(error)
            continue
        # On the emulated machine the absence of another PMU is not worth reporting.
        reasons = "; ".join(map(str, refusals)) if not able.modelled_clock else ""
        why = f", because: {reasons}" if reasons else ""
        return Chosen(sampler, f"sampling {sampler.detail}{why}", any(map(is_transient, refusals)))
    if any(map(is_transient, refusals)):
        raise TransientError(f"nothing to sample accesses with: {'; '.join(map(str, refusals))}")
    not_permitted = any(error.exit_code is Exit.NOT_PERMITTED for error in refusals)
    kind = NotPermittedError if not_permitted else MissingError
    raise kind(f"nothing to sample accesses with: {'; '.join(map(str, refusals))}")


def available(
    settings: SampleSettings, proc: Path = PROC, sysfs: Path = SYSFS
) -> tuple[Availability, ...]:
    """Open each sampler, close it again, and return what it reports. Best first.

    DAMON is not opened while another hmd uses it, or after a killed hmd left it running.
    """
    openers = _openers(settings, proc, sysfs)
    return tuple(_try(name, opener, sysfs) for name, opener in openers.items())


def availability(
    name: SamplerName, settings: SampleSettings, proc: Path = PROC, sysfs: Path = SYSFS
) -> Availability:
    """Return what ``available`` reports of one sampler, opening no other."""
    return _try(name, _openers(settings, proc, sysfs)[name], sysfs)


def _try(name: SamplerName, opener: Callable[[], Sampler], sysfs: Path) -> Availability:
    holder = damon_holder(Kdamonds(sysfs)) if CAPABILITIES[name].exclusive else None
    if holder is not None:
        state = "left running by a killed hmd" if holder.left else "in use by hmd"
        return Availability(name, True, f"{DAMON_DETAIL} ({state}, pid {holder.pid})")
    try:
        sampler = opener()
    except UnavailableError as error:
        return Availability(name, False, str(error))
    sampler.close()
    return Availability(name, True, sampler.detail)


def _openers(
    settings: SampleSettings, proc: Path, sysfs: Path, before: Sampler | None = None
) -> dict[SamplerName, Callable[[], Sampler]]:
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
        "emulated": partial(
            open_emulated,
            settings.period,
            proc,
            sysfs,
            timestamps=settings.timestamps,
            pairs=settings.pairs,
        ),
        "damon": partial(_open_damon, settings.period, proc, sysfs, before),
        "idle": partial(open_idle_pages, settings.period, proc, sysfs),
        "faults": partial(open_faults, settings.period, proc, sysfs),
        "softdirty": partial(open_soft_dirty, settings.period, proc),
    }


def _open_damon(period: int | None, proc: Path, sysfs: Path, before: Sampler | None) -> Sampler:
    """Return a DAMON sampler: the open one while it has DAMON, which has a single user.

    One that has lost it is closed: what it notes of its claim would refuse the next.
    """
    if not isinstance(before, DamonSampler):
        return open_damon(period, proc, sysfs)
    if not before.usable:
        before.close()
        return open_damon(period, proc, sysfs)
    if period is not None:
        before.set_period(period)
    return before
