"""Service notification: tells systemd of readiness, reloads, stops and life.

The protocol of sd_notify(3) is one datagram of ``NAME=value`` lines to the socket that
NOTIFY_SOCKET names, and is declared stable. Without that variable every call does nothing. A
lost datagram is no reason to stop, so that errors of the socket are ignored.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping


class Notifier:
    """The way to the service manager, if there is one.

    ``watchdog_s`` is how often it wants a sign of life at least, None where it wants none.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID."""
        self._address = environ.get("NOTIFY_SOCKET", "")
        self.watchdog_s: float | None = None
        usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
        if usec.isdigit() and int(usec) and pid in ("", str(os.getpid())):
            self.watchdog_s = int(usec) / 1e6

    @property
    def present(self) -> bool:
        """True where somebody wants to be told."""
        return self._address.startswith(("/", "@"))

    def ready(self, status: str) -> None:
        """Tell that start-up, or a reload, is finished."""
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Tell that a reload begins; both lines must be in one datagram (sd_notify(3))."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Tell that the end has begun."""
        self._send("STOPPING=1", "STATUS=stopping")

    def status(self, text: str) -> None:
        """Say in one line what is going on, for ``systemctl status``."""
        self._send(f"STATUS={text}")

    def alive(self) -> None:
        """Give the watchdog its sign of life."""
        if self.watchdog_s is not None:
            self._send("WATCHDOG=1")

    def extend_start(self, seconds: float) -> None:
        """Ask for this much more time to get ready."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def _send(self, *lines: str) -> None:
        if not self.present:
            return
        # An abstract socket's name starts with a zero byte, written as @.
        address = self._address.replace("@", "\0", 1) if self._address[0] == "@" else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.setblocking(False)
            s.sendto("\n".join(line.replace("\n", " ") for line in lines).encode(), address)
