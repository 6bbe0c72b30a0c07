"""Log lines on stderr: with syslog priorities for the journal, with time and level elsewhere."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import TextIO

LEVELS = ("debug", "info", "warning", "error")

_PRIORITY = {
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
        """Log to ``log``."""
        self._log = log
        self._logged: set[str] = set()

    def warn(self, message: str) -> None:
        """Log a warning unless the same text was logged before."""
        if message not in self._logged:
            self._logged.add(message)
            self._log.warning("%s", message)
