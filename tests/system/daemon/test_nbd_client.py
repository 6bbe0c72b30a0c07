# SPDX-License-Identifier: MIT
"""The handshake with a real server of nbd, and what tells its contents."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hmd.base.errors import HmdError
from hmd.daemon.nbd_client import export_uuid, has_swap, open_export

SIZE = 8 << 20
HOST = "127.0.0.1"
AREA = export_uuid(HOST, 10809, "far", "machine")


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """The file behind the export ``far``."""
    file = tmp_path / "far"
    file.touch()
    os.truncate(file, SIZE)
    return file


@pytest.fixture
def port(tmp_path: Path, export: Path) -> Iterator[int]:
    """The port of a server."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        number = int(free.getsockname()[1])
    config = tmp_path / "config"
    text = f"[generic]\nlistenaddr={HOST}\nport={number}\n[far]\nexportname={export}\n"
    config.write_text(text)
    pid = tmp_path / "pid"
    # It becomes a daemon, whose children keep standard output.
    words = ["nbd-server", "-C", str(config), "-p", str(pid)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline_s = time.monotonic() + 30
    while True:
        try:
            socket.create_connection((HOST, number)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        else:
            break
    yield number
    os.kill(int(pid.read_text()), signal.SIGTERM)


def test_export_has_its_size_and_an_unknown_one_is_an_error(port: int) -> None:
    sock, size_bytes, flags = open_export(HOST, port, "far")
    sock.close()
    assert size_bytes == SIZE
    assert flags & 1  # NBD_FLAG_HAS_FLAGS
    with pytest.raises(HmdError, match="has no export near"):
        open_export(HOST, port, "near")


def test_contents_are_told_by_the_swap_area_of_this_machine(port: int, export: Path) -> None:
    def found(area: str) -> bool:
        with open_export(HOST, port, "far")[0] as sock:
            return has_swap(sock, area)

    assert not found(AREA)
    subprocess.run(["mkswap", "-U", AREA, export], check=True, capture_output=True)
    assert found(AREA)
    assert not found(export_uuid(HOST, port, "far", "another machine"))


def test_no_server_is_an_error_of_the_system() -> None:
    with socket.socket() as free:
        free.bind((HOST, 0))
        with pytest.raises(OSError, match="refused"):
            open_export(HOST, free.getsockname()[1], "far")
