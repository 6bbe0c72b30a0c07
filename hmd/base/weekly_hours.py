# SPDX-License-Identifier: MIT
"""Hours of the week, as in ``Mon-Fri 08:00-18:00``: parsing, and whether a time is within them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY_MINUTES: Final = 24 * 60
_PART: Final = r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_PATTERN: Final = (
    rf"^({_PART}(-{_PART})?(,{_PART}(-{_PART})?)* )?"
    r"([01]\d|2[0-3]):[0-5]\d-(([01]\d|2[0-3]):[0-5]\d|24:00)$"
)
_MATCH: Final = re.compile(_PATTERN, re.ASCII)


@dataclass(frozen=True, slots=True)
class WeeklyHours:
    """From ``begin`` to ``end`` (exclusive) on ``days``, as ``text`` writes it.

    Days count from 0 for Monday, times in minutes from midnight; an ``end`` beyond 24 hours lies on
    the day after.
    """

    text: str
    days: frozenset[int]
    begin: int
    end: int

    def contains(self, moment: datetime) -> bool:
        """Return whether a time is within the hours, by its own clock."""
        minute, today = moment.hour * 60 + moment.minute, moment.weekday()
        if today in self.days and self.begin <= minute < self.end:
            return True
        return (today - 1) % 7 in self.days and minute + _DAY_MINUTES < self.end


def parse_hours(value: object) -> WeeklyHours:
    """Return hours of ``Mon-Fri 08:00-18:00``; raises ``ValueError`` otherwise.

    Days may be a list of days and ranges, or left out for all; 22:00-06:00 ends the next day.
    """
    text = value if isinstance(value, str) else ""
    days, _, times = text.rpartition(" ")
    begin, _, end = times.partition("-")
    if not _MATCH.fullmatch(text) or begin == end:
        raise ValueError("write days and times, as in Mon-Fri 08:00-18:00 or 22:00-06:00")
    first, last = _minutes(begin), _minutes(end)
    if last <= first:
        last += _DAY_MINUTES
    return WeeklyHours(text, frozenset(_days(days)), first, last)


def _minutes(text: str) -> int:
    hours, _, minutes = text.partition(":")
    return int(hours) * 60 + int(minutes)


def _days(text: str) -> Iterator[int]:
    for part in (text or "Mon-Sun").split(","):
        first, _, last = part.partition("-")
        begin = _DAYS.index(first)
        count = (_DAYS.index(last or first) - begin) % len(_DAYS) + 1
        yield from ((begin + day) % len(_DAYS) for day in range(count))


Hours = Annotated[
    WeeklyHours,
    BeforeValidator(parse_hours),
    PlainSerializer(lambda hours: hours.text, return_type=str),
    WithJsonSchema(
        {"type": "string", "pattern": _PATTERN, "examples": ["Mon-Fri 08:00-18:00", "22:00-06:00"]}
    ),
]
"""Hours of the week."""
