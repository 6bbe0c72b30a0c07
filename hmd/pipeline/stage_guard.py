"""Running the stages of a tick: each timed, and for the daemon each isolated from the others.

A :class:`StageTimer` only takes time, so that an error ends the caller (the simulator, a bench). A
:class:`StageGuard` also catches what a stage raises: the failure costs the result of one tick and
never the daemon.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from hmd.errors import HmdError
from hmd.observe.tick_record import Stage

T = TypeVar("T")

REPEAT_S = 600.0
"""The same error of the same stage is logged once in this many seconds."""

MAX_ERRORS = 100
"""Distinct errors whose time is remembered."""


class StageTimer:
    """Times stages; what they raise passes.

    ``seconds``, ``cpu_s`` (CPU time of this thread) and ``failed`` are those of the tick since
    ``begin``.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.seconds: dict[Stage, float] = {}
        self.cpu_s: dict[Stage, float] = {}
        self.failed: set[Stage] = set()

    def begin(self) -> None:
        """Start a tick."""
        self.seconds, self.cpu_s, self.failed = {}, {}, set()

    def run(self, stage: Stage, work: Callable[[], T], otherwise: T) -> T:
        """Return the result of ``work``; ``otherwise`` is for a guard, which catches errors."""
        del otherwise
        begun_s, begun_cpu_s = self._clock(), time.thread_time()
        try:
            return work()
        finally:
            spent_s, cpu_s = self._clock() - begun_s, time.thread_time() - begun_cpu_s
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent_s
            self.cpu_s[stage] = self.cpu_s.get(stage, 0.0) + cpu_s


class StageGuard(StageTimer):
    """Times stages and catches what they raise; one for each daemon."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.perf_counter) -> None:
        """Log failures to ``log``, each distinct one once in ``REPEAT_S``."""
        super().__init__(clock)
        self._log = log
        self._logged_s: dict[str, float] = {}

    def run(self, stage: Stage, work: Callable[[], T], otherwise: T) -> T:
        """Return the result of ``work``, or ``otherwise`` where it raises."""
        try:
            return super().run(stage, work, otherwise)
        except Exception as error:
            self.failed.add(stage)
            self._log_error(stage, error)
            return otherwise

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
