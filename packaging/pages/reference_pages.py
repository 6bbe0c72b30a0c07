# SPDX-License-Identifier: MIT
"""Write the generated parts of commands.md, configuration.md and python.md in docs/reference.

``python packaging/pages/reference_pages.py [FOLDER]``: text above ``MARK`` in each page is
kept; FOLDER (docs/) is where the pages go. A test fails when they are out of date.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import checkout  # noqa: F401, before hmd
from config_reference import SettingRow, topics
from parsers import Command, groups, meaning, top, value

from hmd import notebook

DOCS = Path(__file__).resolve().parents[2] / "docs/reference"
MARK = "<!-- From here on made by python packaging/pages/reference_pages.py -->\n"

COLUMNS = 100
_SENTENCE = re.compile(r"(?<=[.?!]) (?=[A-Z'`])")
_EXAMPLE = re.compile(r"^( *\S.*?)(?: {2,}(.*))?$")


def commands() -> Iterator[str]:
    """Yield the lines of the reference of all commands."""
    families = {family.words[0]: family for family in top().commands()}
    for heading, present in groups(families):
        yield from (f"## {heading}", "")
        for family in present:
            yield from _family(family)


def _family(family: Command) -> Iterator[str]:
    yield from (f"### {family.name}", "")
    yield from _prose(family.parser.description or family.summary)
    below = list(family.commands())
    if not below:
        yield from _arguments(family)
    for command in below:
        yield from (f"#### {command.name}", "")
        yield from _prose(command.parser.description or f"{_sentence(command.summary)}.")
        yield from _arguments(command)
    for heading, written in family.epilog():
        if heading == "Examples":
            yield from _examples(written)
        else:
            yield from (f"**{heading}**", "") if heading else ()
            yield from _prose(written)


def _arguments(command: Command) -> Iterator[str]:
    yield from ("```text", *command.calls(), "```", "")
    rows = [
        (", ".join(action.option_strings) or value(action), value(action), action)
        for _, actions in command.arguments()
        for action in actions
    ]
    if not rows:
        return
    yield from ("| option | meaning |", "|---|---|")
    for names, given, action in rows:
        after = f"[{given}]" if action.nargs == "?" else given
        called = f"{names} {after}".strip() if action.option_strings else names
        yield f"| `{_cell(called)}` | {_cell(_text(meaning(action)))} |"
    yield ""


def _examples(written: str) -> Iterator[str]:
    """Yield examples as commands; an explanation in the help becomes a comment."""
    yield from ("<!-- needs: what the examples name -->", "```console")
    for line in textwrap.dedent(written).splitlines():
        found = _EXAMPLE.match(line)
        if found:
            yield f"{found[1]}  # {found[2]}" if found[2] else found[1]
    yield from ("```", "")


def _prose(written: str) -> Iterator[str]:
    """Yield paragraphs, a sentence per line, and indented lines as they are."""
    for block in re.split(r"\n\s*\n", written.strip("\n")):
        for set_in, lines in groupby(block.splitlines(), lambda line: line.startswith(" ")):
            if set_in:
                yield from ("```text", *textwrap.dedent("\n".join(lines)).splitlines(), "```", "")
            else:
                for sentence in _SENTENCE.split(_text(" ".join(lines))):
                    yield from textwrap.wrap(sentence, COLUMNS, break_long_words=False)
                yield ""


def configuration() -> Iterator[str]:
    """Yield the lines of the reference of all settings."""
    for topic in topics():
        yield from (f"## {topic.path or 'At the top'}", "")
        if topic.path:
            yield from (_text(topic.effect), "")
        yield from ("| setting | takes | default | effect |", "|---|---|---|---|")
        yield from map(_setting, topic.settings)
        yield ""


def _setting(setting: SettingRow) -> str:
    takes = "; ".join(filter(None, (setting.kind, setting.limits)))
    default = f"`{_cell(setting.default)}`" if setting.default else "-"
    effect = _cell(_text(setting.effect))
    return f"| `{setting.key}` | {_cell(_text(takes))} | {default} | {effect} |"


def _text(words: str) -> str:
    """Return words as Markdown's running text."""
    return re.sub(r"[\\*<]|(?<!\w)_", lambda sign: f"\\{sign[0]}", words)


def _cell(words: str) -> str:
    return words.replace("|", r"\|")


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def python() -> Iterator[str]:
    """Yield the lines of the reference of ``hmd.notebook``, from its docstrings."""
    for name in notebook.PUBLIC:
        found = getattr(notebook, name)
        yield from _member(f"## {name if inspect.isclass(found) else f'hmd.{name}'}", found)
        members = vars(found).items() if inspect.isclass(found) else ()
        for below, member in members:
            described = isinstance(member, property | cached_property) or inspect.isfunction(member)
            if not below.startswith("_") and described:
                yield from _member(f"### {name}.{below}", member)


def _member(heading: str, found: Any) -> Iterator[str]:
    yield from (heading, "")
    if inspect.isfunction(found):
        shown = str(inspect.signature(found)).replace("self, ", "").replace("(self)", "()")
        call = heading.rpartition(" ")[2] + shown.replace("'", "")
        yield from ("```text", *textwrap.wrap(call, COLUMNS, subsequent_indent="    "), "```", "")
    for block in (inspect.getdoc(found) or "").split("\n\n"):
        text = re.sub(r":\w+:(`[^`]+`)", r"\1", " ".join(block.split())).replace("``", "`")
        for sentence in _SENTENCE.split(text):
            yield from textwrap.wrap(sentence, COLUMNS, break_long_words=False)
        yield ""


PAGES = {"commands.md": commands, "configuration.md": configuration, "python.md": python}


def main(folder: Path) -> None:
    """Write the pages into a folder."""
    for name, lines in PAGES.items():
        by_hand = (DOCS / name).read_text().split(MARK)[0]
        made = "\n".join(lines()).rstrip("\n")
        (folder / name).write_text(f"{by_hand}{MARK}\n{made}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS)
