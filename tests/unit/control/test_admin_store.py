# SPDX-License-Identifier: MIT
"""The admin state on disk: what comes back, for whom, and what a damaged file does."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from hmd.base.errors import HmdError
from hmd.control.admin_store import AdminStore, describe
from hmd.control.commands import AdminCommands
from hmd.control.requests import ControlRequest
from hmd.linux.procfs import ProcessId
from hmd.policy.admin import AdminState, Pin
from tests.fakes.admin import ROOT_PEER, TwoNodes
from tests.fakes.toucher import Toucher

PROCESS = ProcessId(4711, 99)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc of one boot."""
    folder = tmp_path / "proc/sys/kernel/random"
    folder.mkdir(parents=True)
    (folder / "boot_id").write_text("first\n")
    return tmp_path / "proc"


@pytest.fixture
def store(tmp_path: Path, proc: Path) -> AdminStore:
    return AdminStore(tmp_path, proc)


def everything() -> AdminState:
    state = AdminState(
        paused=True,
        policy="age",
        pins={PROCESS: Pin(1, 5, 6), ProcessId(7, 7): Pin(None, 0, until_restart=True)},
        target_pins={"db": Pin(None, 0), "web": Pin(0, 0, until_restart=True)},
        moves={PROCESS: Pin(0, 0)},
    )
    state.drain(frozenset({2, 3}))
    state.until_restart = {"node 3"}
    return state


def test_state_comes_back_but_for_what_ends_with_the_daemon(store: AdminStore) -> None:
    store.save(everything())
    back = store.load()
    assert (back.paused, back.policy, set(back.drained)) == (True, "age", {2})
    assert back.pins == {PROCESS: Pin(1, 5, 6)}
    assert back.target_pins == {"db": Pin(None, 0)}
    assert not back.moves
    assert (
        describe(back) == "paused, policy age, node 2 drained, 1 process pinned, target db pinned"
    )


def test_state_after_reboot_has_no_pins_of_processes(
    store: AdminStore, tmp_path: Path, proc: Path
) -> None:
    store.save(everything())
    (proc / "sys/kernel/random/boot_id").write_text("second\n")
    back = AdminStore(tmp_path, proc).load()
    assert not back.pins
    assert (back.paused, list(back.target_pins)) == (True, ["db"])


def test_state_that_is_empty_again_is_stored_as_empty(store: AdminStore, tmp_path: Path) -> None:
    store.save(AdminState())
    assert not (tmp_path / "admin.json").exists()
    store.save(everything())
    assert (tmp_path / "admin.json").stat().st_mode & 0o777 == 0o600
    store.save(AdminState())
    assert describe(store.load()) == ""


def test_every_damaged_byte_is_refused_and_the_file_kept(store: AdminStore, tmp_path: Path) -> None:
    store.save(everything())
    file = tmp_path / "admin.json"
    good = file.read_bytes()
    for place in range(len(good) - 1):  # without the last newline
        file.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(HmdError, match=f"{file}: damaged .*see admin.json.damaged"):
            store.load()
        assert not file.exists()
    for length in range(len(good) - 1):
        file.write_bytes(good[:length])
        with pytest.raises(HmdError, match="damaged"):
            store.load()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"version":2}', "of version 2, which this hmd does not know"),
        (b"[]", "not an admin state"),
        (b"[" * 100000, "not an admin state"),
        (b'{"version":1,"paused":"yes"}', "not an admin state"),
        (b"no JSON", "not an admin state"),
    ],
)
def test_file_of_another_kind_is_refused(
    store: AdminStore, tmp_path: Path, line: bytes, reason: str
) -> None:
    digest = hashlib.sha256(line).hexdigest().encode()
    (tmp_path / "admin.json").write_bytes(line + b"\n" + digest + b"\n")
    with pytest.raises(HmdError, match=reason):
        store.load()


def test_unreadable_file_is_named(store: AdminStore, tmp_path: Path) -> None:
    (tmp_path / "admin.json").mkdir()
    with pytest.raises(HmdError, match=f"admin.json: {os.strerror(errno.EISDIR)}"):
        store.load()


def test_command_says_when_its_effect_ends_before_a_restart(
    tmp_path: Path, proc: Path, toucher: Toucher
) -> None:
    daemon = TwoNodes(toucher.process)

    def execute(commands: AdminCommands, name: str, **arguments: object) -> str:
        return commands.execute(ControlRequest(name, arguments, ROOT_PEER)).line

    kept = AdminCommands(AdminState(), daemon, store=AdminStore(tmp_path, proc))
    assert execute(kept, "drain", node=1) == "draining node 1"
    assert execute(kept, "pin", target="db", until_restart=True).endswith("that it will have")
    assert describe(AdminStore(tmp_path, proc).load()) == "node 1 drained"
    gone = AdminCommands(AdminState(), daemon, store=AdminStore(tmp_path / "gone", proc))
    assert "not kept over a restart: cannot write" in execute(gone, "pause")
    unkept = AdminCommands(AdminState(), daemon)
    assert execute(unkept, "pause").endswith("; ends with the daemon, which has no state_dir")
    assert execute(unkept, "resume") == "resumed"
    with pytest.raises(HmdError, match="until_restart: give true or false"):
        execute(kept, "pause", until_restart="no")
