"""Whose turn it is among some processes, over steps that each have time for a few of them."""

from __future__ import annotations

from collections.abc import Iterator

from hmd.machine.process_id import ProcessId


class ProcessTurn:
    """Goes round a list of processes; ``steps`` counts those that the present one has had."""

    def __init__(self) -> None:
        self._processes: tuple[ProcessId, ...] = ()
        self._at = 0
        self.steps = 0

    def follow(self, processes: tuple[ProcessId, ...]) -> None:
        """Take another list; the turn goes on where it was, if that process is in it."""
        if processes is self._processes or processes == self._processes:
            return
        if self._at < len(self._processes):
            present = self._processes[self._at]
            self._at = processes.index(present) if present in processes else self._at
        self._processes = processes

    def round(self) -> Iterator[ProcessId]:
        """Yield each process once, from the present one on; each has the turn until it is asked on.

        Where the caller stops before, the process that it has keeps the turn.
        """
        for _ in range(len(self._processes)):
            self._at %= len(self._processes)
            yield self._processes[self._at]
            self.pass_on()

    def pass_on(self) -> None:
        """Give the turn to the next process."""
        self._at, self.steps = self._at + 1, 0
