# SPDX-License-Identifier: MIT
"""hmd permits an owner what the kernel permits the owner without hmd, and no more."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hmd.base.errors import NotPermittedError
from hmd.control.commands import AdminCommands, drop_stale_pins
from hmd.control.requests import ControlRequest, Peer, check_caller, owns, visible_to
from hmd.linux.procfs import identify
from hmd.policy.admin import AdminState
from tests.system.control.other_user import (
    ALICE,
    ALICE_GROUP,
    BOB,
    STATES,
    kernel_refuses,
    process_in,
)

PEER = Peer(0, ALICE, ALICE_GROUP)


@pytest.mark.parametrize("state", STATES)
def test_permission_of_owner_equals_the_kernels(state: str) -> None:
    with process_in(state) as pid:
        process = identify(pid)
        assert process is not None
        assert owns(PEER, process) == (not kernel_refuses(pid)) == (state == "its own")
        assert visible_to(PEER)(process) == (state == "its own")
        assert visible_to(Peer(0, 0, 0))(process)


def test_pin_ends_at_exec_of_a_program_with_another_identity(
    commands: AdminCommands, state: AdminState, tmp_path: Path
) -> None:
    """The process keeps its pid and start time when it becomes a set-user-ID program."""
    program = tmp_path / "setuid"
    shutil.copy("/bin/sleep", program)
    program.chmod(0o4755)
    for folder in program.parents:
        if folder.is_relative_to("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o011)
    words = ["/bin/sh", "-c", f"read go; exec {program} 1000"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, user=ALICE, group=ALICE_GROUP) as process:
        commands.execute(ControlRequest("pin", {"pid": process.pid}, PEER))
        drop_stale_pins(state)
        assert [pinned.pid for pinned in state.pins] == [process.pid]
        before = identify(process.pid)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        while Path(f"/proc/{process.pid}/comm").read_text() != "setuid\n":
            pass
        assert identify(process.pid) == before
        drop_stale_pins(state)
        assert not state.pins
        process.kill()


def test_pin_by_root_stays_at_exec(commands: AdminCommands, state: AdminState) -> None:
    with process_in("not dumpable") as pid:
        root = Peer(os.getpid(), 0, 0)
        commands.execute(ControlRequest("pin", {"pid": pid}, root))
        drop_stale_pins(state)
        assert [pinned.pid for pinned in state.pins] == [pid]


def test_caller_in_a_program_of_another_user_refused() -> None:
    """SO_PEERCRED has the effective uid; the kernel's own check takes the real one."""
    with process_in("another effective uid") as pid:
        check_caller(Peer(pid, 0, 0))  # root may everything
        with pytest.raises(NotPermittedError, match=f"has the real uid {ALICE} and gid"):
            check_caller(Peer(pid, BOB, BOB))


def test_move_pages_number_is_that_of_this_machine() -> None:
    """The helper calls the kernel by number: 279 on x86-64."""
    assert os.uname().machine == "x86_64"
    assert ctypes.CDLL(None).syscall(279, 0, 0, None, None, None, 0) == 0
    assert sys.platform == "linux"
