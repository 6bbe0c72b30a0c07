# SPDX-License-Identifier: MIT
"""Completions in real shells: key presses in a terminal, and fish by its complete command."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

WAIT_S = 30.0

SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source {}/bash-completion/completions/hmd"),
    "zsh": (
        ["zsh", "-f", "-i"],
        "fpath=({}/zsh/site-functions $fpath); autoload -U compinit; compinit -u -D",
    ),
}


class Terminal:
    """A shell in a terminal: sends keys and reads the output."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.shown = ""

    def press(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def wait(self, pattern: str) -> None:
        """Wait until what was shown since the last wait has this."""
        until = time.monotonic() + WAIT_S
        while not re.search(pattern, self.shown):
            assert time.monotonic() < until, f"no {pattern!r} in {self.shown!r}"
            if select.select([self._descriptor], [], [], 0.1)[0]:
                self.shown += os.read(self._descriptor, 65536).decode(errors="replace")
        self.shown = ""


@contextmanager
def terminal(shell: str, share: Path, folder: Path) -> Iterator[Terminal]:
    command, load = SHELLS[shell]
    ours, theirs = pty.openpty()
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "TERM": "dumb", "PS1": "READY "}
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env=environ,
        start_new_session=True,
    ) as popen:
        os.close(theirs)
        try:
            made = Terminal(ours)
            made.press(f"{load.format(share)}; echo LOA''DED\n")
            made.wait("LOADED")
            yield made
        finally:
            popen.kill()
            os.close(ours)


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_tab_completes_commands_options_choices_and_files(
    shell: str, share: Path, tmp_path: Path
) -> None:
    (tmp_path / "targets.yaml").touch()
    with terminal(shell, share, tmp_path) as keys:
        keys.press("hmd topo\t")
        keys.wait("logy")
        keys.press("\x15hmd config ch\t")
        keys.wait("eck")
        keys.press("\x15hmd run --log-le\t")
        keys.wait("vel")
        keys.press("\x15hmd run --log-level warn\t")
        keys.wait("ing")
        keys.press("\x15hmd config check targ\t")
        keys.wait(r"ets\.yaml")
        keys.press("\x15hmd run --config targ\t")
        keys.wait(r"ets\.yaml")
        keys.press("\x15hmd policy show histo\t")
        keys.wait("gram")
        keys.press("\x15hmd simulate x --policy histo\t")
        keys.wait("gram")
        keys.press("\x15hmd drain \t")
        keys.wait("0")


def test_fish_completes_commands_options_choices_and_files(share: Path, tmp_path: Path) -> None:
    (tmp_path / "targets.yaml").touch()
    script = share / "fish/vendor_completions.d/hmd.fish"

    def completed(line: str) -> list[str]:
        done = subprocess.run(
            ["fish", "--no-config", "--command", f"source {script}; complete -C '{line}'"],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            check=True,
        )
        assert done.stderr == ""
        return [answer.split("\t")[0] for answer in done.stdout.splitlines()]

    assert completed("hmd topo") == ["topology"]
    assert completed("hmd config ch") == ["check"]
    assert completed("hmd run --log-le") == ["--log-level"]
    assert completed("hmd run --log-level warn") == ["warning"]
    assert completed("hmd config check targ") == ["targets.yaml"]
    assert completed("hmd run --config targ") == ["targets.yaml"]
    assert completed("hmd policy show histo") == ["histogram"]
    assert "0" in completed("hmd drain ")
