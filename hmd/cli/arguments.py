# SPDX-License-Identifier: MIT
"""The arguments of commands: from texts like those of help, with values that have units.

Each parser of a text raises ``argparse.ArgumentTypeError``, which names the option.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hmd.base.errors import ConfigError, UsageError
from hmd.base.paths import SOCKET

if TYPE_CHECKING:
    from hmd.policy.settings import PolicyInfo
    from hmd.simulate.executors import Executor


_COMMON: Final = {
    line.split()[0]: line
    for line in f"""\
--socket PATH = {SOCKET}  the daemon's status socket (default {SOCKET})
--until-restart  end with the daemon; else it outlives a restart
--preset NAME|FILE = dram-pm  machine, as for 'hmd emulate' (dram-pm)
--set KEY=VALUE ...  a setting of "hmd policy show", for the policies that have it; may be repeated
--ray HOST:PORT  run the simulations on this Ray cluster, which this machine is part of, with the \
same results (extra fleet)
""".splitlines()
}
"""Options of several commands, by name."""

_NAMES: Final = {"pid|target": "subject", "from": "from_node", "range": "ranges"}
"""Names of arguments that have another one in Python."""

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


def rate(text: str) -> int:
    """Parse a rate with its unit, in bytes per second; 0 is an error: nothing would ever move."""
    from hmd.base.quantities import parse_rate

    try:
        if value := parse_rate(text):
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r}: write a rate with its unit, as in 200MiB/s")


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


def _quantity(name: str) -> Callable[[str], Any]:
    """Return a parser of a quantity of :mod:`hmd.base.quantities`, which it imports."""

    def parse(text: str) -> Any:
        from hmd.base import quantities

        try:
            return getattr(quantities, f"parse_{name}")(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None

    return parse


size, duration, share = map(_quantity, ("size", "duration", "share"))
"""Parsers of values with their units: in bytes, in seconds, and 0.25 for 25%."""


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


def integer(text: str) -> int:
    """Parse a whole number of any size and sign; a command says which it takes."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: take a whole number") from None


def add_options(
    parser: argparse.ArgumentParser,
    text: str,
    required: Collection[str] = (),
    /,
    **types: Callable[[str], object],
) -> None:
    """Add the arguments that a text lists as help does, a line each, ``--tiers FILE  its meaning``.

    Indented lines continue the one before. What ends with a colon heads a group; neighbours after
    ``| `` exclude each other. ``[FILE]`` may be left out (of an option: ``-``), ``FILE ...`` may be
    repeated, ``N = 5`` has a default, ``{a,b}`` are choices; options without a value are flags.
    Those in ``_COMMON`` need no text, and help does not show a ``(hidden)`` one. Values are read by
    ``types``, by the name of the argument, else by ``_TYPES``, by that of the value. ``required``
    names the options that are, ``|`` one of those that exclude each other.
    """
    group: argparse._ActionsContainer = parser
    exclusive: argparse._ActionsContainer | None = None
    for line in re.sub(r"\n +", "  ", text.strip()).splitlines():
        if line.endswith(":"):
            group, exclusive = parser.add_argument_group(line[:-1]), None
            continue
        head, _, meaning = _COMMON.get(line, line).partition("  ")
        if not head.startswith("| "):
            exclusive = None
        elif exclusive is None:
            exclusive = group.add_mutually_exclusive_group(required="|" in required)
        _add(exclusive or group, head.removeprefix("| "), meaning, required, types)


def add_action(
    family: Any,
    name: str,
    summary: str,
    run: Callable[[argparse.Namespace], int | None],
    options: str = "",
    required: Collection[str] = (),
    /,
    **types: Callable[[str], object],
) -> argparse.ArgumentParser:
    """Add a command to those of a family, which are its subparsers; arguments as in a command."""
    command: argparse.ArgumentParser = family.add_parser(name, help=summary)
    add_options(command, options, required, **types)
    command.set_defaults(func=run)
    return command


def _add(
    group: argparse._ActionsContainer,
    head: str,
    meaning: str,
    required: Collection[str],
    types: Mapping[str, Callable[[str], object]],
) -> None:
    """Add an argument, of which ``head`` is the part before its meaning."""
    words = head.split()
    names = [word.rstrip(",") for word in words if word.startswith("-")]
    value, _, default = " ".join(words[len(names) :]).partition(" = ")
    optional, value = value.startswith("["), value.removeprefix("[").removesuffix("]")
    repeated, value = value.endswith(" ..."), value.removesuffix(" ...")
    options: dict[str, Any] = {"help": " ".join(meaning.split()).replace("%", "%%")}
    if options["help"] == "(hidden)":
        options["help"] = argparse.SUPPRESS
    if not value:
        group.add_argument(*names, action="store_true", **options)
        return
    if value.startswith("{"):
        options["choices"] = value[1:-1].split(",")
    else:
        parts = tuple(value.split())
        options["metavar"] = value if len(parts) == 1 else parts
        if len(parts) > 1:
            options["nargs"] = len(parts)
    name = (names[-1] if names else value).lstrip("-").replace("-", "_").lower()
    name = _NAMES.get(name, name)
    options["type"] = types.get(name, _TYPES.get(value.split()[0], str))
    if not names:
        options["nargs"] = {(True, True): "*", (True, False): "?", (False, True): "+"}.get(
            (optional, repeated)
        )
        group.add_argument(name, **options)
        return
    if optional:
        options |= {"nargs": "?", "const": "-", "type": str}
    if repeated:
        options |= {"action": "append", "default": []}
    if default:
        options["default"] = default
    group.add_argument(*names, dest=name, required=name in required, **options)


@contextmanager
def open_executor(address: str | None, workers: int) -> Generator[Executor]:
    """Give the Ray cluster at this address or, without one, ``workers`` of this process.

    UsageError where both are given.
    """
    from hmd.simulate.executors import Executor, RayCluster

    if address is None:
        yield Executor(workers)
        return
    if workers != 1:
        raise UsageError("--workers is for this machine alone: leave it out, or --ray")
    with RayCluster(address) as cluster:
        yield cluster


_TYPES: Final[Mapping[str, Callable[[str], object]]] = {
    **dict.fromkeys(("FILE", "DIR", "PATH", "TRACE", "SCRIPT", "SLOW", "FAST", "SLOW2"), Path),
    **dict.fromkeys(("PID", "NODE", "TIER"), whole_number((1 << 31) - 1, 0)),
    "N": integer,
    **dict.fromkeys(("SHARE", "P%", "PERCENT"), share),
    "SIZE": size,
    "RATE": rate,
    "TIME": duration_or_seconds,
    "START-END": address_range,
}
"""How values are read, by the names that help has for them."""


def policy_info(name: str) -> PolicyInfo:
    """Return the description of a policy, by its name or the Python file that it is in.

    Raises UsageError where no policy has this name, or the file cannot be used.
    """
    from hmd.policy import registry

    try:
        return registry.add_file(Path(name)) if name.endswith(".py") else registry.info(name)
    except ConfigError as error:
        raise UsageError(str(error)) from None
