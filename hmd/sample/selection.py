# SPDX-License-Identifier: MIT
"""Selection of a sampler: the best that works on this machine, or the configured one.

hmd tries samplers by opening them, because only that shows whether the kernel, the hardware and the
privileges suffice, and proves each on a child of known accesses (``hmd.sample.self_test``), which
takes some 0.2 s: what opens may still show nothing.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from hmd.base.errors import (
    Exit,
    MissingError,
    NotPermittedError,
    TransientError,
    UnavailableError,
    is_transient,
)
from hmd.base.units import PAGE_BYTES, PAGE_SIZE_VARIABLE
from hmd.linux.damon import Kdamonds, stop_left_behind
from hmd.linux.damon import holder as damon_holder
from hmd.linux.emulator_memory import find_device
from hmd.linux.procfs import PROC, SYSFS
from hmd.sample.sampler import (
    SAMPLERS,
    SampleOpener,
    Sampler,
    SamplerName,
    SampleSettings,
)
from hmd.sample.self_test import prove


@dataclass(frozen=True, slots=True)
class OpenedSampler:
    """An open sampler and why; ``better_later``: a better one may open once a reason has passed."""

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
) -> OpenedSampler:
    """Return the configured sampler, or with "auto" the first that works.

    With "auto" and ``better_than``, only those are tried that come before the one of that name.
    ``before`` is an open sampler, which the caller closes unless it is returned: some are
    exclusive. A kdamond that a killed hmd left running is stopped. A configured sampler that fails
    its self-test is taken, and the reason says what failed. Raises UnavailableError with what the
    configured sampler lacks, or with "auto" what each of them lacks; TransientError if one of them
    may work later, NotPermittedError if more privileges would make one of them work.
    """
    if mmap.PAGESIZE != PAGE_BYTES:
        raise MissingError(
            f"{PAGE_SIZE_VARIABLE} is for traces of other machines: unset it to sample this one"
        )
    stop_left_behind(Kdamonds(sysfs))
    if settings.sampler != "auto":
        sampler = find_opener(settings.sampler, before)(settings, proc, sysfs)
        try:
            tested = "" if sampler is before else f", {prove(sampler, proc)}"
        except UnavailableError as error:
            tested = f", which is doubtful: {error}"
        return OpenedSampler(sampler, f"sampling {sampler.detail}{tested} (as configured)")
    refusals: list[UnavailableError] = []
    for name, entry in SAMPLERS.items():
        able = entry.capabilities
        if able.modelled_clock and find_device(sysfs) is None:
            continue  # not a reason worth reporting
        if name == better_than:
            break
        try:
            sampler, tested = _open_proved(name, settings, proc, sysfs, before)
        except UnavailableError as error:
            refusals.append(error)
            continue
        # On the emulated machine the absence of another PMU is not worth reporting.
        reasons = "; ".join(map(str, refusals)) if not able.modelled_clock else ""
        why = f", because: {reasons}" if reasons else ""
        better_later = any(map(is_transient, refusals))
        return OpenedSampler(sampler, f"sampling {sampler.detail}{tested}{why}", better_later)
    kind: type[UnavailableError] = MissingError
    if any(map(is_transient, refusals)):
        kind = TransientError
    elif any(error.exit_code is Exit.NOT_PERMITTED for error in refusals):
        kind = NotPermittedError
    raise kind(f"nothing to sample accesses with: {'; '.join(map(str, refusals))}")


def _open_proved(
    name: SamplerName,
    settings: SampleSettings,
    proc: Path,
    sysfs: Path,
    before: Sampler | None,
    *,
    modelled: bool = False,
) -> tuple[Sampler, str]:
    """Open a sampler that passes its self-test, or is ``before``; say what the test showed."""
    sampler = find_opener(name, before)(settings, proc, sysfs)
    if sampler is before:
        return sampler, ""
    try:
        return sampler, f", {prove(sampler, proc, modelled=modelled)}"
    except BaseException:
        sampler.close()
        raise


def list_availability(
    settings: SampleSettings, proc: Path = PROC, sysfs: Path = SYSFS
) -> tuple[Availability, ...]:
    """Return the ``check_availability`` of each sampler, best first."""
    return tuple(check_availability(name, settings, proc, sysfs) for name in SAMPLERS)


def check_availability(
    name: SamplerName, settings: SampleSettings, proc: Path = PROC, sysfs: Path = SYSFS
) -> Availability:
    """Open, test and close a sampler, and say whether it works; DAMON in use is not opened."""
    entry = SAMPLERS[name]
    holder = damon_holder(Kdamonds(sysfs)) if entry.capabilities.exclusive else None
    if holder is not None:
        state = "left running by a killed hmd" if holder.left else "in use by hmd"
        return Availability(name, True, f"{entry.source} ({state}, pid {holder.pid})")
    try:
        sampler, tested = _open_proved(name, settings, proc, sysfs, None, modelled=True)
    except UnavailableError as error:
        return Availability(name, False, str(error))
    sampler.close()
    return Availability(name, True, f"{sampler.detail}{tested}")


def find_opener(name: SamplerName, before: Sampler | None = None) -> SampleOpener:
    """Return the function that opens a sampler; ``before`` is the one that is open now."""
    entry = SAMPLERS[name]
    module, _, function = entry.opener.partition(":")
    opener: SampleOpener = getattr(import_module(module), function)
    return partial(opener, before=before) if entry.capabilities.exclusive else opener
