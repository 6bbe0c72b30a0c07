"""The CPU time of a block without what the compiler takes in it.

The functions of :func:`hmd.tensors.step_state.compiled` are compiled when they are first called,
once per installation: about a minute for all, which says nothing about a planner.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from numba.core import event


class _Compiling(event.Listener):
    """Sums the CPU time between the outermost start and end of compilations, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0
        self._begin = 0.0

    def on_start(self, event: event.Event) -> None:
        """Note the begin of a compilation; a function compiles those that it calls."""
        if self._depth == 0:
            self._begin = time.process_time()
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        """Note the end of a compilation."""
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.process_time() - self._begin


@dataclass
class PlanningTime:
    """The CPU ``seconds`` of this process in a block, without compilations."""

    seconds: float = 0.0


@contextmanager
def planning_time() -> Iterator[PlanningTime]:
    """Measure a block; the result is known at its end."""
    spent, compiling = PlanningTime(), _Compiling()
    begin = time.process_time()
    try:
        with event.install_listener("numba:compile", compiling):
            yield spent
    finally:
        spent.seconds = time.process_time() - begin - compiling.seconds
