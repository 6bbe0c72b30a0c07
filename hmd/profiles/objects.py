# SPDX-License-Identifier: MIT
"""Objects of a process: memory that is the same thing in the program's next run.

Takes mappings as /proc/PID/maps shows them; gives the large ones as objects. Addresses differ from
run to run, so an object is known by what stays: its kind, the name of its file, and its order among
those that are alike. The kernel places anonymous mappings from above, so that of those that appear
at one time the upper one was made first; mappings that touch are one. Objects of two runs are
aligned in their order, as sequences are (Needleman and Wunsch, 1970): pairs should have like sizes.
A place in an object is relative, so that sizes may differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import Bools, Float64s, Int32s, Int64s, Uint64s, kernel
from hmd.linux.mappings import MappingKind, Mappings

MAX_OBJECTS: Final = 64
"""Objects of a process, the largest ones."""
MIN_BYTES: Final = 256 << 10
"""Smaller mappings are no objects."""
NAME_BYTES: Final = 48
"""Of the name of a file, in UTF-8, as many are kept."""

# What it costs to leave an object without partner, in octaves of difference between sizes.
_SKIP: Final = 0.75

Addresses = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]
Blocks = npt.NDArray[np.int32]


class ObjectKey(NamedTuple):
    """What kind of memory an object is: one of ``MappingKind``, and the name of its file or ""."""

    kind: int
    name: str


@dataclass(frozen=True, slots=True)
class Objects:
    """Objects of a running process, in the order in which they appeared.

    ``start`` and ``end`` (exclusive) are addresses, shape ``(objects,)``.
    """

    keys: tuple[ObjectKey, ...]
    start: Addresses
    end: Addresses

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self.keys)

    @classmethod
    def none(cls) -> Objects:
        """Return the objects of a process whose mappings are not known yet."""
        return cls((), np.empty(0, np.uint64), np.empty(0, np.uint64))

    @property
    def size_bytes(self) -> npt.NDArray[np.float64]:
        """Bytes of each object, shape ``(objects,)``."""
        return (self.end - self.start).astype(np.float64)

    def blocks_at(
        self, address: Addresses, first: Indices, count: Indices, among: Bools | None = None
    ) -> Blocks:
        """Return the block of each address, -1 for none; an object has ``count`` from ``first`` on.

        Only rows ``among`` all are looked at. Of objects that overlap, since one was unmapped, the
        later one has the address.
        """
        block, order = np.full(len(address), -1, np.int32), np.argsort(self.start, kind="stable")
        if among is None:
            among = np.ones(len(address), np.bool_)
        if len(order):
            start, end = self.start[order], self.end[order]
            end[:-1] = np.minimum(end[:-1], start[1:])
            blocks = first[order], count[order], self.size_bytes[order]
            _find_blocks(address, among, start, end, *blocks, block)
        return block


@kernel
def _find_blocks(
    address: Uint64s, among: Bools, start: Uint64s, end: Uint64s, first: Int64s, count: Int64s,
    size: Float64s, block: Int32s,
) -> None:  # fmt: skip
    """Fill the block of each address in one of the objects, which rise."""
    at = 0
    for row in range(len(address)):
        if not among[row]:
            continue
        here = address[row]
        if not start[at] <= here < end[at]:
            at = max(np.searchsorted(start, here, side="right") - 1, 0)
        if count[at] and start[at] <= here < end[at]:
            place = np.int64(np.float64(here - start[at]) / size[at] * count[at])
            block[row] = first[at] + min(place, count[at] - 1)


def objects_of(mappings: Mappings, before: Objects | None = None) -> Objects:
    """Return a process's objects, those that it had ``before`` in their order and new ones after.

    Those that were unmapped since stay, unless others have their addresses.
    """
    before = before or Objects.none()
    found = _regions(mappings)
    kept: list[tuple[ObjectKey, int, int]] = []
    for key, start, end in zip(
        before.keys, before.start.tolist(), before.end.tolist(), strict=True
    ):
        over = [at for at, one in enumerate(found) if one[1] < end and start < one[2]]
        if not over:
            kept.append((key, start, end))
        elif found[over[0]] not in kept:
            kept.append(found[over[0]])
    # The kernel maps from above: of anonymous memory the upper one is older.
    new = sorted((one for one in found if one not in kept), key=_age)
    every = [*kept, *new]
    if len(every) > MAX_OBJECTS:
        least = sorted((end - start for _, start, end in every), reverse=True)[MAX_OBJECTS - 1]
        every = [one for one in every if one[2] - one[1] >= least][:MAX_OBJECTS]
    return Objects(
        tuple(one[0] for one in every),
        np.array([one[1] for one in every], np.uint64),
        np.array([one[2] for one in every], np.uint64),
    )


def _age(region: tuple[ObjectKey, int, int]) -> int:
    return -region[1] if region[0].kind == MappingKind.ANON else region[1]


def _regions(mappings: Mappings) -> list[tuple[ObjectKey, int, int]]:
    """Return mappings that may be moved, those that touch and are alike as one, by address."""
    found: list[tuple[ObjectKey, int, int]] = []
    for row in np.flatnonzero(mappings.movable & mappings.accessible).tolist():
        kind = int(mappings.kind[row])
        file = kind in (MappingKind.FILE, MappingKind.SHM, MappingKind.HUGETLB)
        name = PurePosixPath(mappings.path[row]).name if file else ""
        key = ObjectKey(kind, name.encode(errors="replace")[:NAME_BYTES].decode(errors="ignore"))
        start, end = int(mappings.start[row]), int(mappings.end[row])
        if found and found[-1][0] == key and found[-1][2] == start:
            found[-1] = (key, found[-1][1], end)
        else:
            found.append((key, start, end))
    return [one for one in found if one[2] - one[1] >= MIN_BYTES]


def match(
    mine: tuple[tuple[ObjectKey, ...], npt.NDArray[np.float64]],
    theirs: tuple[tuple[ObjectKey, ...], npt.NDArray[np.float64]],
) -> Indices:
    """Return the object of the other run for each of this run's, -1 for none; ``(objects,)``.

    Objects are given by their keys and their sizes in bytes, in order.
    """
    found = np.full(len(mine[0]), -1, np.int64)
    for key in dict.fromkeys(mine[0]):
        rows = [[at for at, one in enumerate(side[0]) if one == key] for side in (mine, theirs)]
        sizes = [
            np.log2(np.maximum(side[1][at], 1.0))
            for side, at in zip((mine, theirs), rows, strict=True)
        ]
        for here, there in _aligned(*sizes):
            found[rows[0][here]] = rows[1][there]
    return found


def _aligned(
    mine: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64]
) -> list[tuple[int, int]]:
    """Return pairs of two sequences of sizes, as logarithms, that differ the least in order."""
    cost = np.zeros((len(mine) + 1, len(theirs) + 1))
    cost[:, 0], cost[0] = _SKIP * np.arange(len(mine) + 1), _SKIP * np.arange(len(theirs) + 1)
    # A run of another size has all of them larger, or smaller.
    scale = mine.max(initial=0.0) - theirs.max(initial=0.0)
    apart = np.abs(mine[:, None] - theirs[None, :] - scale)
    for i in range(len(mine)):
        for j in range(len(theirs)):
            skipped = min(cost[i, j + 1], cost[i + 1, j]) + _SKIP
            cost[i + 1, j + 1] = min(cost[i, j] + apart[i, j], skipped)
    pairs, i, j = [], len(mine), len(theirs)
    while i and j:
        if cost[i, j] == cost[i - 1, j - 1] + apart[i - 1, j - 1]:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif cost[i, j] == cost[i - 1, j] + _SKIP:
            i -= 1
        else:
            j -= 1
    return pairs[::-1]
