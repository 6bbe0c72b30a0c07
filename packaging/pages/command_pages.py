"""The pages hmd(1) and, for each family of commands, hmd-FAMILY(1), from the parsers.

``man hmd record`` finds hmd-record(1), as git's pages are found.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from parsers import Command, groups, top
from roff import Page, bold, italic, text

SECTIONS = {
    "examples": "Examples",
    "exit codes": "Exit status",
    "columns": "Columns",
    "levels": "Levels",
}
"""Headings of the texts below the options, and those of the sections that they become."""

FILES = (
    ("/etc/hmd/hmd.yaml", "The daemon's configuration, hmd.yaml(5)."),
    ("/run/hmd/hmd.sock", "The daemon's status socket."),
)


def pages(date: str, version: str) -> Iterator[tuple[str, str]]:
    """Yield the name (``hmd-run.1``) and source of each page."""
    command = top()
    families = {family.words[0]: family for family in command.commands()}
    yield "hmd.1", _overview(command, families, date, version)
    for family in families.values():
        yield f"{family.page}.1", _family(family, date, version)


def _overview(command: Command, families: dict[str, Command], date: str, version: str) -> str:
    page = Page("hmd", 1, command.summary, date, version)
    page.heading("Synopsis")
    page.paragraph(f"{bold('hmd')} {italic('COMMAND')} [options]")
    page.heading("Description")
    page.prose(command.parser.description or "")
    page.paragraph(
        "The daemon as a service is described in hmd(8), its configuration in hmd.yaml(5)."
    )
    page.heading("Commands")
    for heading, present in groups(families):
        page.subheading(heading)
        for family in present:
            page.entry(rf"\fB{family.page.replace('-', chr(92) + '-')}\fR(1)", text(family.summary))
    options(page, command)
    epilog(page, command.parser.epilog or "")
    page.heading("Files")
    for path, meaning in FILES:
        page.entry(italic(path), text(meaning))
    page.heading("See also")
    page.paragraph("hmd(8), hmd.yaml(5), numactl(8), move_pages(2)")
    return page.source()


def _family(family: Command, date: str, version: str) -> str:
    page = Page(family.page, 1, family.summary, date, version)
    page.heading("Synopsis")
    below = list(family.commands())
    for command in below or [family]:
        for call in usage(command):
            page.paragraph(call)
    page.heading("Description")
    page.prose(family.parser.description or family.summary)
    if below:
        page.heading("Commands")
    for command in below:
        page.subheading(command.name)
        page.prose(
            command.parser.description or f"{command.summary[:1].upper()}{command.summary[1:]}."
        )
        for _, actions in command.arguments():
            _entries(page, actions)
    options(page, family)
    epilog(page, family.parser.epilog or "")
    page.heading("See also")
    page.paragraph("hmd(1), hmd(8), hmd.yaml(5)")
    return page.source()


def usage(command: Command) -> list[str]:
    """Return the ways to call a command, escaped; its name in bold."""
    formatter = argparse.HelpFormatter(command.name, width=10_000)
    exclusive = command.parser._mutually_exclusive_groups
    formatter.add_usage(command.parser.usage, command.parser._actions, exclusive, prefix="")
    lines = [" ".join(line.split()) for line in formatter.format_help().strip().splitlines()]
    return [f"{bold(command.name)}{text(line.removeprefix(command.name))}" for line in lines]


def options(page: Page, command: Command) -> None:
    """Add a section for a command's arguments, a part for each group with a title of its own."""
    found = list(command.arguments())
    if not found:
        return
    page.heading("Options")
    for title, actions in found:
        if title not in ("options", "positional arguments"):
            page.subheading(f"{title[:1].upper()}{title[1:]}")
        _entries(page, actions)


def _entries(page: Page, actions: list[argparse.Action]) -> None:
    for action in actions:
        # argparse fills in %(default)s and its like.
        given = {**vars(action), "prog": "hmd"}
        meaning = (action.help or "") % given if "%" in (action.help or "") else action.help or ""
        page.entry(_called(action), text(" ".join(meaning.split())))


def _called(action: argparse.Action) -> str:
    if not action.option_strings:
        return italic(str(action.metavar or action.dest))
    value = ""
    if action.nargs != 0:
        name = action.metavar or ("|".join(map(str, action.choices or ())) or action.dest.upper())
        value = f" {italic(str(name))}" if action.nargs != "?" else f" [{italic(str(name))}]"
    return ", ".join(f"{bold(option)}{value}" for option in action.option_strings)


def epilog(page: Page, written: str) -> None:
    """Add what follows the options: a section for each heading that it has, the rest as notes."""
    notes = []
    for block in filter(None, re.split(r"\n\s*\n", written.strip("\n"))):
        head, _, rest = block.partition(":")
        if head in SECTIONS:
            page.heading(SECTIONS[head])
            # What is on the heading's own line is running text.
            page.block(rest.removeprefix(" ").strip("\n").splitlines())
        else:
            notes.append(block)
    if notes:
        page.heading("Notes")
        page.prose("\n\n".join(notes))
