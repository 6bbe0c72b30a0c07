# SPDX-License-Identifier: MIT
"""Pins of several users: each has a share of the limit."""

from __future__ import annotations

import os
import subprocess

import pytest

from hmd.base.errors import HmdError
from hmd.control.commands import AdminCommands
from hmd.control.requests import ControlRequest, Peer
from hmd.linux.procfs import identify
from hmd.policy.admin import AdminState
from tests.fakes.admin import ROOT_PEER, USER_PEER


def execute(
    commands: AdminCommands, command: str, peer: Peer = ROOT_PEER, **arguments: object
) -> str:
    return commands.execute(ControlRequest(command, arguments, peer)).line


def test_pin_beyond_user_limit_is_refused(
    commands: AdminCommands, state: AdminState, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = identify(os.getpid())
    assert own is not None
    sleepers = [
        subprocess.Popen(["sleep", "99"], user=USER_PEER.uid, group=USER_PEER.gid) for _ in range(2)
    ]
    monkeypatch.setattr("hmd.control.commands.MAX_OWN_PINS", 1)
    execute(commands, "pin", pid=own.pid)
    execute(commands, "pin", USER_PEER, pid=sleepers[0].pid)
    with pytest.raises(HmdError, match="1 processes are pinned or moved for you"):
        execute(commands, "pin", USER_PEER, pid=sleepers[1].pid)
    execute(commands, "pin", pid=sleepers[1].pid)
    for sleeper in sleepers:
        sleeper.kill()
        sleeper.wait()
