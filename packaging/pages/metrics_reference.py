# SPDX-License-Identifier: MIT
"""Writes docs/reference/metrics.md and the dashboard's reasons from the definitions in hmd.

Run as ``python packaging/pages/metrics_reference.py [FILE]``; FILE is the whole page of metrics,
alone; by default both are written in their places. A test fails where one is out of date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import checkout  # noqa: F401, before hmd

from hmd.metrics.counters import DIRECTIONS, OTHER
from hmd.metrics.definitions import SECTIONS, Family
from hmd.metrics.status import DURATION_BOUNDS_S, HEAT_LOG2, MAX_TARGETS, Stage
from hmd.migrate.status import FAILURES, MoveStatus

FILE = Path(__file__).parents[2] / "docs/reference/metrics.md"

MARK = "<!-- From here on made by python packaging/pages/metrics_reference.py -->\n"
"""The text above the mark is not generated."""

PAGE_FILE = Path(__file__).parents[2] / "hmd/dashboard/page/reasons.js"


def reference() -> str:
    """Return what follows ``MARK`` in docs/reference/metrics.md."""
    return "\n".join([*_sections(), *_labels(), *_reasons()])


def _sections() -> Iterator[str]:
    for title, families in SECTIONS.items():
        yield f"## {title}\n"
        yield "| name | type | labels | unit | meaning |"
        yield "|---|---|---|---|---|"
        yield from (_row(family) for family in families)
        yield ""


def _row(family: Family) -> str:
    name = f"{family.name}_total" if family.kind == "counter" else family.name
    labels = ", ".join(f"`{label}`" for label in family.labels) or "-"
    return f"| `{name}` | {family.kind} | {labels} | {family.unit or '-'} | {family.meaning} |"


def _labels() -> Iterator[str]:
    yield "## Values of labels\n"
    yield "- `tier`: 0 is the fastest; `unknown` where the sampled page is not located yet."
    yield f"- `stage`: {', '.join(Stage)}. `direction`: {', '.join(DIRECTIONS)}."
    yield f"- `target`: its name; targets after the first {MAX_TARGETS} count as `{OTHER}`."
    yield (
        "- `heat_log2`: b is from 2^b accesses per second to twice that, from "
        f"{HEAT_LOG2[0]} to {HEAT_LOG2[-1]};\n  the first and last bin take the rest."
    )
    yield f"- `le` of durations: {', '.join(map(str, DURATION_BOUNDS_S))} seconds.\n"


def _reasons() -> Iterator[str]:
    yield "## Reasons\n"
    yield "Values of `reason` in `hmd_unmoved_pages_total` and `hmd_move_failures_total`.\n"
    yield "| reason | counted as | meaning |"
    yield "|---|---|---|"
    for status in MoveStatus:
        if status not in (MoveStatus.PENDING, MoveStatus.MOVED):
            counted = "failure" if status in FAILURES else "unmoved"
            yield f"| `{status.label}` | {counted} | {status.meaning} |"
    yield ""


def page_reasons() -> str:
    """Return the module of the dashboard's page with word and meaning of each reason."""
    rows = "".join(
        f"  {s.label}: {json.dumps([s.word, s.meaning.replace('`', '')])},\n" for s in MoveStatus
    )
    return (
        "// SPDX-License-Identifier: MIT\n"
        "// Made by python packaging/pages/metrics_reference.py from hmd/migrate/status.py.\n"
        f"export const REASONS = {{\n{rows}}};\n"
    )


if __name__ == "__main__":
    written = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    written.write_text(FILE.read_text().split(MARK)[0] + MARK + "\n" + reference())
    if written == FILE:
        PAGE_FILE.write_text(page_reasons())
