# SPDX-License-Identifier: MIT
"""The daemon's log on stderr: syslog priorities for the journal, time and level elsewhere.

Lines that may repeat are bounded: warnings are logged once, and processes that join or leave
targets at a bounded rate, since a target that forks all the time has too many for a log.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import Final, TextIO

from hmd.linux.procfs import ProcessId

PERIOD_S: Final = 60.0
MAX_LINES: Final = 16
"""Processes that are logged one by one in each ``PERIOD_S``; the others as a number, once."""

_PRIORITY: Final = {
    logging.DEBUG: 7,
    logging.INFO: 6,
    logging.WARNING: 4,
    logging.ERROR: 3,
    logging.CRITICAL: 2,
}


class JournalFormatter(logging.Formatter):
    """``<4>message``: the journal takes the priority from the prefix (sd-daemon(3))."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record with a prefix on each of its lines."""
        prefix = f"<{_PRIORITY.get(record.levelno, 5)}>"
        return "\n".join(prefix + line for line in super().format(record).splitlines())


class TextFormatter(logging.Formatter):
    """``12:34:56 warning: message``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record with time and level."""
        time = self.formatTime(record, "%H:%M:%S")
        return f"{time} {record.levelname.lower()}: {super().format(record)}"


def goes_to_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return True where the stream is the one that JOURNAL_STREAM names by device and inode."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def start_log(
    level: str, stream: TextIO = sys.stderr, environ: Mapping[str, str] = os.environ
) -> None:
    """Send hmd's log lines of ``level`` and above to ``stream``; replaces an earlier start."""
    journal = goes_to_journal(stream, environ)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JournalFormatter() if journal else TextFormatter())
    log = logging.getLogger("hmd")
    log.handlers[:] = [handler]
    log.setLevel(level.upper())
    log.propagate = False


class OnceLogger:
    """Logs each distinct warning once."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._logged: set[str] = set()

    def warn(self, message: str) -> None:
        """Log a warning unless the same text was logged before."""
        if message not in self._logged:
            self._logged.add(message)
            self._log.warning("%s", message)


class TargetLog:
    """Logs which processes targets have gained and lost."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._begun_s = float("-inf")
        self._lines = 0
        self._others = {"following": 0, "left": 0}

    def log_changes(
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
