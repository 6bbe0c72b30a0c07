# SPDX-License-Identifier: MIT
"""What pages and completions read from the parsers of the command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass

from hmd.cli.main import GROUPS, build_parser

SECTIONS = {
    "examples": "Examples",
    "environment": "Environment",
    "exit codes": "Exit status",
    "columns": "Columns",
    "levels": "Levels",
}
"""Headings of the texts below the options, and those of the sections that they become."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command: the words that call it after ``hmd``, its one line, its parser."""

    words: tuple[str, ...]
    summary: str
    parser: argparse.ArgumentParser

    @property
    def name(self) -> str:
        """The command as it is written, ``hmd trace info``."""
        return " ".join(("hmd", *self.words))

    @property
    def page(self) -> str:
        """The name of its manual page, ``hmd-trace``, where it is a family."""
        return "-".join(("hmd", *self.words))

    def commands(self) -> Iterator[Command]:
        """Yield the commands right below this one."""
        families = subparsers(self.parser)
        if families is None:
            return
        summaries = {action.dest: action.help for action in families._get_subactions()}
        for name, parser in families.choices.items():
            yield Command((*self.words, name), summaries.get(name) or "", parser)

    def arguments(self) -> Iterator[tuple[str, list[argparse.Action]]]:
        """Yield the groups of arguments, each with its title; no empty ones.

        Left out is what help leaves out, and below ``hmd`` itself the help.
        """
        hidden = (argparse._SubParsersAction, *((argparse._HelpAction,) if self.words else ()))
        for group in self.parser._action_groups:
            shown = [
                action
                for action in group._group_actions
                if action.help != argparse.SUPPRESS and not isinstance(action, hidden)
            ]
            if shown:
                yield group.title or "", shown

    def calls(self) -> list[str]:
        """Return the ways to call it, a line each."""
        formatter = argparse.HelpFormatter(self.name, width=10_000)
        exclusive = self.parser._mutually_exclusive_groups
        formatter.add_usage(self.parser.usage, self.parser._actions, exclusive, prefix="")
        return [" ".join(line.split()) for line in formatter.format_help().strip().splitlines()]

    def epilog(self) -> Iterator[tuple[str, str]]:
        """Yield each section below the options, by its heading; notes have none."""
        written = (self.parser.epilog or "").strip("\n")
        for block in filter(None, re.split(r"\n\s*\n", written)):
            head, _, rest = block.partition(":")
            if head in SECTIONS:
                # What is on the heading's own line is running text.
                yield SECTIONS[head], rest.removeprefix(" ").strip("\n")
            else:
                yield "", block


def meaning(action: argparse.Action) -> str:
    """Return an argument's help on one line, as argparse fills it in (``%(default)s``)."""
    written = action.help or ""
    filled = written % {**vars(action), "prog": "hmd"} if "%" in written else written
    return " ".join(filled.split())


def value(action: argparse.Action) -> str:
    """Return what stands for an argument's value; empty for a switch.

    An option's value that may be left out (``nargs`` "?") belongs in brackets.
    """
    if not action.option_strings:
        return str(action.metavar or action.dest)
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, tuple):  # nargs=2: a name for each
        return " ".join(action.metavar)
    return str(action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper())


def subparsers(
    parser: argparse.ArgumentParser,
) -> argparse._SubParsersAction[argparse.ArgumentParser] | None:
    """Return the action that holds a parser's commands, None where it has none."""
    found = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return next(found, None)


def top() -> Command:
    """Return ``hmd`` itself."""
    return Command((), "keep the hot pages of running programs in fast memory", build_parser())


def groups(families: dict[str, Command]) -> Iterator[tuple[str, list[Command]]]:
    """Yield the families by the headings of ``hmd --help``; an empty heading is left out."""
    for heading, group in GROUPS.items():
        present = [families[name] for name in group if name in families]
        if present:
            yield heading, present
