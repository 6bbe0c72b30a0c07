# SPDX-License-Identifier: MIT
"""The pages hmd(1) and, for each family of commands, hmd-FAMILY(1), from the parsers.

``man hmd record`` finds hmd-record(1), as git's pages are found.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from parsers import Command, groups, meaning, top, value
from roff import Page, bold, italic, text

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
    epilog(page, command)
    page.heading("Files")
    for path, what in FILES:
        page.entry(italic(path), text(what))
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
    epilog(page, family)
    page.heading("See also")
    page.paragraph("hmd(1), hmd(8), hmd.yaml(5)")
    return page.source()


def usage(command: Command) -> list[str]:
    """Return the ways to call a command, escaped; its name in bold."""
    lines = command.calls()
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
        page.entry(_called(action), text(meaning(action)))


def _called(action: argparse.Action) -> str:
    name = value(action)
    if not action.option_strings:
        return italic(name)
    after = f" [{italic(name)}]" if action.nargs == "?" else f" {italic(name)}" if name else ""
    return ", ".join(f"{bold(option)}{after}" for option in action.option_strings)


def epilog(page: Page, command: Command) -> None:
    """Add what follows the options: a section for each heading that it has, the rest as notes."""
    notes = []
    for heading, written in command.epilog():
        if heading:
            page.heading(heading)
            page.block(written.splitlines())
        else:
            notes.append(written)
    if notes:
        page.heading("Notes")
        page.prose("\n\n".join(notes))
