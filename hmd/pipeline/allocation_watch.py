"""What targets are expected to allocate: memory that their programs gave back lately.

Takes the resident sizes of targets' processes and the memory of all nodes at each tick; gives how
much less is used than was, as far as that is recent. Programs that free a buffer tend to allocate
another one, and what was just allocated is often the hottest: the room that the first one leaves
on the fastest tier is kept for it as headroom, instead of being filled at once with pages that are
barely warm. Where no target gives anything back, nothing is kept, whatever other programs do.

Each target has its own expectation: what one allocates is not what another gave back. The memory
of the nodes bounds them all: a fork that exits gives back no page that its parent still has. Moves
between nodes do not change that sum. Of many processes some are read per tick
(:mod:`hmd.pipeline.process_readings`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hmd.machine.nodes.topology import NodeMemory
from hmd.machine.process_id import ProcessId
from hmd.pipeline.process_readings import ProcessReading

FADE: Final = 1 / 16
"""Share of the expectation that a tick takes off: what is not allocated soon is not awaited."""


class AllocationWatch:
    """Compares each tick's memory with that of the one before.

    ``expected_bytes`` is None before two ticks of the same nodes.
    """

    def __init__(self) -> None:
        self.expected_bytes: int | None = None
        self._machine_bytes: int | None = None
        self._before: tuple[tuple[tuple[int, int], ...], int] | None = None
        self._processes: tuple[ProcessId, ...] = ()
        self._sizes: dict[ProcessId, tuple[str, int]] = {}
        self._targets: dict[str, int] = {}

    def follow(
        self,
        memory: Sequence[NodeMemory],
        processes: tuple[ProcessId, ...],
        targets: Sequence[str],
        readings: Sequence[ProcessReading],
    ) -> None:
        """Take the memory of all nodes, the processes with the target of each, and readings."""
        self._follow_targets(processes, targets, readings)
        self._follow_machine(memory)
        if self._machine_bytes is not None:
            self.expected_bytes = min(self._machine_bytes, sum(self._targets.values()))

    def _follow_machine(self, memory: Sequence[NodeMemory]) -> None:
        """Expect what is less used on all nodes than was, whatever program gave it back."""
        nodes = tuple((node.node, node.total_bytes) for node in memory)
        room = sum(node.room_bytes for node in memory)
        before, self._before = self._before, (nodes, room)
        if before is not None and before[0] == nodes:
            self._machine_bytes = _expected(self._machine_bytes or 0, room - before[1])

    def _follow_targets(
        self,
        processes: tuple[ProcessId, ...],
        targets: Sequence[str],
        readings: Sequence[ProcessReading],
    ) -> None:
        """Expect what each target's processes have less than they had when they were last read."""
        given_back = dict.fromkeys(targets, 0)
        if processes != self._processes:
            self._processes = tuple(processes)
            self._forget(frozenset(processes), given_back)
        for slot, now in readings:
            process, target = processes[slot], targets[slot]
            if process in self._sizes:
                given_back[target] += self._sizes[process][1] - now.resident_bytes
            self._sizes[process] = target, now.resident_bytes
        self._targets = {
            target: _expected(self._targets.get(target, 0), freed)
            for target, freed in given_back.items()
        }

    def _forget(self, processes: frozenset[ProcessId], given_back: dict[str, int]) -> None:
        """Count what processes had that have exited, where others of their target go on."""
        for process in [known for known in self._sizes if known not in processes]:
            target, size = self._sizes.pop(process)
            if target in given_back:
                given_back[target] += size


def _expected(before: int, given_back: int) -> int:
    """Return what is expected after a tick in which this was given back, below 0 if allocated."""
    return max(int(before * (1 - FADE)) + given_back, 0)
