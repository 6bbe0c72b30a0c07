# SPDX-License-Identifier: MIT
"""The page is for the user who serves it and root: other users of the machine read nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from hmd.dashboard.http_server import PageServer, page_contents

SERVING, OTHER = 4711, 4713

READ = """
import http.client, os, sys
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=20)
connection.request("GET", "/")
sys.exit(connection.getresponse().status - 200)
"""


@pytest.fixture
def port() -> Iterator[int]:
    server = PageServer("127.0.0.1", 0, page_contents(), [SERVING])
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("uid", "status"), [(SERVING, 200), (OTHER, 403), (0, 200)])
def test_page_read_by_user(port: int, uid: int, status: int) -> None:
    assert os.geteuid() == 0
    words = [sys.executable, "-S", "-c", READ, str(port), str(uid)]
    assert subprocess.run(words, check=False, timeout=60).returncode == status - 200
