"""Arguments that several commands take: sizes, rates, times, shares, address ranges, policies."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from hmd.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from hmd.decide.tunables import About

_RANGE = re.compile(r"(?:0x)?([0-9a-f]{1,16})-(?:0x)?([0-9a-f]{1,16})\Z", re.IGNORECASE)


def address_range(text: str) -> tuple[int, int]:
    """Parse START-END."""
    match = _RANGE.match(text)
    start, end = (int(match[1], 16), int(match[2], 16)) if match else (0, 0)
    if start >= end:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a range of addresses, such as 7f0000000000-7f0040000000"
        )
    return start, end


def size(text: str) -> int:
    """Parse a size with its unit."""
    from hmd.quantities import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def rate(text: str) -> int:
    """Parse a rate with its unit; 0 is an error, since a migration would never end."""
    from hmd.quantities import parse_rate

    try:
        if value := parse_rate(text):
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r}: write a rate with its unit, as in 200MiB/s")


def duration(text: str) -> float:
    """Parse a time with its unit, in seconds."""
    from hmd.quantities import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def duration_or_seconds(text: str) -> float:
    """Parse a time with its unit or, without one, in seconds; from 10 ms to 1e6 s."""
    from hmd.quantities import parse_duration

    try:
        value = parse_duration(text) if text[-1:].isalpha() else float(text)
    except ValueError:
        value = 0.0
    if not 0.01 <= value <= 1e6:
        raise argparse.ArgumentTypeError(
            f"{text!r}: write a time from 10ms, as in 500ms or 2min, or a number of seconds"
        )
    return value


def share(text: str) -> float:
    """Parse a share, as in 25%."""
    from hmd.quantities import parse_share

    try:
        return parse_share(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def policy_about(name: str) -> About:
    """Return the description of the policy that an option or argument names.

    Raises UsageError for a name that there is not.
    """
    from hmd.decide import registry

    try:
        return registry.about(name)
    except ConfigError as error:
        raise UsageError(str(error)) from None


def whole_number(text: str) -> int:
    """Parse a whole number from 1 to 1000."""
    value = int(text) if text.isdecimal() else 0
    if not 1 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r}: take a whole number from 1 to 1000")
    return value
