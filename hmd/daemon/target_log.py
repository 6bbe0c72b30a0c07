"""Log lines of processes that join or leave targets, at a bounded rate.

A target that forks all the time has more processes than a log has room for.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from hmd.machine.process_id import ProcessId

PERIOD_S: Final = 60.0
MAX_LINES: Final = 16
"""Processes that are logged one by one in each ``PERIOD_S``; the others as a number, once."""


class TargetLog:
    """Logs which processes targets have gained and lost."""

    def __init__(self, log: logging.Logger) -> None:
        """Log to ``log``."""
        self._log = log
        self._begun_s = float("-inf")
        self._lines = 0
        self._others = {"following": 0, "left": 0}

    def changed(
        self, before: Mapping[ProcessId, str], after: Mapping[ProcessId, str], now_s: float
    ) -> None:
        """Log the difference between two sets of processes with the names of their targets."""
        self.summarise(now_s)
        for verb, some, others in (("following", after, before), ("left", before, after)):
            for process, name in some.items():
                if others.get(process) == name:
                    continue
                if self._lines < MAX_LINES:
                    self._lines += 1
                    self._log.info("target %s: %s pid %d", name, verb, process.pid)
                else:
                    self._others[verb] += 1

    def summarise(self, now_s: float) -> None:
        """Log, at the end of a period, how many processes have no line of their own in it."""
        if now_s - self._begun_s < PERIOD_S:
            return
        self._begun_s, self._lines = now_s, 0
        for verb, count in self._others.items():
            if count:
                self._log.info("%s %d more processes", verb, count)
                self._others[verb] = 0
