"""Pins of several users: each has a share of the limit."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

import pytest

from hmd.control.admin_commands import AdminCommands
from hmd.control.admin_state import AdminState
from hmd.control.request import ControlRequest, Peer
from hmd.errors import UsageError
from hmd.machine.process_id import ProcessId, identify
from hmd.machine.topology import Node, Topology
from tests.fakes.toucher import Toucher

OURS = Peer(os.getpid(), 0, 0)


THEIRS = Peer(os.getpid(), 4711, 4711)


class TwoNodes:
    """A daemon of two nodes that follows one process."""

    def __init__(self, process: ProcessId) -> None:
        self.topology = Topology(
            (Node(0, (0,), 1 << 30, (10, 20), 0), Node(1, (), 1 << 30, (20, 10), 1))
        )
        self.followed: Mapping[ProcessId, str] = {process: "db"}
        self.target_names = ("db", "web")
        self.policies: list[str | None] = []

    def use_policy(self, name: str | None) -> None:
        if name == "broken":
            raise UsageError("no such policy")
        if name == "bug":
            raise ZeroDivisionError
        self.policies.append(name)


@pytest.fixture
def state() -> AdminState:
    return AdminState()


@pytest.fixture
def daemon(toucher: Toucher) -> TwoNodes:
    return TwoNodes(toucher.process)


@pytest.fixture
def commands(state: AdminState, daemon: TwoNodes) -> AdminCommands:
    return AdminCommands(state, daemon)


def do(commands: AdminCommands, command: str, peer: Peer = OURS, **arguments: object) -> str:
    return commands.functions[command](ControlRequest(command, arguments, peer)).line


def test_pin_beyond_user_limit_is_refused(
    commands: AdminCommands, state: AdminState, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = identify(os.getpid())
    assert own is not None
    sleepers = [
        subprocess.Popen(["sleep", "99"], user=THEIRS.uid, group=THEIRS.gid) for _ in range(2)
    ]
    monkeypatch.setattr("hmd.control.admin_commands.MAX_OWN_PINS", 1)
    do(commands, "pin", pid=own.pid)
    do(commands, "pin", THEIRS, pid=sleepers[0].pid)
    with pytest.raises(UsageError, match="1 processes are pinned or moved for you"):
        do(commands, "pin", THEIRS, pid=sleepers[1].pid)
    do(commands, "pin", pid=sleepers[1].pid)
    for sleeper in sleepers:
        sleeper.kill()
        sleeper.wait()
