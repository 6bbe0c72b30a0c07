"""Check the language of documents and sources: banned phrases, line lengths, links.

    python packaging/prose/prose.py [FILE...]

Prints ``file:line: message`` and exits with 1 where anything is found. Markdown is split into
blocks by markdown-it; in Python, docstrings, comments and texts are read, in C and in shell,
YAML, TOML, units and make files comments. Text in
backquotes is code and is not searched. ``prose: allow`` in a comment of the same line (Markdown:
an HTML comment) permits one line, for quotations.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import yaml
from markdown_it import MarkdownIt

ROOT: Final = Path(__file__).resolve().parents[2]
PHRASES: Final = Path(__file__).with_name("phrases.yaml")
COLUMNS: Final = 100
"""Longest line of a Markdown source, except in tables, code, links and pictures."""

ALLOW: Final = "prose: allow"
DOCUMENTS: Final = ("*.md", "docs/**/*.md", "packaging/**/*.md")
SOURCES: Final = (
    *("*.py", "hmd/**/*.py", "bench/**/*.py", "config/**/*.py", "packaging/**/*.py", "setup/*.py"),
    *("tests/**/*.py", "hmd/**/*.[ch]", "hmd/**/*.js", "bench/**/*.[ch]", "tests/**/*.c"),
    *("hmd/**/*.yaml", "bench/**/*.yaml", "config/**/*.y*ml", "packaging/**/*.yaml", "mkdocs.yml"),
    *("setup/*.sh", "packaging/**/*.sh", "systemd/**", ".ci/*", "Makefile", "pyproject.toml"),
)
EXEMPT: Final = ("packaging/prose/", "tests/unit/prose/", "tests/fixtures/")
"""Where the phrases themselves stand, and files of other machines."""

_CODE = re.compile(r"``.+?``|`[^`]*`|\{[^{}]*\}")
_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
_ABBREVIATION = r"(?<![A-Z])(?<!\be\.g)(?<!\bi\.e)(?<!\bet al)(?<!\bvs)"
_SENTENCE = re.compile(_ABBREVIATION + r"[.?!]\)? (?=[A-Z][a-z])")
_UNBREAKABLE = re.compile(r"\]\(|https?://|<!--")
_MARKER = re.compile(r"^\s*(\d+\.|[-*])\s+")
_C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


class Problem(NamedTuple):
    """One finding: a line from 1, and what to do about it."""

    line: int
    message: str


class Line(NamedTuple):
    """One line of prose and its number in the file."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Phrase:
    """A phrase that is not used, and what to write instead."""

    find: re.Pattern[str]
    write: str


def load_phrases(file: Path = PHRASES) -> tuple[Phrase, ...]:
    """Return the banned phrases of ``phrases.yaml``; spaces match any white space."""
    rows = yaml.safe_load(file.read_text())
    return tuple(
        Phrase(re.compile(row["find"].strip().replace(" ", r"\s+"), re.IGNORECASE), row["write"])
        for row in rows
    )


def check_markdown(text: str, file: Path, phrases: Iterable[Phrase]) -> Iterator[Problem]:
    """Yield what is wrong with a Markdown document; ``file`` is where its links start from."""
    lines = text.splitlines()
    yield from _phrases(_paragraphs(text), phrases)
    for number, kind in sorted(_kinds(text).items()):
        line = lines[number - 1]
        if kind == "code" or ALLOW in line:
            continue
        yield from _links(number, line, file)
        if kind == "prose":
            yield from _length(number, line)
            if _SENTENCE.search(_MARKER.sub("", _CODE.sub("`", _LINK.sub("]", line)))):
                yield Problem(number, "more than one sentence: write one sentence per line")


def check_python(text: str, phrases: Iterable[Phrase]) -> Iterator[Problem]:
    """Yield the banned phrases in docstrings, comments and texts of Python source."""
    yield from _phrases(_python_prose(text), phrases)


def check_c(text: str, phrases: Iterable[Phrase]) -> Iterator[Problem]:
    """Yield the banned phrases in the comments of C source."""
    comments = (
        [Line(text.count("\n", 0, found.start()) + 1, found[0])]
        for found in _C_COMMENT.finditer(text)
    )
    yield from _phrases(comments, phrases)


