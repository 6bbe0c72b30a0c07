"""One name, one concept: module base names in hmd/ and top-level classes are unique.

And no identifier is of words for which the field has others.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERIC = {"__init__", "__main__"}
DIALECT = {
    **dict.fromkeys(("believe", "believes", "believed"), "credible"),
    **dict.fromkeys(("tally", "tallies"), "totals, counts"),
    "looks": "polls, checks, cycles",
    "told": "error, message, or what it is",
}
"""Words that no identifier contains, and what to write instead."""
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def duplicates(named: Iterable[tuple[str, Path]]) -> list[str]:
    """Return a line for each name that occurs in more than one place."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, path in named:
        places[name].append(str(path))
    return [
        f"{name}: {', '.join(sorted(where))}"
        for name, where in sorted(places.items())
        if len(where) > 1
    ]


def modules(root: Path, room: str) -> Iterator[tuple[str, Path]]:
    """Yield the base name and path of each module below a room."""
    for path in sorted((root / room).rglob("*.py")):
        if path.stem not in GENERIC:
            yield path.stem, path.relative_to(root)


def classes(root: Path, *rooms: str) -> Iterator[tuple[str, Path]]:
    """Yield the name and module of each top-level class."""
    for room in rooms:
        for _, path in modules(root, room):
            for node in ast.parse((root / path).read_text()).body:
                if isinstance(node, ast.ClassDef):
                    yield node.name, path


def dialect(path: Path) -> Iterator[str]:
    """Yield a line for each identifier of a file, and for its name, that contains such a word."""
    with tokenize.open(path) as file:
        named = [
            (token.string, token.start[0])
            for token in tokenize.generate_tokens(file.readline)
            if token.type == tokenize.NAME
        ]
    for name, line in ((path.stem, 1), *named):
        for word in {word.lower() for word in WORD.findall(name)} & DIALECT.keys():
            yield f"{path}:{line} {name}: write {DIALECT[word]}"


def test_module_names_are_unique() -> None:
    found = list(modules(ROOT, "hmd"))
    assert len(found) > 200
    assert not duplicates(found)


def test_class_names_are_unique() -> None:
    found = list(classes(ROOT, "hmd", "bench"))
    assert len(found) > 200
    assert not duplicates(found)


@pytest.mark.parametrize("kind", ["module", "class"])
def test_duplicates_name_in_two_files_both_listed(kind: str, tmp_path: Path) -> None:
    for room in ("heat", "decide"):
        (tmp_path / "hmd" / room).mkdir(parents=True)
        (tmp_path / "hmd" / room / "__init__.py").write_text("")
    second = "clock" if kind == "module" else "timer"
    (tmp_path / "hmd/heat/clock.py").write_text("class Clock: ...\n")
    (tmp_path / f"hmd/decide/{second}.py").write_text("class Clock: ...\nclass _Own: ...\n")
    found = modules(tmp_path, "hmd") if kind == "module" else classes(tmp_path, "hmd")
    name = "clock" if kind == "module" else "Clock"
    assert duplicates(found) == [f"{name}: hmd/decide/{second}.py, hmd/heat/clock.py"]


def test_identifiers_are_of_the_fields_words() -> None:
    files = [path for room in ("hmd", "bench", "tests") for path in (ROOT / room).rglob("*.py")]
    assert len(files) > 500
    assert not [line for path in files for line in dialect(path)]


@pytest.mark.parametrize(
    "source",
    [
        "_told = 1\n",
        "class MoveTally: ...\n",
        "def f(looks): ...\n",
        "a.is_believed\n",
        "LOOKS = 1\n",
    ],
)
def test_dialect_word_of_an_identifier_found(source: str, tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(
        f"# `told`, `looks`\nx = 'tally'\nforetold = overlooks = 1\n{source}"
    )
    (found,) = dialect(tmp_path / "file.py")
    assert found.startswith(f"{tmp_path}/file.py:4 ")
