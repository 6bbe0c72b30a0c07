"""A case of the comparison: a program of the suite, the ratio of fast to slow memory, a system."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from hmd.errors import ConfigError

RATIOS = ("1:2", "1:8", "1:16")
"""Fast to slow memory, both together as large as the program (as in Lee et al., MEMTIS, SOSP '23):
the fast tier has a third, a ninth and a seventeenth of its footprint."""

WHOLE = "whole"
"""Used instead of a ratio: nodes of unlimited size."""

SWEPT = "@swept"
"""Ending of the name of a system whose programs start with a fast node free of page cache."""

THP = "@thp"
"""Ending of the name of a system whose programs get transparent huge pages wherever they can."""

_CASE = re.compile(rf"(?P<program>[a-z][a-z0-9_]*):(?P<ratio>1:[1-9]\d*|{WHOLE}):(?P<system>\S+)")


@dataclass(frozen=True, slots=True, order=True)
class ComparisonCase:
    """One run; written ``drift:1:8:hmd:benefit``, or ``drift:whole:all-fast`` with no ratio."""

    program: str
    ratio: str
    system: str

    def __str__(self) -> str:
        """Return the text that ``parse`` reads."""
        return f"{self.program}:{self.ratio}:{self.system}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the case that a text names; raises ConfigError for any other text."""
        found = _CASE.fullmatch(text)
        if found is None:
            raise ConfigError(
                f"{text!r} is not a case: write PROGRAM:RATIO:SYSTEM, as in drift:1:8:first-touch"
            )
        return cls(**found.groupdict())

    def fast_bytes(self, footprint_bytes: int) -> int | None:
        """Return the size of the program's fast memory; None without a limit."""
        if self.ratio == WHOLE:
            return None
        return footprint_bytes // (1 + int(self.ratio.partition(":")[2]))
