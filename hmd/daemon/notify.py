"""Service notification: readiness, reloads, stops and the watchdog, for systemd.

The protocol of sd_notify(3) is one datagram of ``NAME=value`` lines to the socket that
NOTIFY_SOCKET names, and is declared stable. Without that variable every call does nothing. Errors
of the socket are ignored: the daemon works without its service manager.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping


class Notifier:
    """The notification socket of the service manager, if there is one.

    ``watchdog_s`` is the watchdog's time limit between notifications, None without a watchdog.
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
