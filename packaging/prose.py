# SPDX-License-Identifier: MIT
"""Check the Markdown of the checkout: lengths of lines, one sentence per line, links to files.

    python packaging/prose.py [FILE...]

Prints ``file:line: message`` and exits with 1 where anything is found. Tables, code, links and
pictures may be longer than a line.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from markdown_it import MarkdownIt

ROOT: Final = Path(__file__).resolve().parents[1]
MAX_COLUMNS: Final = 100
"""Longest line of prose; longer lines of one sentence are not found by an editor's wrap."""

EXEMPT: Final = (".github/", "tests/fixtures/")
"""Templates of forms, and files of other machines."""

_CODE = re.compile(r"``.+?``|`[^`]*`|\{[^{}]*\}")
_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
_ABBREVIATION = r"(?<![A-Z])(?<!\be\.g)(?<!\bi\.e)(?<!\bet al)(?<!\bvs)"
_SENTENCE = re.compile(_ABBREVIATION + r"[.?!]\)? (?=[A-Z][a-z])")
_UNBREAKABLE = re.compile(r"\]\(|https?://|<!--")
_MARKER = re.compile(r"^\s*(\d+\.|[-*])\s+")
_KINDS: Final = {"fence": "code", "code_block": "code", "inline": "prose", "table_open": "table"}


class Problem(NamedTuple):
    """One finding: a line from 1, and what to do about it."""

    line: int
    message: str


def check(file: Path) -> Iterator[Problem]:
    """Yield what is wrong with a Markdown file; links start from its folder."""
    text = file.read_text()
    lines = text.splitlines()
    for number, kind in sorted(line_kinds(text).items()):
        line = lines[number - 1]
        if kind == "code":
            continue
        for found in _LINK.finditer(_CODE.sub("", line)):
            outside = "://" in found[1] or found[1].startswith("mailto:")
            if not outside and not (file.parent / found[1]).exists():
                yield Problem(number, f"link to {found[1]}: no such file")
        if kind == "prose":
            if len(_CODE.sub("`", line)) > MAX_COLUMNS and not _UNBREAKABLE.search(line):
                yield Problem(number, f"{len(line)} columns: at most {MAX_COLUMNS}")
            if _SENTENCE.search(_MARKER.sub("", _CODE.sub("`", _LINK.sub("]", line)))):
                yield Problem(number, "more than one sentence: write one sentence per line")


def line_kinds(text: str) -> dict[int, str]:
    """Return for each line of Markdown with text what it is: prose, table or code."""
    kinds: dict[int, str] = {}
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        kind = _KINDS.get(token.type)
        if token.map is None or kind is None:
            continue
        for line in range(token.map[0] + 1, token.map[1] + 1):
            if kinds.get(line) not in ("table", "code"):
                kinds[line] = kind
    return kinds


def tracked() -> list[Path]:
    """Return the Markdown files of the checkout, as git lists them."""
    command = ["git", "ls-files", "--", "*.md"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [ROOT / name for name in names.splitlines() if not name.startswith(EXEMPT)]
    return [file for file in files if file.is_file()]


def main(arguments: list[str]) -> int:
    """Check the files that are given, or all of the checkout; returns the exit code."""
    found = 0
    for file in [Path(name).resolve() for name in arguments] or tracked():
        for problem in check(file):
            found += 1
            print(f"{file}:{problem.line}: {problem.message}")
    if found:
        print(f"{found} places; the rules are in CONTRIBUTING.md")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
