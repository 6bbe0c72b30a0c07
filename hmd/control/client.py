# SPDX-License-Identifier: MIT
"""The client of the status socket: queries and admin requests."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hmd.base.errors import (
    ConfigError,
    HmdError,
    MissingError,
    NotPermittedError,
    TargetError,
    UnreachableError,
    UsageError,
)

MAX_ANSWER_BYTES: Final = 64 * 2**20
QUERY_TIMEOUT_S: Final = 5.0
ADMIN_TIMEOUT_S: Final = 90.0
"""Admin requests are answered after the tick in progress, or withdrawn after a minute."""

_ERRORS = {
    int(kind.exit_code): kind
    for kind in (UsageError, ConfigError, MissingError, NotPermittedError, TargetError)
}


def ask(
    path: Path,
    command: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    timeout_s: float = QUERY_TIMEOUT_S,
) -> dict[str, Any]:
    """Return the daemon's answer.

    Raises ``HmdError`` with the daemon's line where it refuses: ``NotPermittedError``,
    ``TargetError`` for a process or node that does not exist, ``UsageError`` for a command that it
    does not know or arguments that do not go together. ``UnreachableError`` where no answer comes
    within ``timeout_s``, ``NotPermittedError`` where the caller may not connect.
    """
    answer = ask_bytes(path, command, arguments, timeout_s=timeout_s)
    document = None
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(answer)
    if not isinstance(document, dict):
        raise UnreachableError(f"{path} answers, but not in hmd's protocol")
    if "error" in document:
        raise _ERRORS.get(document.get("code", 1), HmdError)(str(document["error"]))
    return document


def send_admin_request(
    path: Path, command: str, arguments: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Have the daemon execute an admin request, and return its answer; raises as :func:`ask`."""
    return ask(path, command, arguments, timeout_s=ADMIN_TIMEOUT_S)


def ask_bytes(
    path: Path,
    command: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    timeout_s: float = QUERY_TIMEOUT_S,
    max_bytes: int = MAX_ANSWER_BYTES,
) -> bytes:
    """Return what is sent in answer to a request, whatever it is; raises as :func:`ask` does."""
    request = {**(arguments or {}), "command": command}
    deadline_s = time.monotonic() + timeout_s
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            s.settimeout(timeout_s)
            _connect(s, path, deadline_s)
            s.sendall(json.dumps(request).encode() + b"\n")
            return _receive(s, deadline_s, max_bytes)
    except (FileNotFoundError, ConnectionRefusedError):
        raise UnreachableError(
            f"no daemon answers on {path}: start one (hmd run --config FILE, or systemctl start "
            "hmd), or give its socket with --socket"
        ) from None
    except PermissionError:
        raise NotPermittedError(
            f"{path}: permission denied: ask as root or as a member of the socket's group"
        ) from None
    except OSError as error:
        raise UnreachableError(
            f"the daemon on {path} does not answer: {error.strerror or error}"
        ) from None


def _connect(s: socket.socket, path: Path, deadline_s: float) -> None:
    """Connect, and retry while the listener's queue is full: unix(7) sockets return EAGAIN."""
    while True:
        try:
            return s.connect(str(path))
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(0.01)


def _receive(s: socket.socket, deadline_s: float, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := s.recv(1 << 16):
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise OSError(f"the answer exceeds {max_bytes} bytes")
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        s.settimeout(left_s)
    return b"".join(parts)
