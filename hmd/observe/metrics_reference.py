"""The tables of docs/reference/metrics.md, made from the families of metrics.

``python -m hmd.observe.metrics_reference`` writes them; a test tells where that is due.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hmd.migrate.move_status import FAILURES, MoveStatus
from hmd.observe.counters import DIRECTIONS, DURATION_BOUNDS_S, MAX_TARGETS, OTHER
from hmd.observe.families import SECTIONS
from hmd.observe.metric_family import Family
from hmd.observe.snapshot import HEAT_LOG2
from hmd.observe.tick_record import Stage

FILE = Path(__file__).parents[2] / "docs/reference/metrics.md"

MARK = "<!-- From here on made by python -m hmd.observe.metrics_reference -->\n"
"""What is above it in the file is written by hand."""

REASONS = {
    MoveStatus.ALREADY_THERE: "on its target before hmd came",
    MoveStatus.WOULD_MOVE: "a dry run: it would have been tried",
    MoveStatus.DEFERRED: "the budget of bytes or of time was spent first",
    MoveStatus.BLACKLISTED: "failed not long ago; waits for its next chance",
    MoveStatus.SKIPPED: "a mapping whose pages stay where they are",
    MoveStatus.DUPLICATE: "the plan named it twice",
    MoveStatus.NOT_PRESENT: "not mapped, swapped out, or never touched",
    MoveStatus.BUSY: "pinned or isolated, or the kernel gave up on it",
    MoveStatus.NO_MEMORY: "the target node is full",
    MoveStatus.SHARED: "mapped by several processes, and `migrate: move_all` is off",
    MoveStatus.UNMOVABLE: "the zero page, or a mapping that cannot migrate",
    MoveStatus.GONE: "the process has exited",
    MoveStatus.INVALID: "a kernel thread, or flags that the kernel does not know",
    MoveStatus.CPUSET: "the process's cpuset lacks the target node",
    MoveStatus.OFFLINE: "the target node has no memory",
    MoveStatus.PERMISSION: "CAP_SYS_PTRACE is missing, or CAP_SYS_NICE for `move_all`",
    MoveStatus.OTHER: "any other error",
}
"""What became of planned pages that did not move."""


def reference() -> str:
    """Return what follows ``MARK`` in docs/reference/metrics.md."""
    return "\n".join([*_sections(), *_labels(), *_reasons()])


def _sections() -> Iterator[str]:
    for section in SECTIONS:
        yield f"## {section.title}\n"
        yield "| name | type | labels | unit | meaning |"
        yield "|---|---|---|---|---|"
        yield from (_row(family) for family in section.families)
        yield ""


def _row(family: Family) -> str:
    name = f"{family.name}_total" if family.kind == "counter" else family.name
    labels = ", ".join(f"`{label}`" for label in family.labels) or "-"
    return f"| `{name}` | {family.kind} | {labels} | {family.unit or '-'} | {family.meaning} |"


def _labels() -> Iterator[str]:
    yield "## Values of labels\n"
    yield "- `tier`: 0 is the fastest; `unknown` where a sample's page was not yet found."
    yield f"- `stage`: {', '.join(Stage)}. `direction`: {', '.join(DIRECTIONS)}."
    yield f"- `target`: names in the configuration; those after the {MAX_TARGETS}th are `{OTHER}`."
    yield (
        "- `heat_log2`: b is from 2^b accesses a tick to twice that, from "
        f"{HEAT_LOG2[0]} to {HEAT_LOG2[-1]}; the ends have all that is beyond."
    )
    yield f"- `le` of durations: {', '.join(map(str, DURATION_BOUNDS_S))} seconds.\n"


def _reasons() -> Iterator[str]:
    yield "## Reasons\n"
    yield "Of `hmd_unmoved_pages_total` and `hmd_move_failures_total`.\n"
    yield "| reason | counted as | meaning |"
    yield "|---|---|---|"
    for status, meaning in REASONS.items():
        counted = "failure" if status in FAILURES else "unmoved"
        yield f"| `{status.name.lower()}` | {counted} | {meaning} |"
    yield ""


if __name__ == "__main__":
    FILE.write_text(FILE.read_text().split(MARK)[0] + MARK + "\n" + reference())
