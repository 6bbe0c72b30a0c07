# SPDX-License-Identifier: MIT
"""Sizes, rates, durations, shares and hours of the week: parsing, formatting, and setting types.

A bare number other than 0 is an error: ``rate: 512`` is ambiguous, ``rate: 512MiB/s`` is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

SIZE_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SIZE_UNITS_DECIMAL = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
DURATION_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

_NUMBER = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?([A-Za-z%]*)\Z", re.ASCII)


def _split(value: object) -> tuple[float, str] | None:
    match = _NUMBER.match(value) if isinstance(value, str) else None
    return (float(match[1]), match[2]) if match else None


def parse_size(value: object) -> int:
    """Return bytes of ``512MiB``, ``10 GiB``, ``1.5GB``; raises ``ValueError`` otherwise."""
    if value == 0 and not isinstance(value, bool):
        return 0
    match = _NUMBER.match(value) if isinstance(value, str) else None
    scale = (SIZE_UNITS | SIZE_UNITS_DECIMAL).get(match[2]) if match else None
    if match is None or scale is None:
        raise ValueError("write a size with its unit, as in 512MiB or 10GiB")
    # Whole numbers stay exact: a float has 53 bits.
    return int(match[1]) * scale if match[1].isdigit() else round(float(match[1]) * scale)


def parse_rate(value: object) -> int:
    """Return bytes per second of ``512MiB/s``; raises ``ValueError`` otherwise."""
    if value == 0 and not isinstance(value, bool):
        return 0
    try:
        if isinstance(value, str) and value.endswith("/s"):
            return parse_size(value.removesuffix("/s"))
    except ValueError:
        pass
    raise ValueError("write a rate with its unit, as in 512MiB/s")


def parse_duration(value: object) -> float:
    """Return seconds of ``500ms``, ``2s``, ``1min``; raises ``ValueError`` otherwise."""
    if value == 0 and not isinstance(value, bool):
        return 0.0
    parts = _split(value)
    if parts is None or parts[1] not in DURATION_UNITS:
        raise ValueError("write a duration with its unit, as in 500ms or 2s")
    return parts[0] * DURATION_UNITS[parts[1]]


def parse_share(value: object) -> float:
    """Return a share of 1 from ``10%``; raises ``ValueError`` otherwise."""
    parts = _split(value)
    if parts is None or parts[1] != "%" or parts[0] > 100:
        raise ValueError("write a share of 0% to 100%, as in 10%")
    return parts[0] / 100


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount of memory, in bytes or as a share of 1; the other field is None."""

    size: int | None = None
    share: float | None = None


def parse_amount(value: object) -> Amount:
    """Return ``2GiB`` or ``25%`` as an amount; raises ``ValueError`` otherwise."""
    try:
        if isinstance(value, str) and value.endswith("%"):
            return Amount(share=parse_share(value))
        return Amount(size=parse_size(value))
    except ValueError:
        raise ValueError("write a size or a share, as in 2GiB or 25%") from None


def format_amount(value: Amount) -> str:
    """Return an amount as the configuration states it."""
    return format_size(value.size or 0) if value.share is None else format_percent(value.share)


def format_mib(value: float) -> str:
    """Return bytes for a person, to a whole MiB: ``1536 MiB``."""
    return f"{value / 2**20:.0f} MiB"


def format_size(value: int) -> str:
    """Return bytes in the largest binary unit that divides them."""
    unit, scale = "B", 1
    for name, size in SIZE_UNITS.items():
        if value and value % size == 0:
            unit, scale = name, size
    return f"{value // scale}{unit}"


def format_rate(value: int) -> str:
    """Return bytes per second in the largest binary unit that divides them."""
    return f"{format_size(value)}/s"


def format_duration(value: float) -> str:
    """Return seconds in the unit that reads best."""
    for unit, scale in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if value >= scale and round(value / scale, 6) == round(value / scale):
            return f"{value / scale:.0f}{unit}"
    if value >= 1:
        return f"{value:.9g}s"
    return f"{value * 1000:.9g}ms" if value >= 1e-3 else f"{value * 1e6:.9g}us"


def format_percent(value: float) -> str:
    """Return a share of 1 in per cent."""
    return f"{value * 100:.6g}%"


def format_number(value: float) -> str:
    """Return a number to six digits without an exponent, which hmd's YAML would read as text."""
    return format(Decimal(f"{value:.6g}"), "f")


def format_like(value: float, given: object) -> str:
    """Return a limit in the unit of the value that exceeds it."""
    parts = _split(given)
    if parts and parts[1] in DURATION_UNITS:
        return format_duration(value)
    if parts and parts[1] == "%":
        return format_percent(value)
    if parts and parts[1] in SIZE_UNITS | SIZE_UNITS_DECIMAL:
        return format_size(int(value))
    return format_number(value)


def _schema(pattern: str, *examples: str, zero: bool = True) -> dict[str, Any]:
    text: dict[str, Any] = {"type": "string", "pattern": pattern}
    accepted = {"anyOf": [text, {"const": 0}]} if zero else text
    return {**accepted, "examples": [*examples]}


SIZE_SCHEMA = _schema(r"^\d+(\.\d+)? ?(B|[KMGT]iB|kB|[MGT]B)$", "512MiB")
DURATION_SCHEMA = _schema(r"^\d+(\.\d+)? ?(us|ms|s|min|h|d)$", "500ms")
SHARE_SCHEMA = _schema(r"^\d+(\.\d+)? ?%$", "10%", zero=False)


Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(format_size, return_type=str),
    WithJsonSchema(SIZE_SCHEMA),
]
"""Bytes."""

SizeOrShare = Annotated[
    Amount,
    BeforeValidator(parse_amount),
    PlainSerializer(format_amount, return_type=str),
    WithJsonSchema(_schema(r"^\d+(\.\d+)? ?(B|[KMGT]iB|kB|[MGT]B|%)$", "2GiB", "25%")),
]
"""Bytes, or a share of a total."""

Rate = Annotated[
    int,
    BeforeValidator(parse_rate),
    PlainSerializer(format_rate, return_type=str),
    WithJsonSchema(_schema(r"^\d+(\.\d+)? ?(B|[KMGT]iB|kB|[MGT]B)/s$", "512MiB/s")),
]
"""Bytes per second."""

Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema(DURATION_SCHEMA),
]
"""Seconds."""

Share = Annotated[
    float,
    BeforeValidator(parse_share),
    PlainSerializer(format_percent, return_type=str),
    WithJsonSchema(SHARE_SCHEMA),
]
"""A share of 1."""


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
