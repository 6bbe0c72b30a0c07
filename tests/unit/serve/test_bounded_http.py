# SPDX-License-Identifier: MIT
"""The HTTP server under clients that are idle, slow, many or wrong."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hmd.serve import bounded_http
from hmd.serve.bounded_http import (
    MAX_HEAD_BYTES,
    MAX_OWN_CONNECTIONS,
    BoundedHttpServer,
    HttpRequest,
    HttpResponse,
)

GET = b"GET /path?a=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = b"x" * (32 << 20)


def answer(request: HttpRequest) -> HttpResponse:
    if request.path == "/broken":
        raise ZeroDivisionError
    if request.path == "/large":
        return HttpResponse(HTTPStatus.OK, LARGE)
    return HttpResponse(HTTPStatus.OK, f"{request.path} {request.query}".encode())


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    server = BoundedHttpServer("127.0.0.1", 0, answer, {"X-Common": "yes"})
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address
    server.shutdown()
    thread.join()
    server.server_close()


def ask(address: tuple[str, int], data: bytes = GET) -> bytes:
    with socket.create_connection(address, timeout=20) as s:
        with contextlib.suppress(ConnectionError):
            s.sendall(data)
        received = b""
        with contextlib.suppress(ConnectionError):
            while part := s.recv(1 << 20):
                received += part
        return received


def test_http_server_get_answered_with_common_headers(address: tuple[str, int]) -> None:
    head, _, body = ask(address).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nX-Common: yes" in head
    assert body == b"/path a=1"


def test_http_server_idle_connections_of_own_user_keep_nobody_out(
    address: tuple[str, int],
) -> None:
    idle = [socket.create_connection(address, timeout=20) for _ in range(3 * MAX_OWN_CONNECTIONS)]
    for s in idle[::2]:
        s.sendall(b"GET / HT")
    assert b"200 OK" in ask(address)
    for s in idle[: 2 * MAX_OWN_CONNECTIONS]:
        with contextlib.suppress(ConnectionResetError):
            assert s.recv(1) == b""
    for s in idle:
        s.close()


def test_http_server_clients_that_do_not_read_delay_no_other(address: tuple[str, int]) -> None:
    slow = [socket.create_connection(address, timeout=20) for _ in range(8)]
    for s in slow:
        s.sendall(GET.replace(b"/path", b"/large"))
    assert b"200 OK" in ask(address)
    for s in slow:
        s.close()
    assert len(ask(address, GET.replace(b"/path", b"/large"))) > len(LARGE)


def test_http_server_late_head_ends_connection(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "HEAD_S", 0.05)
    with socket.create_connection(address, timeout=20) as s:
        s.sendall(b"GET / HT")
        assert s.recv(1) == b""


def test_http_server_late_reader_ends_connection(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "SEND_S", 0.05)
    with socket.create_connection(address, timeout=20) as s:
        s.sendall(GET.replace(b"/path", b"/large"))
        assert b"200 OK" in ask(address)
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while part := s.recv(1 << 16):
                received += len(part)
                threading.Event().wait(0.01)
        assert received < len(LARGE)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST / HTTP/1.1\r\n\r\n", b"405"),
        (b"GET / HTTP/2\r\n\r\n", b"400"),
        (b"GET  / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nno header\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n: none\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", b"400"),
        (b"GET /" + b"a" * MAX_HEAD_BYTES, b"400"),
        (b"GET /broken HTTP/1.1\r\n\r\n", b"500"),
    ],
)
def test_http_server_wrong_request_refused(
    address: tuple[str, int], data: bytes, status: bytes
) -> None:
    assert ask(address, data).split(b" ")[1] == status
    assert b"200 OK" in ask(address)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.binary(max_size=300).map(lambda data: data.replace(b"/broken", b"")))
def test_http_server_any_bytes_leave_it_running(address: tuple[str, int], data: bytes) -> None:
    received = ask(address, data + b"\r\n\r\n")
    assert not received or received.startswith(b"HTTP/1.1 ")
    assert b"200 OK" in ask(address)


def test_http_server_defect_logged_once(
    address: tuple[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        ask(address, b"GET /broken HTTP/1.1\r\n\r\n")
    assert caplog.text.count("an HTTP request failed") == 1


def test_http_request_carries_uid_of_its_user() -> None:
    seen: list[int | None] = []

    def note(request: HttpRequest) -> HttpResponse:
        seen.append(request.uid)
        return HttpResponse(HTTPStatus.OK)

    for host in ("127.0.0.1", "::1"):
        server = BoundedHttpServer(host, 0, note)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        ask(server.server_address)
        server.shutdown()
        thread.join()
        server.server_close()
    assert seen == [os.getuid()] * 2
