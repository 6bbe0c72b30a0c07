# SPDX-License-Identifier: MIT
"""``hmd drain`` against a socket that reports the progress of a drain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from hmd.base.errors import Exit
from hmd.cli.main import main
from hmd.control.requests import ControlRequest
from hmd.control.status_socket import StatusSocket

USE = {
    "total_bytes": 1 << 30,
    "used_bytes": 3 << 20,
    "program_bytes": 1 << 20,
    "cache_bytes": 1 << 20,
    "locked_bytes": 0,
    "kernel_bytes": 1 << 20,
    "pool_bytes": 80 << 20,
    "hugetlb_pages": 0,
}


def drain(node: int = 1, **more: Any) -> dict[str, Any]:
    progress = {"node": node, "there": True, "use": USE, "waiting_pages": 0, "moved_pages": 5}
    return {**progress, "passes": 1, "left": {}, "settled": True, **more}


class Daemon:
    """Answers of the socket: the given states in order, then the last one repeatedly."""

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []
        self.requests: list[ControlRequest] = []

    def report(self, *drains: dict[str, Any], paused: bool = False) -> None:
        self.states.append({"paused": paused, "drains": list(drains)})

    def status(self, _: ControlRequest) -> bytes:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return json.dumps({"control": state}).encode()

    def accept(self, request: ControlRequest) -> Future[bytes]:
        self.requests.append(request)
        promise: Future[bytes] = Future()
        nodes = request.arguments.get("node", [1])
        promise.set_result(json.dumps({"done": "draining", "nodes": nodes}).encode())
        return promise


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def hmd(tmp_path: Path, daemon: Daemon) -> Iterator[Callable[..., int]]:
    path = tmp_path / "hmd.sock"
    server = StatusSocket(path, {"status": daemon.status}, {"drain": daemon.accept})
    yield lambda *words: main([*words, "--socket", str(path)])
    server.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmd.cli.drain_command.POLL_S", 0.01)


def test_drain_pages_waiting_command_waits_until_settled(
    hmd: Callable[..., int], daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.report(drain(settled=False, waiting_pages=9))
    daemon.report(drain(settled=False))
    daemon.report(drain())
    assert hmd("drain", "1") == Exit.OK
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "node 1: no pages of programs are left"
    assert out[1].startswith("  3.0 MiB in use: page cache 1.0 MiB")
    assert daemon.requests[0].arguments == {"node": [1]}


def test_drain_pages_left_listed_with_reason(
    hmd: Callable[..., int], daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.report(drain(left={"busy": 3, "no_room": 512, "new_reason": 1}))
    assert hmd("drain", "1") == Exit.FAILURE
    assert capsys.readouterr().out.splitlines()[:4] == [
        "node 1: pages of programs are left",
        "  2.0 MiB, 512 pages: no other node has room for them",
        "  12.0 KiB, 3 pages: held by the kernel or a device (direct I/O, RDMA, virtual machines)",
        "  4.0 KiB, 1 pages: new reason",
    ]


def test_drain_timeout_remaining_pages_reported(
    hmd: Callable[..., int], daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.report(drain(settled=False, waiting_pages=256))
    assert hmd("drain", "1", "--timeout", "50ms") == Exit.FAILURE
    captured = capsys.readouterr()
    assert "1.0 MiB, 256 pages: not moved yet" in captured.out
    assert captured.err == "hmd: timeout: the node stays drained, and hmd goes on emptying it\n"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"drains": []}, "the node was undrained meanwhile, or the daemon was restarted"),
        ({"drains": [drain(2)]}, "the node was undrained"),
        ({"drains": [drain()], "paused": True}, "is drained, but hmd is paused"),
    ],
)
def test_drain_undrained_or_paused_wait_ends_with_error(
    hmd: Callable[..., int],
    daemon: Daemon,
    capsys: pytest.CaptureFixture[str],
    state: dict[str, Any],
    message: str,
) -> None:
    daemon.states.append({"paused": False, **state})
    assert hmd("drain", "1") == Exit.FAILURE
    assert message in capsys.readouterr().err


def test_drain_json_option_prints_json(
    hmd: Callable[..., int], daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.report(drain(1, left={"pinned": 2}), drain(2))
    assert hmd("drain", "1", "2", "--json") == Exit.FAILURE
    answer = json.loads(capsys.readouterr().out)
    assert [each["left"] for each in answer["drains"]] == [{"pinned": 2}, {}]
    assert not answer["timed_out"]


def test_drain_no_wait_returns_at_once(
    hmd: Callable[..., int], daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hmd("drain", "--tier", "1", "--no-wait") == Exit.OK
    assert capsys.readouterr().out == "draining\n"
    assert daemon.requests[0].arguments == {"tier": 1}


@pytest.mark.parametrize("words", [(), ("1", "--tier", "1"), ("one",), ("1", "--timeout", "0")])
def test_drain_wrong_usage_one_line_error(
    hmd: Callable[..., int], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = hmd("drain", *words)
    except SystemExit as error:
        code = int(error.code or 0)
    assert code == Exit.USAGE
    assert capsys.readouterr().err.count("\n") == 1


def test_drain_removed_node_reported(
    hmd: Callable[..., int], daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.report(drain(there=False))
    assert hmd("drain", "1") == Exit.OK
    assert capsys.readouterr().out == "node 1 has been removed\n"


def test_drain_that_has_not_ended_does_not_say_that_nothing_is_left(
    hmd: Callable[..., int], daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after the timeout, while kernels compile: no process has been looked at."""
    daemon.report(drain(use={**USE, "program_bytes": 64 << 20}, left={}, settled=False))
    assert hmd("drain", "1", "--timeout", "10ms") == Exit.FAILURE
    said = capsys.readouterr().out
    assert "no pages of programs" not in said
    assert "  64.0 MiB by the kernel's count, and hmd goes on\n" in said


def test_drain_of_memory_that_no_process_shows_is_not_done(
    hmd: Callable[..., int], daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a process whose mappings cannot be read, the node's AnonPages alone tell."""
    daemon.report(drain(use={**USE, "program_bytes": 65 << 20}, left={"busy": 256}))
    assert hmd("drain", "1") == Exit.FAILURE
    said = capsys.readouterr().out
    assert "  64.0 MiB by the kernel's count, in no process that can be read\n" in said
