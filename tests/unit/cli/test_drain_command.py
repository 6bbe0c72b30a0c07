"""``hmd drain`` against a socket that reports the progress of a drain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from hmd.cli.main import main
from hmd.control.request import ControlRequest
from hmd.control.status_socket import StatusSocket
from hmd.errors import Exit

USE = {
    "total_bytes": 1 << 30,
    "used_bytes": 3 << 20,
    "program_bytes": 1 << 20,
    "cache_bytes": 1 << 20,
    "locked_bytes": 0,
    "kernel_bytes": 1 << 20,
    "hugetlb_pages": 0,
}


def drain(node: int = 1, **more: Any) -> dict[str, Any]:
    told = {"node": node, "there": True, "use": USE, "waiting_pages": 0, "moved_pages": 5}
    return {**told, "passes": 1, "left": {}, "settled": True, **more}


class Daemon:
    """What the socket answers: a status after the other, the last one for ever."""

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []
        self.orders: list[ControlRequest] = []

    def tell(self, *drains: dict[str, Any], paused: bool = False) -> None:
        self.states.append({"paused": paused, "drains": list(drains)})

    def status(self, _: Mapping[str, Any]) -> bytes:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return json.dumps({"control": state}).encode()

    def take(self, request: ControlRequest) -> Future[bytes]:
        self.orders.append(request)
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
    server = StatusSocket(path, {"status": daemon.status}, {"drain": daemon.take})
    yield lambda *words: main([*words, "--socket", str(path)])
    server.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmd.cli.drain_command.POLL_S", 0.01)


def test_it_waits_until_nothing_more_can_be_moved(
    hmd: Callable[..., int], daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.tell(drain(settled=False, waiting_pages=9))
    daemon.tell(drain(settled=False))
    daemon.tell(drain())
    assert hmd("drain", "1") == Exit.OK
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "node 1: no pages of programs are left"
    assert out[1].startswith("  3.0 MiB in use: page cache 1.0 MiB")
    assert daemon.orders[0].arguments == {"node": [1]}


def test_what_is_left_is_told_with_its_reason(
    hmd: Callable[..., int], daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.tell(drain(left={"busy": 3, "no_room": 512, "new_reason": 1}))
    assert hmd("drain", "1") == Exit.FAILURE
    assert capsys.readouterr().out.splitlines()[:4] == [
        "node 1: pages of programs are left",
        "  2.0 MiB, 512 pages: no other node has room for them",
        "  12.0 KiB, 3 pages: held by the kernel or a device (direct I/O, RDMA, virtual machines)",
        "  4.0 KiB, 1 pages: new reason",
    ]


def test_the_time_may_be_over_first(
    hmd: Callable[..., int], daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.tell(drain(settled=False, waiting_pages=256))
    assert hmd("drain", "1", "--timeout", "50ms") == Exit.FAILURE
    said = capsys.readouterr()
    assert "1.0 MiB, 256 pages: not moved yet" in said.out
    assert said.err == "hmd: timeout: the node stays drained, and hmd goes on emptying it\n"


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"drains": []}, "the node was undrained meanwhile, or the daemon was restarted"),
        ({"drains": [drain(2)]}, "the node was undrained"),
        ({"drains": [drain()], "paused": True}, "is drained, but hmd is paused"),
    ],
)
def test_what_ends_the_wait(
    hmd: Callable[..., int],
    daemon: Daemon,
    capsys: pytest.CaptureFixture[str],
    state: dict[str, Any],
    told: str,
) -> None:
    daemon.states.append({"paused": False, **state})
    assert hmd("drain", "1") == Exit.FAILURE
    assert told in capsys.readouterr().err


def test_programs_get_json(
    hmd: Callable[..., int], daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.tell(drain(1, left={"pinned": 2}), drain(2))
    assert hmd("drain", "1", "2", "--json") == Exit.FAILURE
    answer = json.loads(capsys.readouterr().out)
    assert [each["left"] for each in answer["drains"]] == [{"pinned": 2}, {}]
    assert not answer["timed_out"]


def test_nobody_has_to_wait(
    hmd: Callable[..., int], daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hmd("drain", "--tier", "1", "--no-wait") == Exit.OK
    assert capsys.readouterr().out == "draining\n"
    assert daemon.orders[0].arguments == {"tier": 1}


@pytest.mark.parametrize("words", [(), ("1", "--tier", "1"), ("one",), ("1", "--timeout", "10")])
def test_wrong_usage(
    hmd: Callable[..., int], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = hmd("drain", *words)
    except SystemExit as error:
        code = int(error.code or 0)
    assert code == Exit.USAGE
    assert capsys.readouterr().err.count("\n") == 1


def test_a_node_that_is_gone(
    hmd: Callable[..., int], daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.tell(drain(there=False))
    assert hmd("drain", "1") == Exit.OK
    assert capsys.readouterr().out == "node 1 has been removed\n"
