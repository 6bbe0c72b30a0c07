# SPDX-License-Identifier: MIT
"""Costs of the daemon's stages and of the timing model, as one table.

    make bench; python -m bench.stages.stage_costs --publish

Takes what the other benchmarks of this folder wrote to build/, writes build/stages.json: rows of
name, value and unit. ``--publish`` also writes docs/results/stages.json, from which documents have
the table. A row is the best of several runs, of CPU time where the
benchmark measures that.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.documents.markdown import measured_with
from bench.documents.markdown import table as markdown_table
from hmd.base.errors import HmdError, MissingError
from hmd.base.untrusted_files import parse_json

ROOT: Final = Path(__file__).resolve().parents[2]
BUILD: Final = ROOT / "build"
OUTPUT: Final = BUILD / "stages.json"
PUBLISHED: Final = ROOT / "docs" / "results" / "stages.json"

_RING: Final = {
    "drain": "samples read from a ring, each",
    "read": "samples read and assigned to processes, each",
    "nodes": "samples assigned to nodes, each",
}
_SERVICE: Final = {
    "start": "service: start to ready",
    "start_cpu": "service: CPU of its start",
    "reload": "service: reload",
    "stop": "service: stop, following a process of 256 MiB",
    "idle": "service: share of a CPU with nothing to move",
    "resident": "service: resident memory",
}


class StageCost(NamedTuple):
    """A figure in its unit; the unit ``share`` is a part of 1, an empty one a count."""

    name: str
    value: float
    unit: str


def main() -> int:
    """Collect, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--publish", action="store_true", help=f"also write {PUBLISHED.name}")
    args = parser.parse_args()
    try:
        costs = list(stage_costs(BUILD))
    except HmdError as error:
        print(f"stage-costs: {error}", file=sys.stderr)
        return int(error.exit_code)
    rows = [each._asdict() for each in costs]
    document = {
        **measured_with(),
        "before": "make bench",
        "cpu": cpu_model(),
        "rows": rows,
    }
    for path in (OUTPUT, *([PUBLISHED] if args.publish else ())):
        path.write_text(json.dumps(document, indent=1) + "\n")
    print(table(rows))
    return 0


def stage_costs(build: Path) -> Iterator[StageCost]:
    """Return the rows of all benchmarks whose files are in ``build``; MissingError without one."""
    for each in _read(build, "heat")["figures"]:
        yield StageCost(each["name"], each["value"], each["unit"])
    for name, value in _read(build, "ring")["ns_per_sample"].items():
        yield StageCost(_RING[name], value, "ns")
    for each in _read(build, "metrics"):
        yield StageCost(f"metrics: {each['name']}", each["best"], each["unit"])
    scan = _read(build, "scan")
    for name, row in scan["selectors"].items():
        label = f"scan of {scan['processes']:,} processes by {name}"
        yield StageCost(label, row["settled_ms"], "ms")
    for name, row in _read(build, "service")["figures"].items():
        yield StageCost(_SERVICE[name], row["best"], row["unit"])
    for name, value in _read(build, "timing")["ns_per_access"].items():
        yield StageCost(f"timing model: {name}", value, "ns")


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as Markdown."""
    cells = [[each["name"], _measured(each["value"], each["unit"])] for each in rows]
    return markdown_table(["what", "measured"], cells, text=1)


def cpu_model() -> str:
    """Return the name of the CPU, as the kernel has it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "unknown")


def _measured(value: float, unit: str) -> str:
    if unit == "share":
        return f"{value:.1%}".replace("%", " %")
    digits = 0 if value >= 100 else 1 if value >= 1 else 3
    return f"{value:,.{digits}f} {unit}".rstrip()


def _read(build: Path, name: str) -> Any:
    path = build / f"{name}.json"
    if not path.exists():
        raise MissingError(f"there is no {path}: run 'make bench' first")
    return parse_json(path.read_text())


if __name__ == "__main__":
    sys.exit(main())
