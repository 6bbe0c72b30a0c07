"""Running a stage so that its failure costs a tick's result and never the daemon."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from hmd.errors import HmdError
from hmd.observe.tick_record import Stage

T = TypeVar("T")

TELL_AGAIN_S = 600.0
MAX_KINDS = 100


class Guard:
    """Times stages and catches what they raise; one for each daemon.

    ``seconds`` and ``failed`` are of the tick since ``begin``.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.perf_counter) -> None:
        """Tell of failures to ``log``, of each kind once in ``TELL_AGAIN_S``."""
        self._log, self._clock = log, clock
        self._told: dict[str, float] = {}
        self.seconds: dict[Stage, float] = {}
        self.failed: set[Stage] = set()

    def begin(self) -> None:
        """Start a tick."""
        self.seconds, self.failed = {}, set()

    def run(self, stage: Stage, work: Callable[[], T], otherwise: T) -> T:
        """Return what ``work`` returns, or ``otherwise`` where it raises."""
        begun_s = self._clock()
        try:
            return work()
        except Exception as error:
            self.failed.add(stage)
            self._tell(stage, error)
            return otherwise
        finally:
            spent_s = self._clock() - begun_s
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent_s

    def _tell(self, stage: Stage, error: Exception) -> None:
        line = f"{stage.value}: {type(error).__name__}: {error}"
        now_s = self._clock()
        if now_s - self._told.get(line, float("-inf")) < TELL_AGAIN_S:
            return
        if len(self._told) >= MAX_KINDS:
            self._told.clear()
        self._told[line] = now_s
        if isinstance(error, HmdError):
            self._log.error("%s: %s", stage.value, error)
        else:
            # Not expected: the trace is for whoever mends it.
            self._log.error("%s failed, the daemon goes on", stage.value, exc_info=error)
