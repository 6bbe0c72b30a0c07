# SPDX-License-Identifier: MIT
"""Notifications of the service manager, and one daemon per socket."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hmd.base.errors import HmdError
from hmd.daemon.endpoints import InstanceLock
from hmd.daemon.systemd import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        if request.param == "path":
            s.bind(str(tmp_path / "notify"))
            address = str(tmp_path / "notify")
        else:
            s.bind(f"\0hmd-test-{os.getpid()}")
            address = f"@hmd-test-{os.getpid()}"
        s.settimeout(5)
        yield s, address


def test_notifier_messages_sent_in_one_datagram_each(manager: tuple[socket.socket, str]) -> None:
    s, address = manager
    notifier = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000"})
    notifier.ready("serving 2 targets\nnow")
    notifier.reloading()
    notifier.status("idle")
    notifier.alive()
    notifier.extend_start(2.5)
    notifier.stopping()
    received = [s.recv(4096).decode() for _ in range(6)]
    assert received[0] == "READY=1\nSTATUS=serving 2 targets now"
    assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+", received[1])
    assert received[2:] == [
        "STATUS=idle",
        "WATCHDOG=1",
        "EXTEND_TIMEOUT_USEC=2500000",
        "STOPPING=1\nSTATUS=stopping",
    ]


@pytest.mark.parametrize("address", ["", "/nowhere/notify", "@hmd-no-listener", "vsock:2:1"])
def test_notifier_without_listener_does_not_fail(address: str) -> None:
    Notifier({"NOTIFY_SOCKET": address}).ready("x")
    Notifier({}).ready("x")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "2000000"}, 2.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())}, 2.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "often"}, None),
    ],
)
def test_notifier_watchdog_time_read_for_own_pid_only(
    environ: dict[str, str], expected: float | None
) -> None:
    assert Notifier(environ).watchdog_s == expected


def test_instance_lock_of_root_folder_refused() -> None:
    with pytest.raises(HmdError, match="is a folder: set observe"):
        InstanceLock(Path("/"))
