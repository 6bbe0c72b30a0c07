"""One daemon per status socket: a lock file next to it.

The kernel releases flock(2) however the process ends, so that after a kill -9 the next start
finds the lock free, and may remove the socket that was left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from hmd.errors import HmdError, os_error


class InstanceLock:
    """The lock of ``socket``, held until ``release`` or the end of the process."""

    def __init__(self, socket: Path) -> None:
        """Take the lock, creating the folder of the socket (but not its parents) if need be.

        Raises ``HmdError`` where another daemon holds it or the folder cannot be used.
        """
        if not socket.name:
            raise HmdError(f"{socket} is a folder: set observe.socket to the path of a file")
        path = socket.with_name(socket.name + ".lock")
        try:
            socket.parent.mkdir(mode=0o755, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise os_error(
                error,
                f"cannot use {socket.parent} for the status socket: {error.strerror}; "
                "run as root, or set observe.socket to a path of yours",
                HmdError,
            ) from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            raise HmdError(
                f"another hmd{f' (pid {holder})' if holder else ''} already serves {socket}: "
                "stop it, or set observe.socket to another path"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock; the file stays, since to remove it would race with the next holder."""
        with contextlib.suppress(OSError):
            os.close(self._fd)
        self._fd = -1
