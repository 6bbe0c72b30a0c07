"""One thing found out about the machine, for ``hmd doctor`` and for the daemon's start-up log."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters: hmd works, works less well, or cannot work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """What was looked at, what it is now, why it matters, and the command that changes it.

    ``action`` is empty where there is nothing to do.
    """

    name: str
    level: Severity
    state: str
    why: str = ""
    action: str = ""
