# SPDX-License-Identifier: MIT
"""Bounds by simulation: what exact knowledge of a program's misses would bring.

    python -m bench.compare.bounds [--programs NAME,...] [--ratios 1:2,...] [--publish]

Gives speeds relative to first touch of no moves, of the policies ``histogram`` and ``benefit`` with
samples at their cost, as many as the daemon takes by default, of ``benefit`` with free samples, of
the static oracle, of ``exact-past`` and of ``clairvoyant`` (:mod:`bench.known_misses`). The
fast node has room for a third, a ninth or a seventeenth of a program's pages, as in
:mod:`bench.learned_policy.held_out`. Prints a table and writes build/bounds.json; results of
programs that are not named are kept. ``--publish`` also writes docs/results/bounds.json. A program
takes about two minutes of CPU, and a minute for its recording the first time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean
from typing import Any, Final

from bench.compare.comparison_case import RATIOS
from bench.compare.guest_services import PACE
from bench.compare.policies import ROOT, SUITE
from bench.compare.simulations import DELAY_S, UNSAMPLED, made
from bench.compare.testbed import DILATION, PRESET
from bench.documents.markdown import measured_with
from bench.known_misses import bounds
from bench.progress import print_progress
from bench.suite.ground_truth import recorded
from hmd.base.errors import HmdError
from hmd.emulate.preset import load
from hmd.emulate.recordings.misses import MissStream
from hmd.learn.rows import MissValues
from hmd.policy import registry
from hmd.simulate.pmu import PmuSettings
from hmd.simulate.simulation import SimulationSettings, baselines, simulate

OUTPUT = ROOT / "build" / "bounds.json"
COMMITTED = ROOT / "docs" / "results" / "bounds.json"

PROGRAMS: Final = (
    "betweenness", "bfs", "btree", "cg", "compress", "drift", "gups", "hydro", "index", "pagerank",
    "phases", "sat", "stream", "transpose", "updates_moving", "updates_scattered", "xslookup",
)  # fmt: skip
"""The suite's programs of one thread with up to 35,000 pages; servers and threads are left out."""

OVERHEAD: Final = 0.01
"""Share of a program's time that samples may take: the default of ``sample.overhead``."""

SAMPLING = PmuSettings(overhead=OVERHEAD)
"""As many samples as the daemon takes by default."""

SETTINGS = SimulationSettings(
    tick_s=PACE.tick_s / DILATION, delay_s=DELAY_S, found_s=0.005, sampling=SAMPLING
)

FREE_SAMPLES = f"{registry.DEFAULT}, free samples"


def cases(program: str, ratios: Sequence[str]) -> list[dict[str, Any]]:
    """Return a program's cases, each with seconds and MiB moved by name."""
    stream, preset = recorded(program, SUITE, print_progress).stream, load(PRESET)
    values = MissValues(stream, preset)
    free = replace(SETTINGS, sampling=replace(SAMPLING, free=True))
    found = []
    for ratio in ratios:
        pages = fast_pages(stream, ratio)
        print_progress(f"{program}:{ratio}")
        fixed = baselines(stream, preset, pages)
        runs = {
            "first touch": simulate(stream, preset, pages, made(UNSAMPLED), free),
            "none": simulate(stream, preset, pages, made("none"), SETTINGS),
            "histogram": simulate(stream, preset, pages, made("histogram"), SETTINGS),
            registry.DEFAULT: simulate(stream, preset, pages, made(registry.DEFAULT), SETTINGS),
            FREE_SAMPLES: simulate(stream, preset, pages, made(registry.DEFAULT), free),
        }
        known = bounds(stream, preset, pages, SETTINGS, values)
        runs |= {name: bound.run for name, bound in known.items()}
        seconds = {name: run.runtime_s for name, run in runs.items()} | {"oracle": fixed["oracle"]}
        moved = {name: run.moved_bytes >> 20 for name, run in runs.items()}
        found.append({"program": program, "ratio": ratio, "seconds": seconds, "moved_mib": moved})
    return found


def fast_pages(stream: MissStream, ratio: str) -> int:
    """Return how many of a program's pages fit on the fast node at a ratio such as ``1:8``."""
    return stream.user_pages // (1 + int(ratio.partition(":")[2]))


def summary(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the file's content: the cases, with geometric means of speeds by name."""
    names = [name for name in found[0]["seconds"] if name != "first touch"]
    means = {name: round(geometric_mean(times(case, name) for case in found), 4) for name in names}
    return {**measured_with(), "geomean": means, "cases": list(found)}


def times(case: Mapping[str, Any], name: str) -> float:
    """Return a speed relative to first touch."""
    return float(case["seconds"]["first touch"] / case["seconds"][name])


def main() -> int:
    """Simulate the requested cases; print and write all results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="separated by commas")
    parser.add_argument("--ratios", default=",".join(RATIOS), help="separated by commas")
    parser.add_argument("--publish", action="store_true", help=f"also write {COMMITTED.name}")
    args = parser.parse_args()
    known = json.loads(OUTPUT.read_text())["cases"] if OUTPUT.exists() else []
    try:
        for program in args.programs.split(","):
            known = [case for case in known if case["program"] != program]
            known += cases(program, args.ratios.split(","))
            OUTPUT.parent.mkdir(exist_ok=True)
            OUTPUT.write_text(json.dumps(summary(known), indent=1) + "\n")
    except HmdError as error:
        print(f"bounds: {error}", file=sys.stderr)
        return int(error.exit_code)
    if args.publish:
        COMMITTED.write_text(OUTPUT.read_text())
    _print(known)
    return 0


def _print(found: Sequence[Mapping[str, Any]]) -> None:
    names = list(summary(found)["geomean"])
    print("times first touch (MiB moved)\n" + f"{'':22}" + "".join(f"{n:>26}" for n in names))
    for case in found:
        cells = [
            f"{times(case, name):.3f}"
            + (f" ({case['moved_mib'][name]})" if name in case["moved_mib"] else "")
            for name in names
        ]
        label = f"{case['program']} {case['ratio']}"
        print(f"{label:22}" + "".join(f"{cell:>26}" for cell in cells))
    means = summary(found)["geomean"]
    print(f"{'geometric mean':22}" + "".join(f"{means[name]:>26.3f}" for name in names))


if __name__ == "__main__":
    sys.exit(main())
