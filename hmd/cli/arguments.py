# SPDX-License-Identifier: MIT
"""Arguments that several commands take: quantities with units, addresses, the daemon's socket.

Each parser of a text raises ``argparse.ArgumentTypeError``, which names the option.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hmd.base.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from hmd.policy.settings import PolicyInfo
    from hmd.simulate.executors import Executor

DEFAULT_SOCKET = Path("/run/hmd/hmd.sock")

_Value = TypeVar("_Value")

_RANGE = re.compile(r"(?:0x)?([0-9a-f]{1,16})-(?:0x)?([0-9a-f]{1,16})\Z", re.IGNORECASE)


def address_range(text: str) -> tuple[int, int]:
    """Parse START-END, hexadecimal."""
    match = _RANGE.match(text)
    start, end = (int(match[1], 16), int(match[2], 16)) if match else (0, 0)
    if start >= end:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a range of addresses, such as 7f0000000000-7f0040000000"
        )
    return start, end


def size(text: str) -> int:
    """Parse a size with its unit, in bytes."""
    from hmd.base.quantities import parse_size

    return _parsed(parse_size, text)


def rate(text: str) -> int:
    """Parse a rate with its unit, in bytes per second; 0 is an error: nothing would ever move."""
    from hmd.base.quantities import parse_rate

    try:
        if value := parse_rate(text):
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r}: write a rate with its unit, as in 200MiB/s")


def duration(text: str) -> float:
    """Parse a time with its unit, in seconds."""
    from hmd.base.quantities import parse_duration

    return _parsed(parse_duration, text)


def duration_or_seconds(text: str) -> float:
    """Parse a time with its unit or, without one, in seconds; from 10 ms to 1e6 s."""
    from hmd.base.quantities import parse_duration

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
    """Parse a share, as in 25%; 0.25."""
    from hmd.base.quantities import parse_share

    return _parsed(parse_share, text)


def _parsed(parse: Callable[[str], _Value], text: str) -> _Value:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def number(min_value: float, max_value: float) -> Callable[[str], float]:
    """Return a parser of numbers within bounds."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not min_value <= value <= max_value:
            raise argparse.ArgumentTypeError(
                f"{text!r}: take a number from {min_value:g} to {max_value:.12g}"
            )
        return value

    return parse


def whole_number(max_value: int | None = None, min_value: int = 1) -> Callable[[str], int]:
    """Return a parser of whole numbers from ``min_value`` on, up to ``max_value`` if given."""

    def parse(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else -1
        if value < min_value or (max_value is not None and value > max_value):
            end = "" if max_value is None else f" to {max_value}"
            raise argparse.ArgumentTypeError(f"{text!r}: take a whole number from {min_value}{end}")
        return value

    return parse


def add_flag(group: argparse._ActionsContainer, name: str, text: str) -> None:
    """Add an option without a value, which is False unless it is given."""
    group.add_argument(name, action="store_true", help=text)


def add_repeatable(
    group: argparse._ActionsContainer,
    name: str,
    metavar: str,
    text: str,
    parse: Callable[[str], object] = str,
) -> None:
    """Add an option that may be given several times; its values are a list."""
    group.add_argument(name, action="append", default=[], metavar=metavar, help=text, type=parse)


def add_socket(parser: argparse.ArgumentParser) -> None:
    """Add ``--socket``."""
    parser.add_argument(
        "--socket",
        type=Path,
        default=DEFAULT_SOCKET,
        metavar="PATH",
        help=f"the daemon's status socket (default {DEFAULT_SOCKET})",
    )


def add_ray(group: argparse._ActionsContainer) -> None:
    """Add ``--ray``."""
    group.add_argument(
        "--ray",
        metavar="HOST:PORT",
        help="run the simulations on this Ray cluster, which this machine is part of, with the same"
        " results (extra fleet)",
    )


@contextmanager
def open_executor(address: str | None, workers: int) -> Generator[Executor]:
    """Give the Ray cluster at this address or, without one, ``workers`` of this process.

    UsageError where both are given.
    """
    from hmd.simulate.executors import LocalExecutor, RayCluster

    if address is None:
        yield LocalExecutor(workers)
        return
    if workers != 1:
        raise UsageError("--workers is for this machine alone: leave it out, or --ray")
    with RayCluster(address) as cluster:
        yield cluster


def policy_info(name: str) -> PolicyInfo:
    """Return the description of a policy. Raises UsageError where no policy has this name."""
    from hmd.policy import registry

    try:
        return registry.info(name)
    except ConfigError as error:
        raise UsageError(str(error)) from None
