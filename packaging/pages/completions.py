# SPDX-License-Identifier: MIT
"""Completions for bash, zsh and fish, by shtab; arguments that are paths complete as paths."""

from __future__ import annotations

from pathlib import Path

import shtab
from parsers import Command, top

FOLDERS = ("DIR",)
"""Metavars of arguments that are folders; every other path is a file."""


def completions() -> dict[str, str]:
    """Return the completion script for each shell, by the shell's name."""
    command = top()
    _mark_paths(command)
    return {shell: shtab.complete(command.parser, shell) for shell in ("bash", "zsh", "fish")}


def _mark_paths(command: Command) -> None:
    for action in command.parser._actions:
        if action.type is Path:
            folder = action.metavar in FOLDERS
            # The attribute that shtab reads; argparse has none for this.
            action.complete = shtab.DIRECTORY if folder else shtab.FILE  # type: ignore[attr-defined]
    for below in command.commands():
        _mark_paths(below)
