"""The CPU time of a block without what the compiler takes in it.

The functions of :func:`hmd.tensors.step_state.compiled` are compiled when they are first called,
once per installation: about a minute for all, which says nothing about a planner.
"""

from __future__ import annotations

import time
from types import TracebackType

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


class PlanningTime:
    """A context; ``seconds`` is the CPU time of this process in it, without compilations."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._compiling = _Compiling()
        self._begin = 0.0

    def __enter__(self) -> PlanningTime:
        event.register("numba:compile", self._compiling)  # type: ignore[no-untyped-call]
        self._begin = time.process_time()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds = time.process_time() - self._begin - self._compiling.seconds
        event.unregister("numba:compile", self._compiling)  # type: ignore[no-untyped-call]
