"""The demotion of page cache over the life of the daemon: opened, followed, and closed again.

Opened where the configuration asks for headroom and DAMON is free; what prevents it is logged once,
and tried again after a while.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Final

from hmd.daemon import stage_settings
from hmd.daemon.log import OnceLogger
from hmd.daemon.stages import Stages
from hmd.errors import HmdError, MissingError
from hmd.machine.damon.damon_ownership import NOTE
from hmd.migrate.cache_demotion import CacheDemotion

RETRY_S: Final = 60.0
"""Time between two attempts to claim DAMON."""


class CacheUpkeep:
    """Owns the ``CacheDemotion`` that the stages' configuration asks for, if any."""

    def __init__(self, log: logging.Logger, note: Path = NOTE) -> None:
        """Log to ``log``; ``note`` is the file of the claim to DAMON."""
        self._warnings, self._note = OnceLogger(log), note
        self._demotion: CacheDemotion | None = None
        self._used: object = None
        self._next_s = float("-inf")
        self._past_cpu_s = 0.0

    @property
    def active(self) -> frozenset[int]:
        """Nodes whose unused page cache is being demoted."""
        return self._demotion.active if self._demotion else frozenset()

    @property
    def cpu_s(self) -> float:
        """CPU time of the kernel's threads so far, in seconds."""
        return self._past_cpu_s + (self._demotion.cpu_s if self._demotion else 0.0)

    def follow(self, stages: Stages, now_s: float) -> None:
        """Adapt to the configuration, the nodes and their free memory."""
        wanted = stage_settings.cache_settings(stages.config)
        if wanted is None or stages.topology.one_tier:
            self.close()
            return
        if (wanted, stages.topology.tiers) != self._used:
            self.close()
            self._used, self._next_s = (wanted, stages.topology.tiers), float("-inf")
        try:
            if self._demotion is None and now_s >= self._next_s:
                self._next_s = now_s + RETRY_S
                if stages.sampler.capabilities.exclusive:
                    raise MissingError("DAMON is in use by the sampler")
                self._demotion = CacheDemotion(
                    wanted, stages.topology, stages.proc, stages.sysfs, self._note
                )
            if self._demotion is not None:
                self._demotion.follow(paused=stages.admin.paused)
        except HmdError as error:
            self._warnings.warn(f"migrate.cache_headroom has no effect: {error}")
            self.close()

    def close(self) -> None:
        """Stop demoting, and give DAMON back."""
        demotion, self._demotion = self._demotion, None
        if demotion is not None:
            self._past_cpu_s += demotion.cpu_s
            with suppress(HmdError):  # taken by another program
                demotion.close()
