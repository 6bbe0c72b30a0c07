"""Completions for bash, zsh and fish: shtab's, told which arguments are files and folders."""

from __future__ import annotations

from pathlib import Path

import shtab
from parsers import Command, top

FOLDERS = ("DIR",)
"""Metavars of arguments that are folders; every other path is a file."""


def completions() -> dict[str, str]:
    """Return the completion script for each shell, by the shell's name."""
    command = top()
    _tell_paths(command)
    return {shell: shtab.complete(command.parser, shell) for shell in ("bash", "zsh", "fish")}


def _tell_paths(command: Command) -> None:
    for action in command.parser._actions:
        if action.type is Path:
            folder = action.metavar in FOLDERS
            # The attribute by which shtab is told; argparse itself has none for this.
            action.complete = shtab.DIRECTORY if folder else shtab.FILE  # type: ignore[attr-defined]
    for below in command.commands():
        _tell_paths(below)
