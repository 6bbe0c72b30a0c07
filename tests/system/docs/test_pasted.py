# SPDX-License-Identifier: MIT
"""README and tutorials, pasted line by line into a terminal, next to a real redis.

Two terminals share mounts and a network of their own: what runs until Ctrl-C stays in the first
while the next block, "from another shell", is pasted into the second.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from hmd.base.errors import Exit
from tests.system.docs.blocks import ROOT, Block, blocks
from tests.system.docs.session import is_endless

PAGES = ("README.md", *sorted(f"docs/tutorial/{p.name}" for p in ROOT.glob("docs/tutorial/*.md")))
NOT_PASTED: Final = {
    "make setup": "downloads for minutes; python -m bench.first_hour clone runs it",
    "make demo": "boots the emulated machine twice, 10 minutes; python -m hmd demo in CI",
    "make test": "this test is a part of it",
}
"""Commands without a marker in the documents that cannot run here, and why."""
MARKED: Final = {
    "on ": "of a machine that is not here: test_commands.py shows it by a fixture",
    "run by ": "in the emulated machine, by the test that is named",
    "needs: ": "needs what test_commands.py says",
}
"""Why blocks with a marker of a document are not pasted."""
REDIS = shutil.which("redis-server") or shutil.which("redis-check-rdb")
"""The same program by two names: by its own it is the server."""
INSTALLED: Final = "export PATH=$PWD/.venv/bin:$PATH"
"""The last line of README's installation, which tutorials count on."""
PROMPT: Final = re.compile(r"@(\d+)@ $")
PATIENCE_S: Final = 120.0


class Terminal:
    """A shell on a terminal of its own, in the namespaces of process ``world``."""

    def __init__(self, world: int, folder: Path, environ: dict[str, str]) -> None:
        self._fd, tty = os.openpty()
        spaces = ("nsenter", f"--target={world}", "--mount", "--net", f"--wd={folder}")
        self.shell = subprocess.Popen(
            ["setsid", "--ctty", *spaces, "bash", "--norc", "--noediting", "-i"],
            stdin=tty,
            stdout=tty,
            stderr=tty,
            env={**environ, "PS1": "@$?@ ", "PS2": ""},
        )
        os.close(tty)
        self.read(PROMPT)
        self.paste("stty -echo cols 200")

    def read(self, wanted: re.Pattern[str]) -> str:
        """Return what is printed up to what is wanted."""
        said, deadline_s = "", time.monotonic() + PATIENCE_S
        while not wanted.search(said):
            left_s = deadline_s - time.monotonic()
            assert select.select([self._fd], [], [], max(left_s, 0))[0], f"it waits after:\n{said}"
            said += os.read(self._fd, 1 << 16).decode(errors="replace").replace("\r", "")
        return said

    def begin(self, line: str) -> None:
        os.write(self._fd, f"{line}\n".encode())

    def paste(self, line: str) -> tuple[int, str]:
        """Return the exit status of a command and what it printed."""
        self.begin(line)
        return self._ended()

    def interrupt(self) -> tuple[int, str]:
        os.write(self._fd, b"\x03")
        return self._ended()

    def _ended(self) -> tuple[int, str]:
        said = self.read(PROMPT)
        prompt = PROMPT.search(said)
        assert prompt is not None
        return int(prompt[1]), said[: prompt.start()]

    def close(self) -> None:
        self.shell.kill()
        self.shell.wait()
        os.close(self._fd)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the checkout, as cloned and set up: its .venv starts this checkout's hmd."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", "config", "docs", "README.md", "Makefile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        (tmp_path / "hmd" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "hmd" / name)
    programs = tmp_path / "hmd/.venv/bin"
    programs.mkdir(parents=True)
    start = f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m hmd "$@"\n'
    (programs / "hmd").write_text(start)
    (programs / "hmd").chmod(0o755)
    return tmp_path / "hmd"


@pytest.fixture
def terminals(folder: Path) -> Iterator[tuple[Terminal, Terminal]]:
    """Two terminals whose /run is empty, next to redis."""
    if REDIS is None:
        pytest.skip("redis is not installed: apt-get install redis-tools")
    world = subprocess.Popen(["unshare", "--mount", "--net", "sleep", "infinity"])
    server = folder.parent / "redis-server"
    server.symlink_to(REDIS)
    environ = {**os.environ, "PATH": f"{folder.parent}:{os.environ['PATH']}"}
    until_s = time.monotonic() + 10
    while Path(f"/proc/{world.pid}/comm").read_text() != "sleep\n" and time.monotonic() < until_s:
        time.sleep(0.05)
    first, second = (Terminal(world.pid, folder, environ) for _ in range(2))
    for line in ("mount -t tmpfs tmpfs /run", "ip link set lo up"):
        assert first.paste(line)[0] == 0, line
    redis = subprocess.Popen(
        ["nsenter", f"--target={world.pid}", "--net", server, "--save", "", "--appendonly", "no"],
        stdout=subprocess.DEVNULL,
        cwd=folder.parent,
    )
    yield first, second
    for terminal in (first, second):
        terminal.close()
    for process in (redis, world):
        process.send_signal(signal.SIGKILL)
        process.wait()


def pasted(page: str) -> list[Block]:
    return [b for b in blocks(page) if b.is_shell and b.marker in ("", "with a daemon")]


def test_every_block_that_is_not_pasted_has_a_reason() -> None:
    assert INSTALLED in (ROOT / "README.md").read_text()
    for page in PAGES:
        for block in blocks(page):
            if block.is_shell and block not in pasted(page):
                assert block.marker.startswith(tuple(MARKED)), f"{block}: {block.marker}"
        for block in pasted(page):
            for command in block.commands():
                if command.text.startswith("make "):
                    assert command.text.split("#")[0].strip() in NOT_PASTED, f"{block}"


@pytest.mark.parametrize("page", [page for page in PAGES if pasted(page)])
def test_page_pasted_as_it_stands(page: str, terminals: tuple[Terminal, Terminal]) -> None:
    first, second = terminals
    running, shown = "", ""
    if page != "README.md":
        for terminal in terminals:
            assert terminal.paste(INSTALLED)[0] == 0
    for block in pasted(page):
        for command in block.commands():
            line = command.text
            if line.split("#")[0].strip() in NOT_PASTED:
                continue
            terminal = second if running else first
            if not is_endless(line):
                code, said = terminal.paste(line)
                allowed = {0, Exit.MISSING} if line.startswith("hmd doctor") else {0}
                assert code in allowed, f"{block}: {line}: {code}\n{said}"
                shown += said
            elif running:
                terminal.begin(line)
                terminal.read(re.compile(r"\n"))
                code, said = terminal.interrupt()
                assert code == 130, f"{block}: {line}: {code}\n{said}"
            else:
                running = line
                terminal.begin(line)
                shown += terminal.read(re.compile(r"following pid \d+"))
    if running:
        code, said = first.interrupt()
        assert code == 0, f"{running}: {code}\n{said}"
        assert "Traceback" not in said
        assert "pages stay where they are" in said
        assert "0 processes" not in shown
        assert re.search(r"redis-server +\d+ ", shown), shown
