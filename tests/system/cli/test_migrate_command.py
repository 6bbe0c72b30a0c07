# SPDX-License-Identifier: MIT
"""``hmd migrate`` on this host: errors, and its output without a page to move."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hmd.base.errors import Exit
from hmd.cli.main import main


@pytest.fixture
def child() -> Iterator[int]:
    with subprocess.Popen(
        ["sh", "-c", "echo; read x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1
    assert captured.out == ""
    return lines[0]


def test_migrate_without_movable_pages_succeeds(
    capsys: pytest.CaptureFixture[str], child: int
) -> None:
    assert main(["migrate", "--pid", str(child), "--to", "0"]) == Exit.OK
    assert capsys.readouterr().out == (
        f"Nothing to move: process {child} has no movable pages on another node.\n"
    )


def test_migrate_json_reports_resident_pages(
    capsys: pytest.CaptureFixture[str], child: int
) -> None:
    assert main(["migrate", "--pid", str(child), "--to", "0", "--json"]) == Exit.OK
    document = json.loads(capsys.readouterr().out)
    assert document["pid"] == child
    assert document["resident_pages"] > 10
    assert document["moved_bytes"] == 0
    assert document["pages"] == {}


@pytest.mark.parametrize("pid", ["0", "4194304"])
def test_migrate_of_unknown_process_is_refused(
    capsys: pytest.CaptureFixture[str], pid: str
) -> None:
    assert main(["migrate", f"--pid={pid}", "--to", "0"]) == Exit.TARGET
    assert error_line(capsys).startswith(f"hmd: no process {pid}")


def test_migrate_of_exited_process_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen(["true"]) as gone:
        os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)
        assert main(["migrate", "--pid", str(gone.pid), "--to", "0"]) == Exit.TARGET
        assert "has exited" in error_line(capsys)


@pytest.mark.parametrize("option", ["--to", "--from"])
def test_migrate_to_unknown_node_lists_known_nodes(
    capsys: pytest.CaptureFixture[str], child: int, option: str
) -> None:
    nodes = {"--to": "0"} | {option: "77"}
    words = [word for pair in nodes.items() for word in pair]
    assert main(["migrate", "--pid", str(child), *words]) == Exit.TARGET
    assert "no memory on node 77: nodes with memory are 0" in error_line(capsys)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--range", "10"),
        ("--range", "20-10"),
        ("--range", "x-y"),
        ("--limit", "5"),
        ("--rate", "0"),
        ("--rate", "5MiB"),
    ],
)
def test_migrate_with_invalid_value_names_option_and_value(
    capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["migrate", "--pid", "1", "--to", "0", option, value])
    assert left.value.code == Exit.USAGE
    assert f"argument {option}: {value!r}" in error_line(capsys)


def test_migrate_without_permission_names_the_capability(child: int) -> None:
    command = [sys.executable, "-m", "hmd", "migrate", "--pid", str(child), "--to", "0"]
    done = subprocess.run(
        ["setpriv", "--bounding-set=-sys_ptrace", "--", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == Exit.NOT_PERMITTED, done.stderr
    assert done.stderr == (
        f"hmd: no permission to move the memory of process {child}: "
        "run as root or with CAP_SYS_PTRACE\n"
    )


REFUSING = """
import os, seccomp, sys
rules = seccomp.SyscallFilter(seccomp.ALLOW)
rules.add_rule(seccomp.ERRNO(int(sys.argv[1])), sys.argv[2])
rules.load()
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Runs a command as container runtimes do, with a call refused; for Debian's python3-seccomp."""


def refusing(number: int, call: str, *words: str) -> subprocess.CompletedProcess[str]:
    hmd = (sys.executable, "-m", "hmd", *words)
    command = ["/usr/bin/python3", "-c", REFUSING, str(number), call, *hmd]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS])
def test_migrate_where_seccomp_refuses_the_call_is_not_nothing_to_move(
    number: int, child: int
) -> None:
    done = refusing(number, "move_pages", "migrate", "--pid", str(child), "--to", "0")
    assert done.returncode == Exit.NOT_PERMITTED, done.stderr
    assert f"move_pages(2) is refused: {errno.errorcode[number]}: in a container" in done.stderr


def test_recording_where_seccomp_refuses_events_names_the_profile(tmp_path: Path) -> None:
    words = ("record", "--sampler", "faults", "-o", str(tmp_path / "t"), "--", "true")
    done = refusing(errno.EPERM, "perf_event_open", *words)
    assert done.returncode == Exit.NOT_PERMITTED, done.stderr
    assert "in a container, allow perf_event_open in the seccomp profile" in done.stderr
