"""Processes that hold much of all memory, by their resident sizes: the sweep goes to them first.

Of ten thousand processes a hundred may hold nearly all memory. A resident size costs 20 µs of a
process, its mappings and pages a millisecond and more; so sizes are read in turn, some in each step
of the sweep, and the processes of at least four times the mean size are the large ones. Pages that
processes share count for each of them, which the mean takes into account.

Takes the processes of a heat table and what reads a size; gives the large ones, the largest first.
Where there are few processes, none is called large: all have their turn soon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from hmd.machine.process_id import ProcessId

FEW: Final = 128
"""Processes of which none is called large."""

_LARGE: Final = 4
"""A large process has so many times the mean size."""


class LargeSpaces:
    """Keeps the last known size of each process."""

    def __init__(self, resident_bytes: Callable[[ProcessId], int]) -> None:
        """``resident_bytes`` returns the size of a process now, 0 if it is gone."""
        self._read = resident_bytes
        self._processes: tuple[ProcessId, ...] = ()
        self._bytes = np.zeros(0, np.int64)
        self._expected: Mapping[ProcessId, int] = {}
        self._turn = 0
        self._large: tuple[ProcessId, ...] | None = None
        self._least = 0

    def expect(self, sizes: Mapping[ProcessId, int]) -> None:
        """Take sizes that were read elsewhere, for processes that are followed from now on."""
        self._expected = sizes

    def follow(self, processes: tuple[ProcessId, ...]) -> None:
        """Take other processes; sizes that are known stay."""
        known = {**self._expected, **dict(zip(self._processes, self._bytes.tolist(), strict=True))}
        self._turn = min(self._turn, max(len(processes) - 1, 0))
        self._bytes = np.array([known.get(process, 0) for process in processes], np.int64)
        self._processes, self._expected, self._large = processes, {}, None

    def survey(self, over: Callable[[], bool]) -> tuple[ProcessId, ...]:
        """Read the sizes of the next processes until ``over``; return the large processes.

        The list is made again when one grows large or is large no more, in each round, and when
        other processes are followed.
        """
        count = len(self._processes)
        if count <= FEW:
            return ()
        for _ in range(count):
            before, now = self._bytes[self._turn], self._read(self._processes[self._turn])
            self._bytes[self._turn] = now
            self._turn = (self._turn + 1) % count
            if self._turn == 0 or (now >= self._least) != (before >= self._least):
                self._large = None
            if over():
                break
        if self._large is None:
            self._large = self._find_large()
        return self._large

    def _find_large(self) -> tuple[ProcessId, ...]:
        self._least = max(_LARGE * int(self._bytes.sum()) // len(self._processes), 1)
        order = np.argsort(-self._bytes, kind="stable")
        large = order[self._bytes[order] >= self._least]
        return tuple(self._processes[slot] for slot in large.tolist())
