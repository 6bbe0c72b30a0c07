# SPDX-License-Identifier: MIT
import json
import os
from pathlib import Path

import pytest

from hmd.cli.main import main
from hmd.cli.numa_command import View
from hmd.linux.machine_memory import MemoryRow
from tests.fakes.terminal import terminal

COLUMNS = ["total", "name", "pid", "0", "1"]
ROWS = [
    MemoryRow("redis", 7, "/system.slice/redis.service", 300, {0: 100, 1: 200}),
    MemoryRow("bash", 9, "/user.slice", 400, {0: 400}),
    MemoryRow("mysqld", 8, "/system.slice/mysql.service", 200, {}, "late"),
]


def test_numa_shows_this_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["numa", "--filter", str(os.getpid()), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (row,) = [row for row in document["rows"] if row["pid"] == os.getpid()]
    assert row["known"] == "exact"
    assert row["total_bytes"] == sum(row["node_bytes"].values()) > 20 << 20
    assert main(["numa", "--rows", "1"]) == 0
    assert "node 0" in capsys.readouterr().out


def test_numa_column_that_does_not_exist_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["numa", "--sort", "heat"]) == 2
    assert "sort by total, name, pid, 0" in capsys.readouterr().err


def test_view_sorts_by_each_column_and_filters() -> None:
    def names(sort: str, text: str = "") -> list[str]:
        return [row.name for row in View(sort, text, cgroups=False).select(ROWS)]

    assert names("total") == ["bash", "redis", "mysqld"]
    assert names("name") == ["bash", "mysqld", "redis"]
    assert names("pid") == ["redis", "mysqld", "bash"]
    assert names("1") == ["redis", "bash", "mysqld"]
    assert names("total", "system.slice") == ["redis", "mysqld"]
    assert names("total", "9") == ["bash"]


def test_view_keys_scroll_sort_and_type_a_filter() -> None:
    view = View("total", "", cgroups=False)
    for keys in ("\x1b[B", "j", "\x1b[6~", "\x1b[A"):
        assert not view.press(keys, COLUMNS)
    assert view.first == 21
    view.press("k" * 1, COLUMNS)
    view.press("s", COLUMNS)
    assert (view.first, view.sort) == (20, "name")
    view.press("/qx\x7fs\n", COLUMNS)
    assert (view.filter, view.typing, view.sort, view.first) == ("qs", False, "name", 0)
    view.press("c", COLUMNS)
    assert view.cgroups
    assert view.press("q", COLUMNS)


def test_top_without_a_daemon_shows_all_processes_live_until_q() -> None:
    words = ("top", "--all", "--interval", "0.1", "--sort", "name")
    with terminal(*words, lines=12) as shown:
        shown.wait_for(rb"rows from 1 of \d+, by name")
        if not Path("/sys/fs/cgroup/cgroup.controllers").exists():  # version 1
            shown.press("c")
            shown.wait_for(b"no memory controller of cgroup version 2")
        shown.press(f"/{shown.process.pid}\n")
        shown.wait_for(f"filter {shown.process.pid}\\.".encode())
        shown.press("q")
        assert shown.end() == (0, b"")


def test_top_without_a_daemon_says_so(
    tmp_path: os.PathLike[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    socket = tmp_path / "none.sock"  # type: ignore[operator]
    assert main(["top", "-n", "1", "--socket", str(socket)]) == 6
    capsys.readouterr()
    monkeypatch.setattr("hmd.cli.top_command.SOCKET", socket)
    assert main(["top", "-n", "1", "--socket", str(socket)]) == 0
    shown = capsys.readouterr()
    assert "no daemon answers" in shown.err
    assert "node 0" in shown.out
    assert main(["top", "-n", "1", "--json", "--socket", str(socket)]) == 6
