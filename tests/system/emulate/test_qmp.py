# SPDX-License-Identifier: MIT
"""The QMP client with a QEMU without a machine; memory hotplug is tested in the guest."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.fakes.qemu_monitor import Monitor, MonitorError

QEMU = "qemu-system-x86_64"


@pytest.fixture
def qemu() -> Iterator[tuple[Monitor, subprocess.Popen[bytes]]]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [
                *(QEMU, "-machine", "none", "-nodefaults", "-display", "none", "-S"),
                *("-chardev", f"socket,id=monitor,fd={theirs.fileno()}"),
                *("-mon", "chardev=monitor,mode=control"),
            ],
            pass_fds=[theirs.fileno()],
        )
    monitor = Monitor(ours)
    yield monitor, process
    monitor.close()
    process.kill()
    process.wait()


def test_qmp_commands_return_answers_and_events(
    qemu: tuple[Monitor, subprocess.Popen[bytes]],
) -> None:
    monitor, _ = qemu
    assert monitor.do("query-status")["running"] is False
    monitor.do("cont")
    monitor.do("stop")
    assert monitor.wait("STOP", 10) == {}
    assert monitor.wait("RESUME", 10) == {}
    with pytest.raises(MonitorError, match="does not answer"):
        monitor.wait("STOP", 0.05)


def test_qmp_refused_command_raises_and_connection_continues(
    qemu: tuple[Monitor, subprocess.Popen[bytes]],
) -> None:
    monitor, _ = qemu
    with pytest.raises(MonitorError, match="QEMU refuses device_del: Device 'dimm7' not found"):
        monitor.do("device_del", id="dimm7")
    assert monitor.do("query-status")["running"] is False


def test_qmp_command_after_qemu_exit_raises(qemu: tuple[Monitor, subprocess.Popen[bytes]]) -> None:
    monitor, process = qemu
    monitor.do("query-status")
    process.kill()
    process.wait()
    with pytest.raises(MonitorError, match=r"hung up|does not answer"):
        monitor.do("query-status")
