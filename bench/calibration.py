# SPDX-License-Identifier: MIT
"""Calibration of the emulated machine by preset: a table, docs/results/calibration.json.

    python -m bench.calibration [PRESET,...] [--dilation X] [--publish]

Takes the presets, by default all but hbm-dram; boots and measures each
(:mod:`bench.microbenchmarks`), a minute each on an idle host, hbm-dram nine.
``--publish`` adds the presets' figures to the published ones. Exits with 1 where a figure is out of
its bounds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from bench.documents.markdown import commit, measured_with
from bench.documents.markdown import table as markdown
from bench.microbenchmarks import calibrate
from bench.progress import print_progress
from hmd.base.errors import HmdError
from hmd.emulate.preset import load

PUBLISHED: Final = Path(__file__).resolve().parents[1] / "docs/results/calibration.json"
PRESETS: Final = ("dram-pm", "dram-cxl", "three-tier")
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "dependent loads, pages of 2 MiB": ("dependent loads",),
    "dependent loads, pages of 4 KiB (page walks)": ("4 KiB pages",),
    "cost of a sample": ("sample",),
    "cost of a TLB shootdown": ("TLB shootdown",),
    "sequential read, write; random read": ("sequential read", "sequential write", "random read"),
    "loaded at 25, 50, 75, 90 %": tuple(f"loaded at {load} %" for load in (25, 50, 75, 90)),
}
"""Rows of the table by what they are called: the figures of a calibration in each."""


def table(presets: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the worst errors of each preset as a Markdown table, by kind of figure."""
    rows = []
    for name, found in presets.items():
        for group, figures in GROUPS.items():
            modelled, ratios = (
                _worst(each for each in found[kind] if each["name"] in figures)
                for kind in ("figures", "ratios")
            )
            if modelled:
                rows.append([f"`{name}`", group, modelled, ratios])
    head = ["preset", "figure", "modelled time", "slow over fast, guest time"]
    return markdown(head, rows, text=2)


def _worst(figures: Iterable[Mapping[str, Any]]) -> str:
    """Return the error that is furthest from 0, as a signed percentage; empty without figures."""
    errors = [figure["error"] for figure in figures]
    return f"{100 * max(errors, key=abs):+.1f} %" if errors else ""


def main() -> int:
    """Calibrate the presets; print the table and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("presets", nargs="?", default=",".join(PRESETS), help="PRESET,...")
    parser.add_argument("--dilation", type=float, help="guest time over modelled time")
    parser.add_argument("--publish", action="store_true", help=f"also update {PUBLISHED.name}")
    args = parser.parse_args()
    found = {}
    try:
        for name in args.presets.split(","):
            report = calibrate(load(name), dilation=args.dilation, say=print_progress)
            found[name] = {"commit": commit(), **report.document()}
    except HmdError as error:
        print(f"calibration: {error}", file=sys.stderr)
        return int(error.exit_code)
    print(table(found))
    if args.publish:
        known = json.loads(PUBLISHED.read_text())["presets"] if PUBLISHED.exists() else {}
        document = {
            **measured_with(),
            "presets": known | found,
        }
        PUBLISHED.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(each["within_bounds"] for each in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
