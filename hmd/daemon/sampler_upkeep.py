"""The sampler over the life of the daemon: opened again when another may see more.

A sampler has a ring per CPU that was online when it was opened. One that fails tick after tick may
work when it is opened again. And with ``sampler: auto``, a better one may have been busy, or memory
or descriptors short, when the daemon started.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from hmd.daemon import stage_settings
from hmd.daemon.log import OnceLogger
from hmd.daemon.stages import Stages
from hmd.errors import HmdError
from hmd.machine.cpu_watch import CpuWatch
from hmd.sample.auto_select import Chosen, open_sampler

RETRY_S: Final = 60.0
"""Time between two attempts to open a sampler again."""
FAILED_TICKS: Final = 5
"""Ticks in a row whose samples could not be read, after which the sampler is opened again."""


class SamplerUpkeep:
    """Decides when the sampler is opened again."""

    def __init__(self, log: logging.Logger, sysfs: Path) -> None:
        """Start with the CPUs that are online now."""
        self._log, self._warnings = log, OnceLogger(log)
        self._cpus = CpuWatch(sysfs)
        self._failed_ticks = 0
        self._renew = False
        self._next_s: float | None = None

    def ticked(self, *, failed: bool) -> None:
        """Count a tick; ``failed``: its samples could not be read."""
        self._failed_ticks = self._failed_ticks + 1 if failed else 0

    def reopened(self, stages: Stages, now_s: float) -> Chosen | None:
        """Return another sampler for the stages, open and owned by the caller; None to go on.

        At once after a change of CPUs, else once in ``RETRY_S`` where there is a reason.
        """
        changed = self._cpus.changed()
        self._renew |= changed or self._failed_ticks >= FAILED_TICKS
        if self._next_s is None:
            self._next_s = now_s + RETRY_S
        due = (self._renew or stages.better_later) and now_s >= self._next_s
        if not (changed or due):
            return None
        self._next_s = now_s + RETRY_S
        try:
            found = self._open(stages)
        except HmdError as error:
            self._warnings.warn(f"the sampler {stages.sampler.name} stays: {error}")
            return None
        self._renew, self._failed_ticks = False, 0
        if found.sampler is stages.sampler:
            return None
        self._log.info("sampler opened again: %s", found.reason)
        return found

    def _open(self, stages: Stages) -> Chosen:
        settings = stage_settings.sample_settings(stages.config)
        better_than = None if self._renew else stages.sampler.name
        return open_sampler(settings, stages.proc, stages.sysfs, stages.sampler, better_than)
