"""One property of the machine that matters to hmd, for ``hmd doctor`` and the start-up log."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """The consequence: hmd works, works less well, or cannot work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """The property, its state, why it matters, and the command that changes it.

    ``action`` is empty where there is nothing to do.
    """

    name: str
    level: Severity
    state: str
    why: str = ""
    action: str = ""
