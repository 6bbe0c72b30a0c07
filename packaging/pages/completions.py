# SPDX-License-Identifier: MIT
"""Completions for bash, zsh and fish, by shtab: paths, policies, nodes and targets of here."""

from __future__ import annotations

from pathlib import Path

import shtab
from parsers import Command, top

from hmd.policy import registry

FOLDERS = ("DIR",)
"""Metavars of arguments that are folders; every other path is a file."""
# Words without quotes, stars, carets and colons, which each shell takes alike.
_TARGETS = "sed -n s/-.name..//p /etc/hmd/hmd.yaml 2>/dev/null"
LIVE = {
    "NODE": "ls /sys/devices/system/node | sed -n s/node//p",
    "TARGET": _TARGETS,
    "PID|TARGET": _TARGETS,
}
"""Commands that list what arguments may be, by metavar."""
POLICIES = f"echo {' '.join(registry.names())} | xargs -n1"


def completions() -> dict[str, str]:
    """Return the completion script for each shell, by the shell's name."""
    command = top()
    _mark_paths(command)
    return {shell: shtab.complete(command.parser, shell) for shell in ("bash", "zsh", "fish")}


def _mark_paths(command: Command) -> None:
    prog = command.parser.prog
    for action in command.parser._actions:
        if action.type is Path:
            folder = action.metavar in FOLDERS
            # The attribute that shtab reads; argparse has none for this.
            action.complete = shtab.DIRECTORY if folder else shtab.FILE  # type: ignore[attr-defined]
        elif action.dest == "policy" or (action.dest == "name" and " policy " in prog):
            action.complete = shtab.cmd(POLICIES)  # type: ignore[attr-defined]
        elif action.metavar in LIVE:
            action.complete = shtab.cmd(LIVE[action.metavar])  # type: ignore[attr-defined]
    for below in command.commands():
        _mark_paths(below)
