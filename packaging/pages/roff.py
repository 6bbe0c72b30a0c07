# SPDX-License-Identifier: MIT
"""A manual page as text of man(7) macros, built up from its start.

Only macros that both groff and mandoc know. Lines are wrapped, so that the source can be read.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

_ESCAPES = str.maketrans({"\\": r"\e", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"})
_OPTION = re.compile(r"(?<![\w-])-+(?=\w)")
WIDTH = 78


def text(words: str) -> str:
    """Return words for running text: what looks like an option can be copied from the page."""
    return _OPTION.sub(lambda dashes: dashes[0].replace("-", r"\-"), words.translate(_ESCAPES))


def literal(words: str) -> str:
    """Return words in which every dash is one that a shell takes."""
    return words.translate(_ESCAPES).replace("-", r"\-")


def bold(words: str) -> str:
    """Return literal words in bold."""
    return rf"\fB{literal(words)}\fR"


def italic(words: str) -> str:
    """Return literal words in italics, for what a reader replaces."""
    return rf"\fI{literal(words)}\fR"


class Page:
    """A page under construction; each method adds to its end."""

    def __init__(self, name: str, section: int, summary: str, date: str, version: str) -> None:
        self._lines = [
            f'.TH {name.upper()} {section} "{date}" "hmd {version}" "hmd"',
            ".SH NAME",
            f"{literal(name)} \\- {text(summary)}",
        ]

    def heading(self, words: str) -> None:
        """Begin a section."""
        self._lines.append(f".SH {text(words).upper()}")

    def subheading(self, words: str) -> None:
        """Begin a part of a section."""
        self._lines.append(f".SS {text(words)}")

    def paragraph(self, marked: str) -> None:
        """Add a paragraph of words that are escaped already."""
        self._space()
        self._fill(marked)

    def entry(self, term: str, *paragraphs: str) -> None:
        """Add a term and what it means, both escaped already."""
        self._lines += [".TP", _guarded(term)]
        for number, marked in enumerate(paragraphs):
            if number:
                self._lines.append(".IP")
            self._fill(marked)

    def verbatim(self, lines: Iterable[str]) -> None:
        """Add lines as they are, such as commands to copy."""
        self._space()
        self._lines += [".RS 4", ".nf"]
        self._lines += [_guarded(literal(line)) or r"\&" for line in lines]
        self._lines += [".fi", ".RE"]

    def prose(self, written: str) -> None:
        """Add a text as the command line prints it: paragraphs, and lines set in as they are."""
        for block in re.split(r"\n\s*\n", textwrap.dedent(written).strip("\n")):
            self.block(block.splitlines())

    def block(self, lines: list[str]) -> None:
        """Add the lines of one paragraph; those that are set in stay lines."""
        while lines:
            indented = lines[0].startswith(" ")
            count = next((i for i, x in enumerate(lines) if x[:1].isspace() != indented), None)
            part, lines = lines[:count], lines[count:] if count else []
            if indented:
                self.verbatim(textwrap.dedent("\n".join(part)).splitlines())
            else:
                self.paragraph(text(" ".join(part)))

    def source(self) -> str:
        """Return the page."""
        return "\n".join(self._lines) + "\n"

    def _space(self) -> None:
        if not self._lines[-1].startswith((".SH", ".SS")):
            self._lines.append(".PP")

    def _fill(self, marked: str) -> None:
        lines = textwrap.wrap(marked, WIDTH, break_long_words=False, break_on_hyphens=False)
        self._lines += map(_guarded, lines)


def _guarded(line: str) -> str:
    """Return a line that starts no macro."""
    return rf"\&{line}" if line.startswith((".", "'")) else line
