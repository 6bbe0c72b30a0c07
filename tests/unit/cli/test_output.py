# SPDX-License-Identifier: MIT
"""Tables of the command line on terminals of every width, and commands whose stdout fails."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hmd
from hmd import __version__
from hmd.base.errors import Exit
from hmd.cli.main import main
from hmd.cli.output import console, format_seconds, print_table
from hmd.policy import registry

MACHINES = Path(__file__).parents[2] / "fixtures/machines"
Capture = pytest.CaptureFixture[str]

COLUMNS = ("target", "pid", *(f"tier {i} (node {i})" for i in range(4)), "state")
RIGHT = COLUMNS[1:-1]
ROWS = [
    ("a-program-with-a-long-name", 4194303, "1023.9 GiB", "3.0 GiB", "12 345", "0 B", "runs"),
    ("b", 7, "1.0 GiB", "2.0 GiB", "3.0 GiB", "4.0 GiB", "page faults on 128 CPUs, coarse"),
]


@pytest.fixture(params=[80, 100, 200])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """COLUMNS as a terminal or a pipe has it."""
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


@pytest.mark.parametrize("columns", [30, 40, 60, 80, 100, 200])
def test_table_keeps_every_cell_at_every_width(
    columns: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    print_table(COLUMNS, ROWS, title="memory", right=RIGHT)
    out = capsys.readouterr().out
    assert "…" not in out
    if columns >= 80:  # on a narrower terminal, lines are longer rather than numbers cut
        assert all(len(line) <= columns for line in out.splitlines())
    for row in ROWS:
        for name, cell in zip(COLUMNS, row, strict=True):
            if name in RIGHT:
                assert str(cell) in out  # a number is never broken
            assert all(word[:6] in out for word in str(cell).split())
    for name in COLUMNS:
        assert all(word in out for word in name.split())
    assert "memory" in out


def test_console_without_columns_has_width_of_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console().width == 240


def test_doctor_keeps_its_columns(width: int, capsys: Capture) -> None:
    machine = MACHINES / "xeon6-cxl"
    main(["doctor", "--proc", str(machine / "proc"), "--sysfs", str(machine / "sys")])
    out = capsys.readouterr().out
    assert all(len(line) <= width for line in out.splitlines())
    assert "…" not in out
    assert re.search(r"level +section +finding +state", out)
    assert re.search(r"^ *(ok|warn|fail) +memory +memory tiers ", out, re.MULTILINE)


def test_policy_list_keeps_its_columns(width: int, capsys: Capture) -> None:
    assert main(["policy", "list"]) == Exit.OK
    out = capsys.readouterr().out
    assert all(len(line) <= width for line in out.splitlines())
    assert "…" not in out
    for name in registry.names():
        assert re.search(rf"^ *{name}( \*)? ", out, re.MULTILINE)
        assert set(registry.info(name).summary.split()) <= set(out.split())


def test_topology_keeps_its_columns(width: int, capsys: Capture) -> None:
    assert main(["topology", "--sysfs", str(MACHINES / "xeon6-cxl/sys")]) == Exit.OK
    out = capsys.readouterr().out
    assert all(len(line) <= width for line in out.splitlines())
    assert "…" not in out
    for heading in ("node", "tier", "cpus", "total", "free", "latency", "bandwidth", "distance"):
        assert heading in out
    assert out.count(" GiB") >= 4
    assert re.search(r"\d ns", out)
    assert re.search(r"\d GB/s", out)


def test_policy_show_fits_the_terminal(width: int, capsys: Capture) -> None:
    assert main(["policy", "show", "histogram"]) == Exit.OK
    out = capsys.readouterr().out
    assert all(len(line) <= width for line in out.splitlines())
    assert set(registry.info("histogram").suits.split()) <= set(out.split())


@pytest.mark.parametrize(
    "words", [["policy", "list"], ["policy", "list", "--json"], ["--help"], ["--version"]]
)
@pytest.mark.parametrize(
    ("redirection", "code", "error"),
    [
        (">/dev/full", Exit.FAILURE, "hmd: cannot write the output: No space left on device\n"),
        (">&-", Exit.OK, ""),
        (">&- 2>&-", Exit.OK, ""),
    ],
)
def test_main_unwritable_stdout_one_line_error(
    words: list[str], redirection: str, code: Exit, error: str
) -> None:
    script = f'exec "$0" -m hmd "$@" {redirection}'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (code, error)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.0, "0.00 ms"), (2.5e-6, "2.50 us"), (1.5e-3, "1.50 ms"), (61.5, "61.500 s")],
)
def test_time_shows_digits_at_every_size(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    "words",
    [
        ["policy", "list"],
        ["topology", "--sysfs", str(MACHINES / "xeon6-cxl/sys")],
        ["emulate", "--list"],
        ["numa", "--rows", "1"],
    ],
)
def test_json_says_what_made_it(words: list[str], capsys: Capture) -> None:
    assert main([*words, "--json"]) == Exit.OK
    document = json.loads(capsys.readouterr().out)
    made_by = document["made_by"]
    assert document["schema"] == 1
    assert (made_by["hmd"], made_by["arguments"]) == (__version__, [*words, "--json"])
    assert made_by["host"]["cpus"] == os.cpu_count()
    assert made_by["settings"]["json"]


def test_json_of_a_checkout_names_its_commit(tmp_path: Path) -> None:
    """A copy with a commit of its own, then with a change that is not committed."""
    copy = tmp_path / "copy"
    shutil.copytree(Path(hmd.__file__).parent, copy / "hmd")
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(copy)]
    for words in (["init", "-q"], ["add", "hmd/__init__.py"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)

    def commit() -> str:
        command = [sys.executable, "-m", "hmd", "policy", "list", "--json"]
        done = subprocess.run(command, cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)},
                              capture_output=True, text=True, check=True)  # fmt: skip
        return str(json.loads(done.stdout)["made_by"]["commit"])

    head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    assert head.startswith(commit())
    assert commit()
    (copy / "hmd/__init__.py").write_text((copy / "hmd/__init__.py").read_text() + "\n")
    assert commit().endswith("-dirty")