def check_hash_comments(text: str, phrases: Iterable[Phrase]) -> Iterator[Problem]:
    """Yield the banned phrases in comments that begin with ``#``."""
    comments = (
        [Line(number, line[line.index("#") :])]
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(r"(^|\s)#", line)
    )
    yield from _phrases(comments, phrases)


def check(file: Path, phrases: Iterable[Phrase]) -> list[Problem]:
    """Return what is wrong with a file, by its suffix."""
    text = file.read_text()
    if file.suffix == ".md":
        return sorted(check_markdown(text, file, phrases))
    if file.suffix == ".py":
        return sorted(check_python(text, phrases))
    if file.suffix in (".c", ".h", ".js"):
        return sorted(check_c(text, phrases))
    return sorted(check_hash_comments(text, phrases))


def _kinds(text: str) -> dict[int, str]:
    """Return for each line of Markdown with text what it is: prose, table or code."""
    kinds: dict[int, str] = {}
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.map is None:
            continue
        kind = {"fence": "code", "code_block": "code", "html_block": "html", "inline": "prose"}.get(
            token.type, "table" if token.type == "table_open" else ""
        )
        for line in range(token.map[0] + 1, token.map[1] + 1):
            if kind and kinds.get(line) not in ("table", "code"):
                kinds[line] = kind
    return kinds


def _paragraphs(text: str) -> Iterator[list[Line]]:
    """Yield the blocks of prose of a Markdown document, as lines without code."""
    lines = text.splitlines()
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "inline" and token.map is not None:
            first, last = token.map
            yield [Line(n + 1, lines[n]) for n in range(first, max(last, first + 1))]


def _python_prose(text: str) -> Iterator[list[Line]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield [Line(token.start[0], token.string)]
        elif token.type in (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            value = token.string
            if " " in value:
                yield [Line(token.start[0] + n, line) for n, line in enumerate(value.splitlines())]


def _phrases(blocks: Iterable[list[Line]], phrases: Iterable[Phrase]) -> Iterator[Problem]:
    """Yield the banned phrases of blocks of prose; a phrase may go over a line's end."""
    phrases = tuple(phrases)
    seen: set[Problem] = set()
    for block in blocks:
        shown = [Line(n, "" if ALLOW in text else text) for n, text in block]
        joined = "\n".join(_LINK.sub("]", text) for _, text in shown)
        joined = _CODE.sub(lambda code: "`" + "\n" * code[0].count("\n"), joined)
        for phrase in phrases:
            for found in phrase.find.finditer(joined):
                number = block[0].number + joined.count("\n", 0, found.start())
                said = " ".join(found[0].split())
                problem = Problem(number, f"'{said}': write {phrase.write}")
                if problem not in seen:
                    seen.add(problem)
                    yield problem


def _length(number: int, line: str) -> Iterator[Problem]:
    if len(_CODE.sub("`", line)) > COLUMNS and not _UNBREAKABLE.search(line):
        yield Problem(number, f"{len(line)} columns: at most {COLUMNS}")


def _links(number: int, line: str, file: Path) -> Iterator[Problem]:
    for found in _LINK.finditer(_CODE.sub("", line)):
        target = found[1]
        if "://" in target or target.startswith("mailto:"):
            continue
        if not (file.parent / target).exists():
            yield Problem(number, f"link to {target}: no such file")


def tracked(patterns: Iterable[str]) -> list[Path]:
    """Return the files of the checkout that match, as git lists them."""
    command = ["git", "ls-files", "--", *(f":(glob){pattern}" for pattern in patterns)]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [
        ROOT / name
        for name in names.splitlines()
        if (ROOT / name).is_file() and not name.startswith(EXEMPT)
    ]


def main(arguments: list[str]) -> int:
    """Check the files that are given, or all of the checkout; returns the exit code."""
    files = [Path(name).resolve() for name in arguments] or tracked((*DOCUMENTS, *SOURCES))
    phrases = load_phrases()
    found = 0
    for file in files:
        name = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
        for problem in check(file, phrases):
            found += 1
            print(f"{name}:{problem.line}: {problem.message}")
    if found:
        print(f"{found} places; the rules are in CONTRIBUTING.md, the terms in docs/glossary.md")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
