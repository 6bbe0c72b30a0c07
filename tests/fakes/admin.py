# SPDX-License-Identifier: MIT
"""Admin requests without a daemon: what commands act on, a loop that answers, and fixtures.

The conftest.py of a folder imports the fixtures.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path

import pytest

from hmd.base.errors import UsageError
from hmd.control.commands import AdminCommands
from hmd.control.requests import ControlRequest, Peer
from hmd.control.status_socket import StatusSocket
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Node, Topology
from hmd.policy.admin import AdminState
from tests.fakes.toucher import Toucher

ROOT_PEER = Peer(os.getpid(), 0, 0)
USER_PEER = Peer(os.getpid(), 4711, 4711)
OTHER_PEER = Peer(0, 4712, 4712)
"""A user in another pid namespace."""


class TwoNodes:
    """A daemon of two nodes that follows one process."""

    def __init__(self, process: ProcessId) -> None:
        self.topology = Topology(
            (Node(0, (0,), 1 << 30, (10, 20), 0), Node(1, (), 1 << 30, (20, 10), 1))
        )
        self.followed: Mapping[ProcessId, str] = {process: "db"}
        self.target_names = ("db", "web")
        self.policies: list[str | None] = []

    def set_policy(self, name: str | None) -> None:
        if name == "broken":
            raise UsageError("no such policy")
        if name == "bug":
            raise ZeroDivisionError
        self.policies.append(name)

    def explain(self, process: ProcessId, address: int | None) -> dict[str, object]:
        return {"pid": process.pid, "address": address}


class Loop:
    """Stand-in for the daemon's loop: it queues requests, and answers them on demand."""

    def __init__(self) -> None:
        self.taken: list[tuple[ControlRequest, Future[bytes]]] = []
        self.arrived = threading.Semaphore(0)
        self.at_once = True

    def put(self, request: ControlRequest) -> Future[bytes]:
        pending: Future[bytes] = Future()
        self.taken.append((request, pending))
        if self.at_once:
            pending.set_result(json.dumps({"done": sorted(request.arguments)}).encode())
        self.arrived.release()
        return pending

    def fail(self, _: ControlRequest) -> Future[bytes]:
        raise ZeroDivisionError


@pytest.fixture
def state() -> AdminState:
    return AdminState()


@pytest.fixture
def daemon(toucher: Toucher) -> TwoNodes:
    return TwoNodes(toucher.process)


@pytest.fixture
def commands(state: AdminState, daemon: TwoNodes) -> AdminCommands:
    return AdminCommands(state, daemon)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def path(tmp_path: Path, loop: Loop) -> Iterator[Path]:
    path = tmp_path / "hmd.sock"
    handlers = {"pause": loop.put, "fail": loop.fail}
    server = StatusSocket(path, {"status": lambda _: b'{"ticks": 7}'}, handlers, admin_time_s=0.5)
    yield path
    server.close()
