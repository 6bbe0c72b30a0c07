# SPDX-License-Identifier: MIT
"""The dashboard's HTTP server: read-only, loopback only, robust against malformed requests."""

from __future__ import annotations

import os
import re
import socket as sockets
import threading
from importlib import resources
from pathlib import Path

import pytest

from hmd.base.errors import HmdError
from hmd.cli.dashboard_command import _loopback
from hmd.dashboard.http_server import PageServer, page_contents
from hmd.dashboard.poller import Poller
from tests.unit.dashboard.conftest import Serve, Served

PATHS = sorted(page_contents())


@pytest.fixture
def served(serve: Serve, tmp_path: Path) -> Served:
    return serve(Poller(tmp_path / "none.sock", 600))


@pytest.mark.parametrize("path", [*PATHS, "/state.json", "/sweep.json"])
def test_server_known_path_sends_strict_security_headers(served: Served, path: str) -> None:
    answer = served.ask(path)
    assert answer.status == 200
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert int(answer.headers["Content-Length"]) == len(answer.body)


def test_page_folder_all_files_served_with_their_imports(served: Served) -> None:
    folder = resources.files("hmd.dashboard") / "page"
    assert {"/" if f.name == "index.html" else f"/{f.name}" for f in folder.iterdir()} == {*PATHS}
    scripts = {path for path in PATHS if path.endswith(".js")}
    imported = set()
    for path in scripts:
        text = served.ask(path).body.decode()
        imported |= set(re.findall(r'^import .* from "\.(/.*)";$', text, re.MULTILINE))
    assert imported == scripts - {"/page.js"}


@pytest.mark.parametrize("path", PATHS)
def test_page_files_reference_no_external_resource(served: Served, path: str) -> None:
    text = served.ask(path).body.decode().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"""https?:|url\(|@import|["'(=]//|style=|innerHTML|eval\(""", text)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_server_method_not_get_or_head_answered_405(served: Served, method: str) -> None:
    answer = served.ask("/state.json", method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert "Content-Security-Policy" in answer.headers


def test_server_head_request_sends_no_body(served: Served) -> None:
    got, head = served.ask("/"), served.ask("/", "HEAD")
    assert head.body == b""
    assert head.headers["Content-Length"] == str(len(got.body))


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:9743", "[::1]:1"])
def test_server_loopback_host_header_answered_200(served: Served, host: str) -> None:
    assert served.ask("/state.json", host=host).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9743", "localhost.evil.example", "127.0.0.1.nip.io", "",
             "10.0.0.1:9743", "localhost:", "[::1", None],
)  # fmt: skip
def test_server_foreign_host_header_answered_421(served: Served, host: str | None) -> None:
    answer = served.ask("/state.json", host=host)
    assert answer.status == 421
    assert b"reached" not in answer.body


@pytest.mark.parametrize(
    "path", ["/x", "/page.py", "/../server.py", "/%2e%2e/server.py", "/heat.json",
             "/heat.json?process=1:1", "/heat.json?process=%ff", "http://[", "*"],
)  # fmt: skip
def test_server_unknown_path_answered_404(served: Served, path: str) -> None:
    assert served.ask(path).status == 404


def test_server_unchanged_etag_answered_304(served: Served) -> None:
    tag = served.ask("/state.json").headers["ETag"]
    again = served.ask("/state.json", If_None_Match=tag)
    assert (again.status, again.body, again.headers["ETag"]) == (304, b"", tag)
    served.watch.poll()
    assert served.ask("/state.json", If_None_Match=tag).status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: local\xffhost\r\n\r\n",
    ],
)
def test_server_malformed_request_refused(served: Served, data: bytes) -> None:
    with sockets.create_connection(served.address, timeout=20) as s:
        try:
            s.sendall(data)
            s.shutdown(sockets.SHUT_WR)
            received = b"".join(iter(lambda: s.recv(65536), b""))
        except OSError as error:  # a connection that was closed: ENOTCONN is no ConnectionError
            assert not isinstance(error, TimeoutError)
            received = b""
    assert b" 200 " not in received
    assert served.ask("/").status == 200


def test_server_concurrent_clients_all_answered(served: Served) -> None:
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(served.ask("/state.json").status))
        for _ in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 40


def test_server_port_in_use_raises_error_with_port(served: Served) -> None:
    port = served.server.server_address[1]
    with pytest.raises(HmdError, match=rf"cannot serve on 127\.0\.0\.1, port {port}: .* --listen"):
        PageServer("127.0.0.1", port, page_contents())


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("localhost:9743", ("127.0.0.1", 9743)),
        ("[::1]:0", ("::1", 0)),
    ],
)
def test_listen_option_loopback_address_parsed(text: str, address: tuple[str, int]) -> None:
    assert _loopback(text) == address


def test_server_answers_root_and_its_own_user_only(tmp_path: Path) -> None:
    """What the socket shows one user is not for the other users of the machine."""
    own = os.getuid()
    for users, status in (((own,), 200), ((own + 1,), 200 if own == 0 else 403)):
        server = PageServer("127.0.0.1", 0, page_contents(), users)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        assert Served(server, Poller(tmp_path / "none.sock", 600)).ask("/").status == status
        server.shutdown()
        thread.join()
        server.server_close()
