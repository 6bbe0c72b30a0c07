# SPDX-License-Identifier: MIT
"""Credentials of clients of the status socket: the kernel reports them, not the request."""

from __future__ import annotations

import os
from pathlib import Path

from hmd.base.errors import NotPermittedError
from hmd.control.client import send_admin_request
from hmd.control.requests import Peer
from tests.fakes.admin import Loop

NOBODY = 65534


def test_request_claiming_root_carries_the_callers_credentials(path: Path, loop: Loop) -> None:
    path.chmod(0o666)
    for folder in path.parents:
        if folder.is_relative_to(Path("/tmp")):
            folder.chmod(folder.stat().st_mode | 0o011)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            send_admin_request(path, "pause", {"uid": 0, "pid": 1, "peer": {"uid": 0}})
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert loop.taken[0][0].peer == Peer(child, NOBODY, NOBODY)


def test_socket_user_outside_the_group_is_refused(path: Path) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            send_admin_request(path, "pause")
        except NotPermittedError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"permission denied: ask as root or as a member of the socket's group" in os.read(
        read, 4096
    )
    os.close(read)
    os.close(write)
