# SPDX-License-Identifier: MIT
"""Fenced blocks of documents: commands, their output, and markers for tests.

A comment on the line above a block says so: ``<!-- run by FILE -->`` names the test that has its
commands, ``<!-- on MACHINE -->`` the fixture machine that they look at, ``<!-- with a daemon -->``
that one runs meanwhile, ``<!-- needs: ... -->`` what is missing where tests run. A block without
one is run as it is. CONTRIBUTING.md describes the markers.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
SHELL = ("console", "sh")
OTHERS = ("text", "yaml", "json", "python", "ini", "promql", "c")

_FENCE = re.compile(
    r"(?:^<!-- (?P<marker>[^\n]*?) -->\n)?^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_MARKER = re.compile(r"^(?:run by |on |with a daemon$|needs: )")
_SUBSTITUTED = re.compile(r"\$\([^()]*\)")
_ENDS = re.compile(r"[|&;()]+")
_BEFORE = ("do", "then", "sudo", "!")


@dataclass(frozen=True, slots=True)
class Command:
    """A command as it is shown, and the lines of output below it."""

    text: str
    output: tuple[str, ...] = ()

    def calls(self) -> Iterator[list[str]]:
        """Yield the words of each program that it starts, those in ``sh -c`` too."""
        yield from _calls(self.text)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: the document, its line there, its language and marker ("" for none)."""

    file: str
    line: int
    language: str
    marker: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def is_shell(self) -> bool:
        return self.language in SHELL

    def commands(self) -> list[Command]:
        """Return the commands; where one has a prompt, what has none is output."""
        lines = self.text.splitlines()
        prompted = any(line.startswith("$ ") for line in lines)
        found: list[tuple[str, list[str]]] = []
        open_ended = False
        for line in lines:
            if open_ended:
                found[-1] = (f"{found[-1][0]}\n{line}", [])
            elif prompted and not line.startswith("$ "):
                found[-1][1].append(line)
            elif line.strip():
                found.append((line.removeprefix("$ ") if prompted else line, []))
            open_ended = bool(found) and not found[-1][1] and not _whole(found[-1][0])
        return [Command(text, tuple(output)) for text, output in found]


def documents() -> list[str]:
    """Return README.md, CONTRIBUTING.md and every page of docs/, as paths from the checkout."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(
        [*listed, "README.md", "CONTRIBUTING.md", "docs/*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(set(done.stdout.split()))


def blocks(file: str) -> list[Block]:
    """Return the fenced blocks of a document."""
    text = (ROOT / file).read_text()
    found = []
    for match in _FENCE.finditer(text):
        marker = match["marker"] or ""
        line = text.count("\n", 0, match.start("language")) + 1
        known = marker if _MARKER.match(marker) else ""
        found.append(Block(file, line, match["language"], known, match["text"]))
    assert 2 * len(found) == len(re.findall(r"^```", text, re.MULTILINE)), f"{file}: an open fence"
    return found


def inline(file: str) -> Iterator[str]:
    """Yield the calls of hmd that a document has in running text and tables."""
    text = _FENCE.sub("", (ROOT / file).read_text())
    yield from re.findall(r"`(hmd [a-z][^`]*)`", text)


def _whole(text: str) -> bool:
    """Return False where a quotation is open, or a backslash joins the next line."""
    if text.endswith("\\"):
        return False
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True


def _calls(text: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(
        _SUBSTITUTED.sub("1", text.replace("\\\n", " ")), posix=True, punctuation_chars=True
    )
    lexer.whitespace_split = True
    words: list[str] = []
    for token in [*lexer, ";"]:
        if not _ENDS.fullmatch(token):
            words.append(token)
            continue
        call = _call(words)
        words = []
        if call:
            yield call
            if "-c" in call and call[call.index("-c") - 1] in ("sh", "bash"):
                yield from _calls(call[call.index("-c") + 1])


def _call(words: list[str]) -> list[str]:
    """Return the words of a simple command without redirections and what goes before it."""
    kept: list[str] = []
    skip = False
    for word in words:
        redirects = bool(re.fullmatch(r"\d*[<>]+", word))
        if not (skip or redirects):
            kept.append(word)
        skip = redirects
    while kept and (kept[0] in _BEFORE or re.match(r"\w+=", kept[0])):
        kept.pop(0)
    return kept
