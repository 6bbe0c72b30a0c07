# SPDX-License-Identifier: MIT
"""Admin requests on the status socket: credentials, time of the answer, invalid data."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hmd.base.errors import (
    ConfigError,
    HmdError,
    MissingError,
    NotPermittedError,
    TargetError,
    UsageError,
)
from hmd.control.client import ask, send_admin_request
from hmd.control.requests import MAX_REQUEST_BYTES, Peer
from hmd.control.status_socket import MAX_OWN_CLIENTS, StatusSocket
from tests.fakes.admin import Loop
from tests.fakes.open_descriptors import open_descriptors

NOBODY = 65534


def in_background(what: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=what)
    thread.start()
    return thread


def test_admin_request_answered_when_executed(path: Path, loop: Loop) -> None:
    loop.at_once = False
    answers: list[object] = []
    thread = in_background(lambda: answers.append(send_admin_request(path, "pause", {"why": 1})))
    assert loop.arrived.acquire(timeout=10)
    # Others are answered meanwhile.
    assert ask(path, "status") == {"ticks": 7}
    assert answers == []
    loop.taken[0][1].set_result(b'{"done": "yes"}')
    thread.join()
    assert answers == [{"done": "yes"}]
    assert loop.taken[0][0].arguments == {"why": 1}


def test_admin_request_carries_credentials_of_caller(path: Path, loop: Loop) -> None:
    send_admin_request(path, "pause")
    assert loop.taken[0][0].peer == Peer(os.getpid(), os.getuid(), os.getgid())


def test_admin_request_not_executed_in_time_withdrawn(path: Path, loop: Loop) -> None:
    loop.at_once = False
    with pytest.raises(HmdError, match=r"not execute the request within 0\.5 s; it is withdrawn"):
        send_admin_request(path, "pause")
    assert not loop.taken[0][1].set_running_or_notify_cancel()


def test_admin_request_being_executed_not_withdrawn(path: Path, loop: Loop) -> None:
    loop.at_once = False
    messages: list[str] = []

    def give() -> None:
        try:
            send_admin_request(path, "pause")
        except HmdError as error:
            messages.append(str(error))

    thread = in_background(give)
    assert loop.arrived.acquire(timeout=10)
    assert loop.taken[0][1].set_running_or_notify_cancel()
    thread.join()
    assert messages == [
        "the daemon did not execute the request within 0.5 s; it is being executed: see hmd status"
    ]
    loop.taken[0][1].set_result(b"{}")
    assert ask(path, "status") == {"ticks": 7}


@pytest.mark.parametrize(
    "kind", [UsageError, ConfigError, MissingError, NotPermittedError, TargetError, HmdError]
)
def test_admin_request_refused_error_type_and_text_kept(
    path: Path, loop: Loop, kind: type[HmdError]
) -> None:
    loop.at_once = False
    raised: list[HmdError] = []

    def give() -> None:
        try:
            send_admin_request(path, "pause")
        except HmdError as error:
            raised.append(error)

    thread = in_background(give)
    assert loop.arrived.acquire(timeout=10)
    loop.taken[0][1].set_exception(kind("no:\n you may not"))
    thread.join()
    assert type(raised[0]) is kind
    assert str(raised[0]) == "no: you may not"


def test_admin_request_that_fails_answered(path: Path) -> None:
    with pytest.raises(HmdError, match=r"^ZeroDivisionError$"):
        send_admin_request(path, "fail")
    assert ask(path, "status") == {"ticks": 7}


def test_admin_request_with_unknown_command_answered(path: Path) -> None:
    with pytest.raises(UsageError, match="no such command; there are fail, pause, status"):
        send_admin_request(path, "dance")


def test_admin_socket_repeated_request_read_once(path: Path, loop: Loop) -> None:
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(path))
        s.sendall(b'{"command": "pause"}\n' * 20)
        assert s.makefile().read() == '{"done": []}\n'
    assert ask(path, "status") == {"ticks": 7}
    assert len(loop.taken) == 1


def test_admin_socket_clients_disconnect_before_answer_survives(path: Path, loop: Loop) -> None:
    loop.at_once = False
    for _ in range(MAX_OWN_CLIENTS // 2):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(str(path))
            s.sendall(b'{"command": "pause"}\n')
        assert loop.arrived.acquire(timeout=10)
    assert ask(path, "status") == {"ticks": 7}
    for _, pending in loop.taken:
        pending.set_result(b"{}")
    assert ask(path, "status") == {"ticks": 7}


def test_admin_socket_own_requests_fill_own_places_until_answered(path: Path, loop: Loop) -> None:
    loop.at_once = False
    waiting = []
    for _ in range(MAX_OWN_CLIENTS):
        s = socket.socket(socket.AF_UNIX)
        s.connect(str(path))
        s.sendall(b'{"command": "pause"}\n')
        waiting.append(s)
        assert loop.arrived.acquire(timeout=10)
    with socket.socket(socket.AF_UNIX) as late:
        late.connect(str(path))
        assert b"too many connections of one user" in late.recv(1000)
    for s in waiting:
        assert b"is withdrawn" in s.makefile("rb").read()
        s.close()
    assert ask(path, "status") == {"ticks": 7}


def test_admin_socket_idle_clients_keep_nobody_out(path: Path) -> None:
    idle = []
    for _ in range(3 * MAX_OWN_CLIENTS):
        s = socket.socket(socket.AF_UNIX)
        s.connect(str(path))
        s.sendall(b'{"comm')
        idle.append(s)
        assert ask(path, "status") == {"ticks": 7}
    for s in idle:
        s.close()


def test_admin_request_sent_bytewise_answered(path: Path, loop: Loop) -> None:
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(path))
        for byte in b'{"command": "pause", "a": 1}\n':
            s.send(bytes([byte]))
        assert s.makefile().read() == '{"done": ["a"]}\n'


def test_admin_socket_close_with_pending_request_immediate(tmp_path: Path, loop: Loop) -> None:
    loop.at_once = False
    before = open_descriptors()
    path = tmp_path / "other.sock"
    server = StatusSocket(path, {}, {"pause": loop.put})
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(path))
        s.sendall(b'{"command": "pause"}\n')
        assert loop.arrived.acquire(timeout=10)
        server.close()
        # The request is completed after its client has left.
        loop.taken[0][1].set_result(b"{}")
        assert s.recv(10) == b""
    assert open_descriptors() == before


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)
commands = st.sampled_from(["pause", "status", "fail", "", "PAUSE"]) | values
lines = (
    st.fixed_dictionaries({"command": commands}, optional={"pid": values, "to": values})
    | st.dictionaries(st.text(max_size=9), values)
    | values
).map(lambda document: json.dumps(document).encode())
garbage = st.binary(max_size=2 * MAX_REQUEST_BYTES)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200
)
@given(pieces=st.lists(lines | garbage | st.just(b"\n"), max_size=4), leaves=st.booleans())
def test_admin_socket_any_lines_survives(path: Path, pieces: list[bytes], leaves: bool) -> None:
    """Whole, partial and huge lines, valid or not, in pieces; the client may disconnect."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(20)
        s.connect(str(path))
        try:
            for piece in pieces:
                s.sendall(piece)
            if not leaves:
                s.shutdown(socket.SHUT_WR)
                answer = s.makefile("rb").read()
                assert not answer or {"error", "done", "ticks"} & set(json.loads(answer))
                assert answer.count(b"\n") <= 1
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert ask(path, "status", timeout_s=30) == {"ticks": 7}


class Counting(StatusSocket):
    """Counts the wakeups of its thread."""

    wakeups = 0

    def _timeout_s(self) -> float | None:
        self.wakeups += 1
        return super()._timeout_s()


def test_admin_socket_half_closed_client_no_busy_loop(tmp_path: Path, loop: Loop) -> None:
    """As with nc: the end of file stays readable while the client waits."""
    loop.at_once = False
    server = Counting(tmp_path / "other.sock", {}, {"pause": loop.put})
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(server.path))
        s.sendall(b'{"command": "pause"}\n')
        s.shutdown(socket.SHUT_WR)
        assert loop.arrived.acquire(timeout=10)
        time.sleep(0.2)
        assert 0 < server.wakeups < 20
        loop.taken[0][1].set_result(b'{"done": 1}')
        assert s.makefile().read() == '{"done": 1}\n'
    server.close()
