"""Figures in documents, filled in from docs/results/*.json.

    python -m bench.documents.figures           write the figures into the documents
    python -m bench.documents.figures --check   exit with 1 where a document differs

A figure stands between two comments; the first names it in the notation of ``str.format``, over
the results by the name of their file:

    <!-- {policies[geomean_vs_best_peer]:.2f} -->1.07<!-- / -->

A table of :mod:`document_tables` stands between ``<!-- table NAME -->`` and ``<!-- / table -->``.
What no file has as a figure of its own is in :mod:`document_derived`.

A format that ends in ``%`` prints as in ``0.7 %``. A column of a list is ``[*]``, reduced by
``!min``, ``!max`` or ``!len``: ``{estimator[cases][*][error]!max:.1%}``.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from bench.documents.derived_figures import derived
from bench.documents.tables import TABLES

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "docs/results"
_REDUCTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {"min": min, "max": max, "len": len}
_FIGURE = re.compile(r"(?<!`)(<!-- \{(?P<name>[^}]+)\} -->)(?P<value>.*?)(<!-- / -->)")
_TABLE = re.compile(
    r"(<!-- table (?P<name>\w+) -->\n\n)(?P<value>.*?)\n*(<!-- / table -->)", re.DOTALL
)
_NAME = re.compile(
    r"(?P<file>\w+)(?P<path>(\[[^\]]+\])*)(!(?P<reduce>min|max|len))?(:(?P<format>.*))?"
)


def results(folder: Path = RESULTS) -> dict[str, Any]:
    """Return the documents of a folder of results, by their names, and what is derived of them."""
    found = {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
    return found | derived(found)


def figure(name: str, found: Mapping[str, Any]) -> str:
    """Return a figure as text; ``ValueError`` where the results do not have it."""
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise ValueError(f"{name}: not of the form FILE[KEY]...:FORMAT")
    try:
        value = _value(found[parts["file"]], re.findall(r"\[([^\]]+)\]", parts["path"]))
        if parts["reduce"]:
            value = _REDUCTIONS[parts["reduce"]](value)
        text = format(value, parts["format"] or "")
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{name}: not in the results ({error})") from None
    return text[:-1] + " %" if text.endswith("%") else text


def _value(value: Any, keys: list[str]) -> Any:
    for at, key in enumerate(keys):
        if key == "*":
            rows = value.values() if isinstance(value, dict) else value
            return [_value(row, keys[at + 1 :]) for row in rows]
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


def table(name: str, found: Mapping[str, Any]) -> str:
    """Return a table as Markdown; ``ValueError`` for a name that is not in ``TABLES``."""
    if name not in TABLES:
        raise ValueError(f"{name}: no such table; there are {', '.join(sorted(TABLES))}")
    return TABLES[name](found)


def filled(text: str, found: Mapping[str, Any]) -> str:
    """Return a document with its figures as the results have them."""
    text = _TABLE.sub(lambda m: f"{m[1]}{table(m['name'], found)}\n\n{m[4]}", text)
    return _FIGURE.sub(lambda m: f"{m[1]}{figure(m['name'], found)}{m[4]}", text)


def differences(text: str, found: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return line and message of each figure that is not what the results have."""
    wrong = []
    for each in _FIGURE.finditer(text):
        value = figure(each["name"], found)
        if value != each["value"]:
            line = text.count("\n", 0, each.start()) + 1
            wrong.append((line, f"{each['name']} is {value}, not {each['value']}"))
    for each in _TABLE.finditer(text):
        if table(each["name"], found) != each["value"]:
            line = text.count("\n", 0, each.start()) + 1
            wrong.append((line, f"table {each['name']} differs from the results"))
    return wrong


def documents() -> list[Path]:
    """Return the documents that may have figures."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> int:
    """Fill in or check all documents; returns the exit code."""
    parser = argparse.ArgumentParser(description="Fill in the documents' figures.")
    parser.add_argument("--check", action="store_true", help="change nothing, report differences")
    check, found, code = parser.parse_args().check, results(), 0
    for file in documents():
        text = file.read_text()
        if not check:
            file.write_text(filled(text, found))
            continue
        for line, message in differences(text, found):
            print(f"{file.relative_to(ROOT)}:{line}: {message}")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
