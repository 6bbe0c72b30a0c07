"""The wakeup descriptor: ends the daemon's wait for its next tick, at a signal or an admin request.

A pipe, which signal handlers may write to (signal.set_wakeup_fd) and select(2) can wait for.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from types import FrameType


class WakeupFd:
    """The pipe, open from construction to ``close``."""

    def __init__(self) -> None:
        """Open the pipe."""
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def wake(self) -> None:
        """End the current wait, or the next one; any thread may call it."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"x")

    def wait(self, seconds: float) -> bool:
        """Sleep for so many seconds at most; return whether it was woken."""
        ready, _, _ = select.select([self._read], [], [], seconds)
        if ready:
            os.read(self._read, 4096)
        return bool(ready)

    @contextlib.contextmanager
    def on(self, numbers: Sequence[signal.Signals], do: Callable[[int], None]) -> Iterator[None]:
        """Handle signals by ``do``, each ends a wait; SIGHUP is unblocked."""

        def on_signal(number: int, _: FrameType | None) -> None:
            do(number)

        old = {number: signal.signal(number, on_signal) for number in numbers}
        old_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        try:
            yield
        finally:
            signal.set_wakeup_fd(old_fd)
            for number, handler in old.items():
                signal.signal(number, handler)

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._read)
        os.close(self._write)
