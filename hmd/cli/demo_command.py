# SPDX-License-Identifier: MIT
"""``hmd demo``: two programs on an emulated DRAM+PM machine, with and without hmd."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hmd.base.atomic_file import check_writable_folder
from hmd.base.errors import Exit, os_error
from hmd.cli.output import console, print_json, table, write_json

if TYPE_CHECKING:
    from hmd.emulate.demo.run import Demonstration, ProgramResult

DESCRIPTION = "Run two programs on an emulated DRAM+PM machine, with and without hmd."

EXAMPLES = """\
examples:
  hmd demo                     table, picture build/demo.png, figures build/demo.json
  hmd demo --json              the figures on standard output, for programs
  hmd demo --output /tmp/demo  write picture, figures and logs there

The two programs:
  hotset   8-byte updates, 90 % of them in a hot set that moves half-way; verifies its memory
  redis    redis-server under redis-benchmark, which requests the newest quarter of the keys
Each runs all-fast, all-slow, and twice with a fast node 10 % larger than its hot set: by first
touch and under hmd.

Exits with 1 if a word of memory is wrong.
"""

OPTIONS = """\
--output DIR = build
              folder of the results (default: build)
--json        print demo.json instead of a table
"""


def run(args: argparse.Namespace) -> int:
    """Run the demonstration, write its figures and picture, print its table."""
    from hmd.emulate.demo.run import DemoSettings, demonstrate

    folder = args.output.resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_writable_folder(folder)
    except OSError as error:
        raise os_error(
            error, f"cannot write to the folder {args.output}: {error.strerror}"
        ) from None
    began = time.monotonic()

    def say(line: str) -> None:
        passed = int(time.monotonic() - began)
        print(f"[{passed // 60}:{passed % 60:02}] {line}", file=sys.stderr, flush=True)

    shown = demonstrate(folder, DemoSettings(), say)
    document = shown.as_json()
    write_json(str(folder / "demo.json"), document, sys.stdout)
    picture = _draw(shown, folder / "demo.png")
    if args.json:
        print_json(document)
    else:
        _print(shown, [str(folder / "demo.json"), *picture])
    right = all(program.integrity_ok for program in shown.programs.values())
    return Exit.OK if right else Exit.FAILURE


def _draw(shown: Demonstration, path: Path) -> list[str]:
    """Draw the hot set's heat map as hmd saw it; returns the files written."""
    from hmd.cli.plots import draw_heatmap
    from hmd.metrics.heat_map import pids

    seen = pids(shown.heat)
    if not seen:
        return []
    draw_heatmap(shown.heat, seen[0], path, title="hotset: its hot set moves half-way")
    return [str(path)]


def _print(shown: Demonstration, files: list[str]) -> None:
    from hmd.emulate.demo.run import goals

    screen = console()
    columns = ["program", "run", "ops/s", "modelled ops/s", "of all fast"]
    rows = [row for name, program in shown.programs.items() for row in _rows(name, program)]
    screen.print(table(columns, rows, right=columns[2:]))
    for name, program in shown.programs.items():
        screen.print(
            f"{name}: share of LLC misses served by the fast node "
            f"{program.fast_share_before:.0%} before, {program.fast_share_after:.0%} after; "
            f"{program.pages_promoted:,} pages promoted, {program.pages_demoted:,} demoted"
        )
    for goal in goals(shown.programs):
        screen.print(f"  {'reached' if goal.reached else 'MISSED '}  {goal.text}")
    screen.print(f"written: {', '.join(files)}")


def _rows(name: str, program: ProgramResult) -> list[list[Any]]:
    from hmd.emulate.demo.measure import Variant

    return [
        [
            name if variant is Variant.ALL_FAST else "",
            variant.value.replace("_", " "),
            f"{rates.ops_per_s:,.0f}",
            f"{rates.modelled_ops_per_s:,.0f}",
            f"{program.relative(variant, Variant.ALL_FAST):.2f}",
        ]
        for variant, rates in program.rates.items()
    ]
