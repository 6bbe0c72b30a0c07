"""What administrators requested and is in force: pause, drained nodes, pins, another policy.

One object for the life of the daemon; a reload builds new stages around it. It is not stored: a
restarted daemon begins with the configuration alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.control.permission import owns
from hmd.control.request import Peer
from hmd.machine.process_id import PROC, ProcessId, alive

STALLED_TICKS: Final = 3
"""Ticks without progress after which the rest of a drained node counts as unmovable."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A process's pages stay on ``node``, or where they are (None); ``uid``, ``gid`` asked."""

    node: int | None
    uid: int
    gid: int = 0


@dataclass(slots=True)
class AdminState:
    """The admin requests in force; only the daemon's loop writes it.

    ``pins`` are of processes, ``target_pins`` of all processes that a target has or will have.
    ``moves`` are under way and are dropped when they are done. ``policy`` replaces that of the
    configuration. ``stalled_ticks`` counts ticks in which drains made no progress, ``drains`` how
    often the set of drained nodes has changed.
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
    def any_pins(self) -> bool:
        """Whether there are pins or moves; without any, processes need no look-up."""
        return bool(self.pins or self.target_pins or self.moves)

    def pin_of(self, process: ProcessId, target: str) -> Pin | None:
        """Return the pin or move of a process, None where policies may move its pages."""
        return self.pins.get(process) or self.target_pins.get(target) or self.moves.get(process)

    def pinned_mask(
        self, processes: Sequence[ProcessId], targets: Sequence[str]
    ) -> npt.NDArray[np.bool_]:
        """Return which processes' pages policies may not move, shape ``(processes,)``.

        Raises ValueError unless there is a target for each process: compiled kernels read the mask
        by process, and check no bounds.
        """
        if not self.any_pins:
            return np.zeros(len(processes), np.bool_)
        pins = self._pins_of(processes, targets)
        return np.array([pin is not None for pin in pins], np.bool_)

    def pin_nodes(
        self, processes: Sequence[ProcessId], targets: Sequence[str]
    ) -> npt.NDArray[np.int64]:
        """Return the node that each process is pinned to, -1 for none, shape ``(processes,)``.

        Raises as :meth:`pinned_mask` does.
        """
        if not self.any_pins:
            return np.full(len(processes), -1, np.int64)
        pins = self._pins_of(processes, targets)
        return np.array([-1 if p is None or p.node is None else p.node for p in pins], np.int64)

    def _pins_of(self, processes: Sequence[ProcessId], targets: Sequence[str]) -> list[Pin | None]:
        return [self.pin_of(p, target) for p, target in zip(processes, targets, strict=True)]

    def drain(self, nodes: frozenset[int]) -> None:
        """Replace the set of drained nodes."""
        self.drained, self.stalled_ticks = nodes, 0
        self.drains += 1

    def forget_exited(self, proc: Path = PROC) -> None:
        """Drop pins and moves of processes that have exited or are not their setter's any more.

        A process keeps its pid and start time when it executes a set-user-ID program.
        """
        for pins in (self.pins, self.moves):
            for process, pin in list(pins.items()):
                setter = Peer(0, pin.uid, pin.gid)
                if not (alive(process, proc) and owns(setter, process, proc)):
                    del pins[process]

    def end_moves(self, processes: Iterable[ProcessId]) -> None:
        """Drop the moves of these processes: policies may move their pages again."""
        for process in processes:
            self.moves.pop(process, None)
