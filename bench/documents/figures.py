# SPDX-License-Identifier: MIT
"""Figures in documents, filled in from docs/results/*.json.

    python -m bench.documents.figures           write the figures into the documents
    python -m bench.documents.figures --check   exit with 1 where a document differs, or a file of
                                                results does not say what it was measured with

A figure stands between two comments; the first names it in the notation of ``str.format``, over
the results by the name of their file:

    <!-- {policies[geomean_vs_best_peer]:.2f} -->1.07<!-- / -->

A table of :mod:`document_tables` stands between ``<!-- table NAME -->`` and ``<!-- / table -->``.
What no file has as a figure of its own is in :mod:`document_derived`.

A format that ends in ``%`` prints as in ``0.7 %``. A column of a list is ``[*]``, reduced by
``!min``, ``!max`` or ``!len``: ``{estimator[cases][*][error]!max:.1%}``.

Figures of documents that docs/results/*.json have only in parts: means over some cases, sleep.

Takes the results by the name of their file, gives further ones by a name of their own;
:mod:`bench.documents.figures` places them: ``{comparison[over_damon][1:2]:.2f}``.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.compare.systems import HMD_DEFAULT
from bench.compare.tables import geomean
from bench.documents.tables import TABLES
from bench.learned_policy.in_guest import LEARNED, vs_best_peer

_DAMON: Final = "damon"

_REDUCTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {"min": min, "max": max, "len": len}
_FIGURE = re.compile(r"(?<!`)(<!-- \{(?P<name>[^}]+)\} -->)(?P<value>.*?)(<!-- / -->)")

_TABLE = re.compile(
    r"(<!-- table (?P<name>\w+) -->\n\n)(?P<value>.*?)\n*(<!-- / table -->)", re.DOTALL
)

_NAME = re.compile(
    r"(?P<file>\w+)(?P<path>(\[[^\]]+\])*)(!(?P<reduce>min|max|len))?(:(?P<format>.*))?"
)


def derived(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the derived results, as far as the files that they are made of are there."""
    made: dict[str, Any] = {}
    if "policies" in results:
        made["comparison"] = comparison(results["policies"])
    if rows := results.get("learned", {}).get("guest"):
        made["learned_guest"] = learned_guest(rows)
    return made


def learned_guest(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the runtime of the best peer over that of ``learned``, and of hmd's default policy.

    Geometric means over the programs that were held out, in the emulated machine.
    """
    return {
        "over_best_peer": geomean(vs_best_peer(row, LEARNED) for row in rows),
        "default_over_best_peer": geomean(vs_best_peer(row, HMD_DEFAULT) for row in rows),
    }


def comparison(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures of the comparison with other systems, by modelled time.

    By ratio and over the programs that ran under both: ``over_damon`` is DAMON's runtime over that
    of the default policy, the geometric mean; ``damon_bytes`` what it moves, over what that moves;
    ``damon_ahead`` the number of programs that are faster under DAMON. ``most_asleep`` is by system
    the largest share of its time that a program slept, of the cases in which it is known.
    """
    found: dict[str, Any] = {"over_damon": {}, "damon_bytes": {}, "damon_ahead": {}}
    for ratio in document["ratios"]:
        ours = _of(document, ratio, document["default"])
        both = [(case, ours[p]) for p, case in _of(document, ratio, _DAMON).items() if p in ours]
        if not both:
            continue
        speeds = [theirs["modelled_seconds"] / case["modelled_seconds"] for theirs, case in both]
        found["over_damon"][ratio] = math.exp(sum(map(math.log, speeds)) / len(speeds))
        found["damon_ahead"][ratio] = sum(speed < 1 for speed in speeds)
        moved = [sum(pair[side]["migrated_bytes"] for pair in both) for side in (0, 1)]
        if moved[1]:
            found["damon_bytes"][ratio] = moved[0] / moved[1]
    found["most_asleep"] = {}
    for case in document["cases"]:
        if case.get("asleep_seconds") is not None:
            share = case["asleep_seconds"] / case["modelled_seconds"]
            most = found["most_asleep"].get(case["system"], 0.0)
            found["most_asleep"][case["system"]] = max(most, share)
    return found


def _of(document: Mapping[str, Any], ratio: str, system: str) -> dict[str, Any]:
    """Return the cases of a system at a ratio, by program."""
    return {
        case["program"]: case
        for case in document["cases"]
        if (case["ratio"], case["system"]) == (ratio, system)
    }


ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "docs/results"


def results(folder: Path = RESULTS) -> dict[str, Any]:
    """Return the documents of a folder of results, by their names, and what is derived of them."""
    found = {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
    return found | derived(found)


MEASURED_WITH: Final[Mapping[str, str]] = {
    "command": r"(python -m bench\.|make )\S.*",
    "commit": r"[0-9a-f]{7,40}(-dirty)?",
    "host": r".+",
    "date": r"20\d\d-\d\d-\d\d",
}
"""What each file of results says: forms as :func:`bench.documents.markdown.measured_with` has."""


def unexplained(document: Mapping[str, Any]) -> list[str]:
    """Return which of ``MEASURED_WITH`` a file of results lacks, itself and in one of its parts."""
    parts = [part for part in document.values() if isinstance(part, dict) and "command" in part]
    places = [document] if "command" in document or not parts else parts
    return [
        name
        for name, form in MEASURED_WITH.items()
        if not all(re.fullmatch(form, str(place.get(name, ""))) for place in places)
    ]


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


_REPAIR: Final = "measure it again; its bench writes them (bench.documents.markdown.measured_with)"


def main() -> int:
    """Fill in or check all documents; returns the exit code."""
    parser = argparse.ArgumentParser(description="Fill in the documents' figures.")
    parser.add_argument("--check", action="store_true", help="change nothing, report differences")
    check, found, code = parser.parse_args().check, results(), 0
    for name, document in found.items() if check else ():
        if (RESULTS / f"{name}.json").exists() and (lacking := unexplained(document)):
            print(f"docs/results/{name}.json: no {', '.join(lacking)}: {_REPAIR}")
            code = 1
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
