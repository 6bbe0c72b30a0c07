# SPDX-License-Identifier: MIT
"""Writes the tables of docs/reference/metrics.md from the definitions of the metrics.

Run as ``python packaging/pages/metrics_reference.py [FILE]``; FILE is the whole page by default in
its place. A test fails where that is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from hmd.metrics.counters import DIRECTIONS, OTHER
from hmd.metrics.definitions import SECTIONS, Family
from hmd.metrics.status import DURATION_BOUNDS_S, HEAT_LOG2, MAX_TARGETS, Stage
from hmd.migrate.status import FAILURES, MoveStatus

FILE = Path(__file__).parents[2] / "docs/reference/metrics.md"

MARK = "<!-- From here on made by python packaging/pages/metrics_reference.py -->\n"
"""The text above the mark is not generated."""

REASONS = {
    MoveStatus.ALREADY_THERE: "was on the target node already",
    MoveStatus.WOULD_MOVE: "a dry run: the move would have been tried",
    MoveStatus.DEFERRED: "the byte or time budget was spent before its turn",
    MoveStatus.IN_BACKOFF: "failed recently; retried after a delay",
    MoveStatus.SKIPPED: "in a mapping that hmd does not move",
    MoveStatus.DUPLICATE: "occurs twice in the plan",
    MoveStatus.NOT_PRESENT: "not mapped, swapped out, or never touched",
    MoveStatus.BUSY: "pinned in memory or isolated, or the kernel gave up after retries",
    MoveStatus.NO_MEMORY: "the target node is full",
    MoveStatus.SHARED: "mapped by several processes, and `migrate: move_all` is off",
    MoveStatus.UNMOVABLE: "the zero page, or a mapping that cannot migrate",
    MoveStatus.GONE: "the process has exited",
    MoveStatus.INVALID: "a kernel thread, or flags that the kernel rejects",
    MoveStatus.BOUND: "a memory policy (MPOL_BIND) binds the page to other nodes",
    MoveStatus.CPUSET: "the process's cpuset lacks the target node",
    MoveStatus.OFFLINE: "the target node has no memory",
    MoveStatus.PERMISSION: "CAP_SYS_PTRACE is missing, or CAP_SYS_NICE for `move_all`",
    MoveStatus.NO_HUGE_PAGE: "a hugetlbfs page of 1 GiB, and the target node's pool has none free",
    MoveStatus.OTHER: "any other error",
}
"""Why planned pages did not move."""


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
    for status, meaning in REASONS.items():
        counted = "failure" if status in FAILURES else "unmoved"
        yield f"| `{status.label}` | {counted} | {meaning} |"
    yield ""


if __name__ == "__main__":
    written = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    written.write_text(FILE.read_text().split(MARK)[0] + MARK + "\n" + reference())
