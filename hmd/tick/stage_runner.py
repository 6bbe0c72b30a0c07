# SPDX-License-Identifier: MIT
"""Running the stages of a tick: each timed, and for the daemon each isolated from the others.

A :class:`StageTimer` only takes time, so that an error ends the caller (the simulator, a bench). A
:class:`StageRunner` also catches what a stage raises: the failure costs the result of one tick and
never the daemon.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from hmd.base.errors import HmdError
from hmd.metrics.status import Stage, Work

T = TypeVar("T")

REPEAT_S: Final = 600.0
"""The same error of the same stage is logged once in this many seconds."""

MAX_ERRORS: Final = 100
"""Distinct errors whose time is remembered."""

_WORK_OF_STAGE: Final = {
    Stage.DECIDE: Work.DECIDE,
    Stage.MIGRATE: Work.MIGRATE,
    Stage.OBSERVE: Work.OBSERVE,
}


class StageTimer:
    """Times stages; what they raise passes.

    ``seconds`` by stage, ``cpu_s`` by kind of work (CPU time of this thread) and ``failed`` are
    those of the tick since ``begin``.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Start a tick."""
        self.seconds: dict[Stage, float] = {}
        self.cpu_s: dict[Work, float] = {}
        self.failed: set[Stage] = set()

    def run(self, stage: Stage, step: Callable[[], T], default: T, work: Work | None = None) -> T:
        """Return the result of a step of a stage; ``default`` is for runners that catch errors.

        Its CPU time is counted as ``work``, by default the stage's own.
        """
        del default
        work = work or _WORK_OF_STAGE.get(stage, Work.OTHER)
        begun_s, begun_cpu_s = self._clock(), time.thread_time()
        try:
            return step()
        finally:
            spent_s, cpu_s = self._clock() - begun_s, time.thread_time() - begun_cpu_s
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent_s
            self.cpu_s[work] = self.cpu_s.get(work, 0.0) + cpu_s


class StageRunner(StageTimer):
    """Times stages and catches what they raise; one for each daemon."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.perf_counter) -> None:
        """Log failures to ``log``, each distinct one once in ``REPEAT_S``."""
        super().__init__(clock)
        self._log = log
        self._logged_s: dict[str, float] = {}

    def run(self, stage: Stage, step: Callable[[], T], default: T, work: Work | None = None) -> T:
        """Return the result of a step of a stage, or ``default`` where it raises."""
        try:
            return super().run(stage, step, default, work)
        except Exception as error:
            self.failed.add(stage)
            self._log_error(stage, error)
            return default

    def _log_error(self, stage: Stage, error: Exception) -> None:
        line = f"{stage.value}: {type(error).__name__}: {error}"
        now_s = self._clock()
        if now_s - self._logged_s.get(line, float("-inf")) < REPEAT_S:
            return
        if len(self._logged_s) >= MAX_ERRORS:
            self._logged_s.clear()
        self._logged_s[line] = now_s
        if isinstance(error, HmdError):
            self._log.error("%s: %s", stage.value, error)
        else:
            # A bug: the traceback is for its report.
            self._log.error("%s failed, the daemon goes on", stage.value, exc_info=error)
