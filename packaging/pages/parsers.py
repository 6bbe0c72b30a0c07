"""What pages and completions read from the parsers of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from hmd.cli.main import GROUPS, build_parser


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
    for heading, names in GROUPS:
        present = [families[name] for name in names if name in families]
        if present:
            yield heading, present
