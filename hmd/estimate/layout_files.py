"""Layouts and schedules of migrations in files.

A layout lists the address ranges that are fast: one per line, ``7f0000000000-7f0040000000`` (end
exclusive), or JSON, a list of such words or ``{"fast": [...]}``. A schedule has one move per line,
``time_ms,address,fast`` or ``...,slow``. Addresses are hexadecimal, of the slow run; ``#`` begins
a comment. Errors name the line.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from hmd.errors import ConfigError
from hmd.estimate.layout import Layout, in_ranges
from hmd.estimate.page_index import PageIndex
from hmd.estimate.schedule import Schedule
from hmd.json_text import parse_json
from hmd.units import PAGE_BYTES

_RANGE = re.compile(r"(?:0x)?([0-9a-f]{1,16})\s*[-,]\s*(?:0x)?([0-9a-f]{1,16})", re.IGNORECASE)
_ADDRESS = re.compile(r"(?:0x)?([0-9a-f]{1,16})", re.IGNORECASE)
_HEADER = "time_ms,address,tier"
_EXAMPLE = "7f0000000000-7f0040000000"


def read_layout(path: Path, pages: PageIndex) -> Layout:
    """Return the layout with the pages in a file's ranges fast; ConfigError names a wrong line."""
    text = _read(path)
    if text.lstrip().startswith(("{", "[")):
        return in_ranges(pages, _json_ranges(path, text))
    return in_ranges(pages, [_range(line, f"{path}:{n}") for n, line in _lines(text)])


def read_schedule(path: Path, pages: PageIndex, start: Layout) -> tuple[Schedule, Layout]:
    """Return a file's moves in order of time, and the layout that they start from.

    An address stands for its page in every process that has it. Pages that were never sampled
    come behind those of ``start``, each where its first move is one. Raises ConfigError, which
    names the wrong line.
    """
    known: dict[int, list[int]] = {}
    for number, address in enumerate(pages.address.tolist()):
        known.setdefault(address, []).append(number)
    beyond: list[bool] = []
    moves: list[tuple[float, int, bool]] = []
    for line, text in _lines(_read(path)):
        if line == 1 and text.startswith("time"):
            if text.replace(" ", "") != _HEADER:
                raise ConfigError(f"{path}:1: {text!r}: the columns are {_HEADER}")
            continue
        time_ns, address, fast = _move(text, f"{path}:{line}")
        if address not in known:
            known[address] = [len(pages) + len(beyond)]
            beyond.append(not fast)
        moves += [(time_ns, page, fast) for page in known[address]]
    moves.sort(key=lambda move: move[0])
    schedule = Schedule(
        np.array([time_ns for time_ns, _, _ in moves], np.float64),
        np.array([page for _, page, _ in moves], np.int32),
        np.array([fast for _, _, fast in moves], np.bool_),
    )
    return schedule, np.concatenate([start, np.array(beyond, np.bool_)])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"cannot read {path}: {why}") from None


def _lines(text: str) -> list[tuple[int, str]]:
    """Return lines that are neither empty nor comments, with their numbers."""
    said = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [(number, line) for number, line in enumerate(said, 1) if line]


def _json_ranges(path: Path, text: str) -> list[tuple[int, int]]:
    try:
        content = parse_json(text)
    except ValueError as error:
        line, problem = getattr(error, "lineno", 1), getattr(error, "msg", error)
        raise ConfigError(f"{path}:{line}: {problem}") from None
    ranges = content.get("fast") if isinstance(content, dict) else content
    if not isinstance(ranges, list) or not all(isinstance(word, str) for word in ranges):
        raise ConfigError(f'{path}:1: write {{"fast": ["{_EXAMPLE}", ...]}}')
    # A word's line is that of its first occurrence.
    lines = text.splitlines()
    return [
        _range(word, f"{path}:{next((n for n, t in enumerate(lines, 1) if word in t), 1)}")
        for word in ranges
    ]


def _range(text: str, where: str) -> tuple[int, int]:
    match = _RANGE.fullmatch(text)
    start, end = (int(match[1], 16), int(match[2], 16)) if match else (0, 0)
    if start >= end:
        raise ConfigError(f"{where}: {text!r} is no range of addresses, such as {_EXAMPLE}")
    return start, end


def _move(text: str, where: str) -> tuple[float, int, bool]:
    """Return time, address of the page, and whether it goes to fast memory."""
    words = [word.strip() for word in text.split(",")]
    address = _ADDRESS.fullmatch(words[1]) if len(words) == 3 else None
    if address is None or words[2] not in ("fast", "slow"):
        raise ConfigError(
            f"{where}: {text!r} is no move, such as 1500,7f0000001000,fast "
            "(milliseconds, address, tier)"
        )
    try:
        time_ms = float(words[0])
    except ValueError:
        time_ms = -1.0
    if not 0 <= time_ms < 1e12:
        raise ConfigError(f"{where}: {words[0]!r} is no time in milliseconds from the start")
    page = int(address[1], 16) // PAGE_BYTES * PAGE_BYTES
    return time_ms * 1e6, page, words[2] == "fast"
