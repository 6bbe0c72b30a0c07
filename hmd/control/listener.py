"""The listening end of the status socket."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from hmd.errors import HmdError, os_error

MAX_PATH_BYTES: Final = 107
"""sun_path holds 108 bytes with its final zero (unix(7))."""

BACKLOG: Final = 1024
"""Clients that wait until the socket's thread takes them; the kernel has its own limit."""


def listen(path: Path) -> socket.socket:
    """Bind ``path`` (mode 0660), replacing the socket of a killed daemon; raises ``HmdError``."""
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise HmdError(f"observe.socket: {path} is longer than {MAX_PATH_BYTES} bytes: shorten it")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o117)  # the socket has mode 0660 from its creation on
    try:
        if path.is_socket():
            path.unlink()
        listener.bind(str(path))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise os_error(
            error,
            f"cannot make the status socket {path}: {error.strerror}; set observe.socket",
            HmdError,
        ) from None
    finally:
        os.umask(umask)
    return listener
