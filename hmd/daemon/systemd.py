# SPDX-License-Identifier: MIT
"""Service notification: readiness, reloads, stops and the watchdog, for systemd.

The protocol of sd_notify(3) is one datagram of ``NAME=value`` lines to the socket that
NOTIFY_SOCKET names. Without that variable every call does nothing. Errors of the socket are
ignored: the daemon works without its service manager.

The wait for the next tick ends at a signal or an admin request (:class:`WakeupFd`).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType


class Notifier:
    """The notification socket of the service manager, if there is one.

    ``watchdog_s`` is the watchdog's time limit between notifications, None without a watchdog.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self.watchdog_s: float | None = None
        usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
        if usec.isdigit() and int(usec) and pid in ("", str(os.getpid())):
            self.watchdog_s = int(usec) / 1e6

    @property
    def present(self) -> bool:
        """True where there is a service manager to notify."""
        return self._address.startswith(("/", "@"))

    def ready(self, status: str) -> None:
        """Notify that start-up, or a reload, is finished."""
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Notify that a reload begins; both lines must be in one datagram (sd_notify(3))."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Notify that the service is stopping."""
        self._send("STOPPING=1", "STATUS=stopping")

    def status(self, text: str) -> None:
        """Set the status line of ``systemctl status``."""
        self._send(f"STATUS={text}")

    def alive(self) -> None:
        """Send the watchdog its notification."""
        if self.watchdog_s is not None:
            self._send("WATCHDOG=1")

    def extend_start(self, seconds: float) -> None:
        """Ask for this much more time for start-up."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def _send(self, *lines: str) -> None:
        if not self.present:
            return
        # An abstract socket's name starts with a zero byte, written as @.
        address = self._address.replace("@", "\0", 1) if self._address[0] == "@" else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.setblocking(False)
            s.sendto("\n".join(line.replace("\n", " ") for line in lines).encode(), address)


class WakeupFd:
    """A pipe that ends the daemon's wait; signal handlers may write to it."""

    def __init__(self) -> None:
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
