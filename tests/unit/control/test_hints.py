# SPDX-License-Identifier: MIT
"""Hints over the status socket: of the process that connects, bounded, and counted."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hmd.base.errors import HmdError, TargetError, UsageError
from hmd.control import commands
from hmd.control.client import ask
from hmd.control.commands import HintReceiver
from hmd.control.requests import MAX_REQUEST_BYTES, ControlRequest, Peer
from hmd.control.status_socket import StatusSocket
from hmd.linux.procfs import ProcessId
from hmd.policy.use_hints import STEP_PARTS, HintTable
from tests.fakes.hints import receiver_of, this_process

HINT = {"plan": 1, "first": 0, "uses": [[4096, 4096, 0, STEP_PARTS, 64]], "step_ns": 10**9}


@pytest.fixture
def table() -> HintTable:
    return HintTable()


@pytest.fixture
def receiver(table: HintTable) -> HintReceiver:
    return receiver_of(table)


@pytest.fixture
def path(tmp_path: Path, receiver: HintReceiver) -> Iterator[Path]:
    server = StatusSocket(tmp_path / "hmd.sock", {"hint": receiver.receive})
    yield server.path
    server.close()


def hint() -> dict[str, object]:
    return {**HINT, "begun_ns": time.monotonic_ns()}


def test_hint_taken_of_process_that_connects(
    path: Path, table: HintTable, receiver: HintReceiver
) -> None:
    assert ask(path, "hint", hint()) == {}
    found = table.at([this_process()], time.monotonic())
    assert found is not None
    assert found.address.tolist() == [4096]
    assert receiver.outcomes == {"done": 1, "refused": 0}


def test_hint_that_names_a_process_refused(
    path: Path, table: HintTable, receiver: HintReceiver
) -> None:
    with pytest.raises(UsageError, match="hint: give"):
        ask(path, "hint", {**hint(), "pid": 1})
    assert receiver.outcomes == {"done": 0, "refused": 1}
    assert table.at([this_process(), ProcessId(1, 0)], time.monotonic()) is None


def test_hint_of_process_that_no_target_has_refused(table: HintTable) -> None:
    receiver = HintReceiver(table, set)
    request = ControlRequest("hint", hint(), Peer(os.getpid(), os.getuid(), os.getgid()))
    with pytest.raises(TargetError, match="belongs to no target"):
        receiver.receive(request)
    assert receiver.outcomes["refused"] == 1


def test_hints_of_user_beyond_rate_refused(
    receiver: HintReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "is_administrator", lambda peer: False)
    request = ControlRequest("hint", hint(), Peer(os.getpid(), os.getuid(), os.getgid()))
    taken = 0
    with pytest.raises(HmdError, match="asks too often"):
        for _ in range(2000):
            receiver.receive(request)
            taken += 1
    assert 0 < taken < 2000
    assert receiver.outcomes == {"done": taken, "refused": 1}


def test_hint_too_long_refused(path: Path) -> None:
    uses = HINT["uses"]
    assert isinstance(uses, list)
    line = json.dumps({**hint(), "uses": uses * 200})
    assert len(line) > MAX_REQUEST_BYTES
    with pytest.raises(HmdError):
        ask(path, "hint", {**hint(), "uses": uses * 200})
