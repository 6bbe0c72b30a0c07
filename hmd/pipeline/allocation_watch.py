"""What programs are expected to allocate: memory that they gave back lately.

Takes the memory of all nodes at each tick; gives how much less is used than was, as far as that is
recent. Programs that free a buffer tend to allocate another one, and what was just allocated is
often the hottest: the room that the first one leaves on the fastest tier is kept for it as
headroom, instead of being filled at once with pages that are barely warm. Where nothing is given
back, nothing is kept. Moves between nodes do not change the sum. Costs microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hmd.machine.topology import NodeMemory

FADE: Final = 1 / 16
"""Share of the expectation that a tick takes off: what is not allocated soon is not awaited."""


class AllocationWatch:
    """Compares each tick's memory with that of the one before.

    ``expected_bytes`` is None before two ticks of the same nodes.
    """

    def __init__(self) -> None:
        self.expected_bytes: int | None = None
        self._before: tuple[tuple[tuple[int, int], ...], int] | None = None

    def follow(self, memory: Sequence[NodeMemory]) -> None:
        """Take the memory of all nodes at a tick."""
        nodes = tuple((node.node, node.total_bytes) for node in memory)
        room = sum(node.room_bytes for node in memory)
        before, self._before = self._before, (nodes, room)
        if before is None or before[0] != nodes:
            return
        given_back, expected = room - before[1], self.expected_bytes or 0
        self.expected_bytes = max(int(expected * (1 - FADE)) + given_back, 0)
