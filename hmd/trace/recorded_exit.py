"""When the first process of a recording ended: seen at once, whatever its recorder is at.

A look at a large process takes longer than its end should be told late; in the emulated machine,
where a recorder takes many times longer, by more than a tenth of a short run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from hmd.machine.process_id import PROC
from hmd.machine.threads import last_cpu
from hmd.trace.record_inputs import ClockPair, Sources

_POLL_S = 0.2
"""How long ``stop`` waits at most."""


class ChildExitWatch:
    """Waits for a process's end in a thread of its own; a context manager, which ends the thread.

    ``ended`` waits for so many seconds and returns whether the process has ended by then; what
    /proc tells of it must stay until the watch has ended.
    """

    def __init__(
        self, pid: int, ended: Callable[[float], bool], sources: Sources, proc: Path = PROC
    ) -> None:
        self._pid, self._ended, self._sources, self._proc = pid, ended, sources, proc
        self._seen = threading.Event()
        self._stopped = False
        self._moment: ClockPair | None = None
        self._thread = threading.Thread(target=self._watch, name="hmd-exit", daemon=True)

    def __enter__(self) -> ChildExitWatch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopped = True
        self._thread.join()

    def wait(self, timeout_s: float) -> ClockPair | None:
        """Return when the process ended, after waiting so long for that; None while it runs."""
        return self._moment if self._seen.wait(timeout_s) else None

    def _watch(self) -> None:
        while not self._stopped:
            if self._ended(_POLL_S):
                # Where each CPU has a clock, the end is by that of the CPU that it ended on.
                self._moment = self._sources.now(last_cpu(self._pid, self._proc))
                self._seen.set()
                return
