# SPDX-License-Identifier: MIT
"""Layouts: the pages of a program in fast memory, and the regions that they lie in.

A layout is an array over the pages of a trace (:class:`hmd.estimate.samples.PageIndex`). Pages
that were never sampled cost nothing on any tier. A layout in a file lists the address ranges that
are fast: one per line, ``7f0000000000-7f0040000000`` (end exclusive), or JSON, a list of such words
or ``{"fast": [...]}``. Addresses are hexadecimal, of the slow run; ``#`` begins a comment. Errors
name the line.

Regions are the files, heap, stacks and mappings of a trace's snapshots. A named mapping (a file,
``[heap]``) is one region with all of its parts. An anonymous one is its own region, merged over the
snapshots in which it grew. Pages of no snapshot are divided at gaps in the address space.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.base.errors import ConfigError
from hmd.base.units import PAGE_BYTES
from hmd.base.untrusted_files import parse_json
from hmd.estimate.samples import PageIndex
from hmd.linux.mappings import MappingKind
from hmd.trace.trace import MappingSnapshot, Trace

Layout: TypeAlias = npt.NDArray[np.bool_]
"""True for pages in fast memory, shape ``(pages,)``."""

GAP_BYTES = 2 << 20
"""Least gap between two regions that no mapping names."""

_RANGE = re.compile(r"(?:0x)?([0-9a-f]{1,16})\s*[-,]\s*(?:0x)?([0-9a-f]{1,16})", re.IGNORECASE)
_EXAMPLE = "7f0000000000-7f0040000000"


def all_slow(pages: PageIndex) -> Layout:
    """Return the layout with every page in slow memory."""
    return np.zeros(len(pages), np.bool_)


def all_fast(pages: PageIndex) -> Layout:
    """Return the layout with every page in fast memory."""
    return np.ones(len(pages), np.bool_)


def by_heat(pages: PageIndex, count: int, *, hot_first: bool = True) -> Layout:
    """Return the ``count`` hottest (or coldest) pages in fast memory; ties by address."""
    chosen = all_slow(pages)
    chosen[heat_order(pages, hot_first=hot_first)[: max(0, count)]] = True
    return chosen


def heat_order(pages: PageIndex, *, hot_first: bool = True) -> npt.NDArray[np.int64]:
    """Return the pages from the hottest (or coldest) on, by the first run's samples."""
    heat = -pages.accesses if hot_first else pages.accesses
    return np.argsort(heat, kind="stable")


def interleaved(pages: PageIndex, share: float) -> Layout:
    """Return every n-th page in order of address in fast memory: ``share`` of them."""
    turn = np.arange(len(pages) + 1) * share
    fast: Layout = np.floor(turn[1:] + 1e-9) > np.floor(turn[:-1] + 1e-9)
    return fast


def in_ranges(pages: PageIndex, ranges: Sequence[tuple[int, int]]) -> Layout:
    """Return the pages that begin within a range (end exclusive) in fast memory."""
    fast = all_slow(pages)
    for start, end in ranges:
        fast |= (pages.address >= np.uint64(start)) & (pages.address < np.uint64(end))
    return fast


def read_layout(path: Path, pages: PageIndex) -> Layout:
    """Return the layout with the pages in a file's ranges fast; ConfigError names a wrong line."""
    text = read_text(path)
    if text.lstrip().startswith(("{", "[")):
        return in_ranges(pages, _json_ranges(path, text))
    return in_ranges(pages, [_range(line, f"{path}:{n}") for n, line in numbered_lines(text)])


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


def read_text(path: Path) -> str:
    """Return a file's text; ConfigError if it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"cannot read {path}: {why}") from None


def numbered_lines(text: str) -> list[tuple[int, str]]:
    """Return lines that are neither empty nor comments, with their numbers."""
    said = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [(number, line) for number, line in enumerate(said, 1) if line]


@dataclass(frozen=True, slots=True)
class MemoryRegions:
    """Regions: ``name`` and ``process`` of each, and ``of_page``, shape ``(pages,)``."""

    name: tuple[str, ...]
    process: tuple[int, ...]
    of_page: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.name)


def find_regions(trace: Trace, pages: PageIndex) -> MemoryRegions:
    """Return the regions of a trace in which pages lie, in order of their first page."""
    number: dict[tuple[int, str], int] = {}
    of_page = np.empty(len(pages), np.int32)
    for process in np.unique(pages.process).tolist():
        mine = np.flatnonzero(pages.process == process)
        snapshots = [s for s in trace.mappings if s.process == process]
        names = _names(snapshots, pages.address[mine])
        for row, name in zip(mine.tolist(), names, strict=True):
            of_page[row] = number.setdefault((process, name), len(number))
    return MemoryRegions(tuple(name for _, name in number), tuple(of for of, _ in number), of_page)


def _names(snapshots: Sequence[MappingSnapshot], address: npt.NDArray[np.uint64]) -> list[str]:
    """Return the name of each address's region; addresses are in order."""
    spans = _anonymous(snapshots)
    label = np.full(len(address), -1)
    labels: dict[str, int] = {}
    # The last snapshot of an address counts: a process starts as a copy of another.
    for snapshot in reversed(snapshots):
        if not len(snapshot.start):
            continue
        row = np.searchsorted(snapshot.start, address, side="right") - 1
        found = np.flatnonzero((row >= 0) & (address < snapshot.end[row]) & (label < 0))
        rows, place = np.unique(row[found], return_inverse=True)
        named = [_name(snapshot, int(r), spans) for r in rows]
        own = np.array([labels.setdefault(name, len(labels)) for name in named], np.int64)
        label[found] = own[place]
    unknown = np.flatnonzero(label < 0)
    breaks = np.flatnonzero(np.diff(address[unknown]) >= np.uint64(GAP_BYTES)) + 1
    for part in np.split(unknown, breaks):
        if len(part):
            span = f"{address[part[0]]:x}-{int(address[part[-1]]) + PAGE_BYTES:x}"
            label[part] = labels.setdefault(span, len(labels))
    names = list(labels)
    return [names[i] for i in label.tolist()]


def _name(snapshot: MappingSnapshot, row: int, spans: list[tuple[int, int]]) -> str:
    if snapshot.path[row]:
        return snapshot.path[row]
    at = int(snapshot.start[row])
    start, end = next(span for span in spans if span[0] <= at < span[1])
    return f"{MappingKind(int(snapshot.kind[row])).name.lower()} {start:x}-{end:x}"


def _anonymous(snapshots: Sequence[MappingSnapshot]) -> list[tuple[int, int]]:
    """Return the ranges of unnamed mappings, overlapping ones merged."""
    nameless = {
        (int(start), int(end))
        for snapshot in snapshots
        for start, end, path in zip(snapshot.start, snapshot.end, snapshot.path, strict=True)
        if not path
    }
    spans: list[tuple[int, int]] = []
    for start, end in sorted(nameless):
        if spans and start < spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end))
        else:
            spans.append((start, end))
    return spans
