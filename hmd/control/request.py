"""A request on the status socket, with the credentials of its client.

A request is one line of JSON, ``{"command": NAME, ...}``; the other keys are its arguments. Every
part of a line is validated before use.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from hmd.errors import Exit, HmdError, UsageError

MAX_REQUEST_BYTES: Final = 4096
_UCRED: Final = struct.Struct("iII")
"""struct ucred (unix(7)): pid, uid, gid."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The credentials of a client, which the kernel took when it connected."""

    pid: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A command with its arguments, and the client that sent it."""

    command: str
    arguments: Mapping[str, Any]
    peer: Peer


def peer_of(connection: socket.socket) -> Peer:
    """Return the credentials of a connected Unix socket's other end (SO_PEERCRED, unix(7))."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return Peer(*_UCRED.unpack(data))


def parse_request(line: bytes, peer: Peer) -> ControlRequest:
    """Return the request of a line; raises ``UsageError``."""
    if len(line) > MAX_REQUEST_BYTES:
        raise UsageError(f"a request has at most {MAX_REQUEST_BYTES} bytes")
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise UsageError('not JSON: send a line such as {"command":"status"}') from None
    command = document.pop("command", None) if isinstance(document, dict) else None
    if not isinstance(command, str):
        raise UsageError('no command: send a line such as {"command":"status"}')
    return ControlRequest(command, document, peer)


def error_answer(error: Exception) -> bytes:
    """Return the answer for an error: one line, and the exit code that goes with it."""
    text = " ".join(str(error).split()) or type(error).__name__
    code = error.exit_code if isinstance(error, HmdError) else Exit.FAILURE
    return json.dumps({"error": text, "code": int(code)}).encode()
