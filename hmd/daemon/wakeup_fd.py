"""What ends the daemon's wait for its next tick: a signal, or an order.

Takes signals and calls of :meth:`Waker.wake` from any thread, gives the end of a wait. A pipe, as
signal handlers may write to one (signal.set_wakeup_fd), and select(2) waits for one.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from types import FrameType


class Waker:
    """The pipe, open from construction to ``close``."""

    def __init__(self) -> None:
        """Wait for nothing yet."""
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def wake(self) -> None:
        """End a wait, the next one if there is none now."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"x")

    def wait(self, seconds: float) -> bool:
        """Sleep; says whether somebody woke it."""
        ready, _, _ = select.select([self._read], [], [], seconds)
        if ready:
            os.read(self._read, 4096)
        return bool(ready)

    @contextlib.contextmanager
    def on(self, numbers: Sequence[signal.Signals], do: Callable[[int], None]) -> Iterator[None]:
        """Have signals do something and end a wait; they may be blocked until now."""

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
        """Free the pipe."""
        os.close(self._read)
        os.close(self._write)
