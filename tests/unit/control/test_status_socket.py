# SPDX-License-Identifier: MIT
"""The status socket answers valid requests, and survives all other input."""

import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hmd.base.errors import HmdError, UnreachableError, UsageError
from hmd.control import status_socket
from hmd.control.client import ask
from hmd.control.requests import MAX_REQUEST_BYTES
from hmd.control.status_socket import MAX_OWN_CLIENTS, StatusSocket
from hmd.daemon.endpoints import InstanceLock
from tests.fakes.open_descriptors import open_descriptors


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hmd.sock"


@pytest.fixture
def served(path: Path) -> Iterator[Path]:
    large = json.dumps({"rows": list(range(300_000))}).encode()
    answers = {"status": lambda _: b'{"ticks": 7}', "large": lambda _: large}
    server = StatusSocket(path, answers)
    yield path
    server.close()


def send(path: Path, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(10)
        s.connect(str(path))
        try:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            parts = []
            while part := s.recv(65536):
                parts.append(part)
        except (BrokenPipeError, ConnectionResetError):
            return b""
    return b"".join(parts)


def test_status_socket_answers_command(served: Path) -> None:
    assert ask(served, "status") == {"ticks": 7}


def test_status_socket_mode_owner_and_group_only(served: Path) -> None:
    assert stat.S_IMODE(served.stat().st_mode) == 0o660


def test_status_socket_large_answer_complete(served: Path) -> None:
    assert ask(served, "large")["rows"][-1] == 299_999


def test_status_socket_unread_answers_of_one_user_bounded(
    served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(send(served, b'{"command": "large"}\n'))
    monkeypatch.setattr(status_socket, "MAX_OWN_UNREAD_BYTES", 2 * size)
    with ExitStack() as held:
        for _ in range(4):  # two answers that are not read, and requests beyond them
            unread = held.enter_context(socket.socket(socket.AF_UNIX))
            unread.connect(str(served))
            unread.sendall(b'{"command": "large"}\n')
        answers = [send(served, b'{"command": "large"}\n') for _ in range(2)]
        assert all("read the answers" in json.loads(answer)["error"] for answer in answers)
    assert ask(served, "status") == {"ticks": 7}


@pytest.mark.parametrize(
    ("request_line", "message"),
    [
        (b"\n", "not JSON"),
        (b"status\n", "not JSON"),
        (b"[]\n", "no command"),
        (b'{"command": 5}\n', "no command"),
        (b'{"command": "stop"}\n', "no such command; there are large, status"),
        (b"[" * 4000 + b"\n", "not JSON"),
        (b"x" * (MAX_REQUEST_BYTES + 1), "a request has at most 4096 bytes"),
    ],
)
def test_status_socket_invalid_request_answered_with_error(
    served: Path, request_line: bytes, message: str
) -> None:
    answer = json.loads(send(served, request_line))
    assert answer["error"].startswith(message)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.binary(max_size=6000))
def test_status_socket_any_bytes_error_or_no_answer(served: Path, data: bytes) -> None:
    answer = send(served, data)
    assert not answer or "error" in json.loads(answer)
    assert ask(served, "status") == {"ticks": 7}


def test_status_socket_silent_clients_block_no_others(served: Path) -> None:
    silent = [socket.socket(socket.AF_UNIX) for _ in range(MAX_OWN_CLIENTS // 2)]
    for s in silent:
        s.connect(str(served))
        s.sendall(b'{"comm')
    assert ask(served, "status") == {"ticks": 7}
    for s in silent:
        s.close()
    assert ask(served, "status") == {"ticks": 7}


def test_status_socket_clients_disconnect_survives(served: Path) -> None:
    for _ in range(50):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(str(served))
            s.sendall(b'{"command":"large"}\n')
    assert ask(served, "status") == {"ticks": 7}


def test_status_socket_16_clients_at_once_all_answered(served: Path) -> None:
    answers: list[dict[str, object]] = []
    threads = [
        threading.Thread(target=lambda: answers.append(ask(served, "status"))) for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [{"ticks": 7}] * 16


def test_status_socket_close_removes_file_and_descriptors(path: Path) -> None:
    before = open_descriptors()
    server = StatusSocket(path, {"status": lambda _: b"{}"})
    ask(path, "status")
    server.close()
    server.close()
    assert not path.exists()
    assert open_descriptors() == before


def test_status_socket_close_keeps_socket_of_successor(path: Path) -> None:
    first = StatusSocket(path, {})
    second = StatusSocket(path, {"status": lambda _: b'{"second": 1}'})
    first.close()
    assert ask(path, "status") == {"second": 1}
    second.close()


def test_status_socket_path_of_other_file_kept(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(HmdError, match=r"cannot make the status socket .*in use"):
        StatusSocket(path, {})
    assert path.read_text() == "precious"


def test_status_socket_path_too_long_refused(tmp_path: Path) -> None:
    with pytest.raises(HmdError, match="longer than 107 bytes"):
        StatusSocket(tmp_path / ("x" * 120), {})


def test_ask_without_daemon_unreachable(path: Path) -> None:
    with pytest.raises(UnreachableError, match=r"no daemon answers on .*hmd\.sock: start one"):
        ask(path, "status")


def test_status_socket_replaces_stale_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(UnreachableError, match="no daemon answers"):
        ask(path, "status")
    server = StatusSocket(path, {"status": lambda _: b"{}"})
    assert ask(path, "status") == {}
    server.close()


def test_ask_of_mute_daemon_times_out(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        with pytest.raises(UnreachableError, match="does not answer: timed out"):
            ask(path, "status", timeout_s=0.05)


def test_ask_refused_command_raises(served: Path) -> None:
    with pytest.raises(UsageError, match="no such command"):
        ask(served, "dance")


def test_instance_lock_second_daemon_refused(path: Path) -> None:
    lock = InstanceLock(path)
    with pytest.raises(HmdError, match=rf"another hmd \(pid {os.getpid()}\) already serves"):
        InstanceLock(path)
    lock.release()
    InstanceLock(path).release()


def test_instance_lock_creates_run_directory(tmp_path: Path) -> None:
    InstanceLock(tmp_path / "hmd/hmd.sock").release()
    assert (tmp_path / "hmd").is_dir()


def test_instance_lock_below_regular_file_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HmdError, match=r"cannot use .*/file for the status socket"):
        InstanceLock(tmp_path / "file/hmd.sock")
