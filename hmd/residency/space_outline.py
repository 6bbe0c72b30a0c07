"""The outline of an address space: where pages may be, and which may move, in bounded memory.

A process may have 65,530 mappings and more, and a daemon follows thousands of processes, so the
sweep keeps no mappings: an outline takes at most 48 KiB whatever a process maps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.heat.geometry import CHUNK_BYTES
from hmd.machine.linear_pattern import LinearPattern
from hmd.machine.pages.huge_pages import huge_throughout
from hmd.machine.pages.mappings import MappingKind, Mappings
from hmd.machine.pages.shared_ranges import PROCESS_MOST, SharedRange, range_bytes
from hmd.machine.process_id import ProcessId

Addresses: TypeAlias = npt.NDArray[np.uint64]
Patterns: TypeAlias = tuple[LinearPattern, ...]
Run: TypeAlias = tuple[int, int]
"""First and last chunk number of a run of chunks."""

MAX_RUNS: Final = 256
"""Runs of an outline; beyond it, the smallest gaps between runs count as mapped."""
MAX_ZONES: Final = 1024
"""Changes between movable and unmovable; beyond it, pages are unmovable."""


@dataclass(frozen=True, slots=True)
class SpaceOutline:
    """Where a process may have pages.

    ``runs`` are ascending and disjoint. ``edges``, shape ``(k,)``, are the addresses at which
    pages begin to be ``movable`` or cease to be. What lies between two mappings belongs to the
    first: it has no pages.
    """

    runs: list[Run]
    edges: Addresses
    movable: npt.NDArray[np.bool_]

    def movable_at(self, addresses: Addresses) -> npt.NDArray[np.bool_]:
        """Return for each address whether its page may be moved; shape as ``addresses``."""
        if not len(self.edges):
            return np.zeros(len(addresses), np.bool_)
        zone = np.searchsorted(self.edges, addresses, side="right") - 1
        return (zone >= 0) & self.movable[zone]


@dataclass(frozen=True, slots=True)
class OutlinePart:
    """What an outline needs of some mappings; columns of shape ``(n,)`` in order of address."""

    start: Addresses
    end: Addresses
    movable: npt.NDArray[np.bool_]


def outline_part(mappings: Mappings) -> OutlinePart:
    """Return the mappings that may have pages.

    Memory that is only reserved (no access) has none, and special mappings are the kernel's.
    """
    useful = mappings.accessible & (mappings.kind != MappingKind.SPECIAL)
    return OutlinePart(mappings.start[useful], mappings.end[useful], mappings.movable[useful])


class OutlineReading:
    """Mappings of one process that are being read, over as many steps as it takes."""

    def __init__(
        self,
        process: ProcessId,
        pieces: Generator[Mappings, None, None],
        kept: Patterns,
    ) -> None:
        """Own the pieces; mappings whose path matches one of ``kept`` are unmovable."""
        self.process, self.parts = process, list[OutlinePart]()
        self.shared: list[SharedRange] = []
        self._pieces, self._kept = pieces, kept
        self._huge: list[Addresses] = []

    def read(self, over: Callable[[], bool]) -> bool:
        """Read pieces until there are no more or ``over``; return whether all are read."""
        for piece in self._pieces:
            self.parts.append(outline_part(piece.keeping(self._kept) if self._kept else piece))
            self._huge.append(huge_throughout(piece))
            self.shared = nlargest(PROCESS_MOST, [*self.shared, *piece.shared], key=range_bytes)
            if over():
                return False
        return True

    def outline(self) -> tuple[SpaceOutline, Addresses]:
        """Return the outline of what was read, and the huge pages that its details show."""
        return outline_of(self.parts), np.concatenate(self._huge)

    def close(self) -> None:
        """Stop reading."""
        self._pieces.close()


def outline_of(parts: Sequence[OutlinePart]) -> SpaceOutline:
    """Return the outline of an address space, whose parts come in order of address."""
    if not parts:
        return SpaceOutline([], np.empty(0, np.uint64), np.empty(0, np.bool_))
    start, end = (np.concatenate([getattr(p, name) for p in parts]) for name in ("start", "end"))
    movable = np.concatenate([part.movable for part in parts])
    turns = np.flatnonzero(np.diff(movable, prepend=~movable[:1]))
    edges, kinds = start[turns[:MAX_ZONES]], movable[turns[:MAX_ZONES]]
    if len(turns) > MAX_ZONES:
        kinds[-1] = False
    return SpaceOutline(_runs(start, end), edges, kinds)


def _runs(start: Addresses, end: Addresses) -> list[Run]:
    if not len(start):
        return []
    chunk = np.uint64(CHUNK_BYTES)
    first = (start // chunk).astype(np.int64)
    last = ((end - np.uint64(1)) // chunk).astype(np.int64)
    gaps = first[1:] - last[:-1]
    breaks = np.flatnonzero(gaps > 1)
    if len(breaks) >= MAX_RUNS:
        widest = np.argpartition(gaps[breaks], -MAX_RUNS + 1)[-MAX_RUNS + 1 :]
        breaks = breaks[np.sort(widest)]
    firsts = first[np.concatenate(([0], breaks + 1))].tolist()
    lasts = last[np.concatenate((breaks, [len(last) - 1]))].tolist()
    return list(zip(firsts, lasts, strict=True))


def less(runs: list[Run], known: list[Run]) -> list[Run]:
    """Return the parts of ``runs`` outside ``known``; both ascending and disjoint."""
    new: list[Run] = []
    at = 0
    for first, last in runs:
        begin = first
        while at < len(known) and known[at][1] < begin:
            at += 1
        here = at
        while here < len(known) and known[here][0] <= last:
            if known[here][0] > begin:
                new.append((begin, known[here][0] - 1))
            begin = known[here][1] + 1
            here += 1
        if begin <= last:
            new.append((begin, last))
    return new


def within(addresses: Addresses, runs: list[Run]) -> npt.NDArray[np.bool_]:
    """Return which addresses lie in a run."""
    if not runs:
        return np.zeros(len(addresses), np.bool_)
    bounds = np.array(runs, np.uint64)
    number = addresses // np.uint64(CHUNK_BYTES)
    row = np.searchsorted(bounds[:, 0], number, side="right") - 1
    inside: npt.NDArray[np.bool_] = (row >= 0) & (number <= bounds[row, 1])
    return inside
