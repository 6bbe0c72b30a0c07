"""What people have ordered and still holds: pause, drained nodes, pinned processes, a policy.

One object for the life of the daemon: a reload builds new stages around it. It is gone with the
daemon; a restart begins with the configuration alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.machine.process_id import PROC, ProcessId, alive

STALLED_TICKS: Final = 3
"""So many ticks in which nothing of a drained node could be moved: the rest is told to stay."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Where a process's pages are to be: on ``node``, or where they are (None); by whose order."""

    node: int | None
    uid: int


@dataclass(slots=True)
class Standing:
    """The orders in force; the daemon's loop alone writes it.

    ``pins`` are of processes, ``target_pins`` of all that a target has or will have. ``moves`` are
    under way and end by themselves. ``policy`` takes the place of the configuration's.
    ``stalled_ticks`` counts ticks in which drains got no further, ``drains`` how often nodes were
    drained or undrained.
    """

    paused: bool = False
    policy: str | None = None
    drained: frozenset[int] = frozenset()
    pins: dict[ProcessId, Pin] = field(default_factory=dict)
    target_pins: dict[str, Pin] = field(default_factory=dict)
    moves: dict[ProcessId, Pin] = field(default_factory=dict)
    stalled_ticks: int = 0
    drains: int = 0

    @property
    def pinned(self) -> bool:
        """Tell whether there are any pins or moves: mostly there are none, of ten thousand."""
        return bool(self.pins or self.target_pins or self.moves)

    def pin_of(self, process: ProcessId, target: str) -> Pin | None:
        """Return what holds for a process, None where policies may move it."""
        return self.pins.get(process) or self.target_pins.get(target) or self.moves.get(process)

    def held(self, processes: Sequence[ProcessId], targets: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return which processes policies are to leave alone, shape ``(processes,)``."""
        if not self.pinned:
            return np.zeros(len(processes), np.bool_)
        pins = map(self.pin_of, processes, targets)
        return np.array([pin is not None for pin in pins], np.bool_)

    def goals(
        self, processes: Sequence[ProcessId], targets: Sequence[str]
    ) -> npt.NDArray[np.int64]:
        """Return the node where each process's pages are to be, -1 for any; ``(processes,)``."""
        if not self.pinned:
            return np.full(len(processes), -1, np.int64)
        pins = map(self.pin_of, processes, targets)
        return np.array([-1 if p is None or p.node is None else p.node for p in pins], np.int64)

    def drain(self, nodes: frozenset[int]) -> None:
        """Have these nodes, and no others, be drained."""
        self.drained, self.stalled_ticks = nodes, 0
        self.drains += 1

    def forget_exited(self, proc: Path = PROC) -> None:
        """Drop what was ordered of processes that have gone."""
        for orders in (self.pins, self.moves):
            for process in [process for process in orders if not alive(process, proc)]:
                del orders[process]

    def end_moves(self, processes: Iterable[ProcessId]) -> None:
        """Take moves for done; policies have the pages again."""
        for process in processes:
            self.moves.pop(process, None)
