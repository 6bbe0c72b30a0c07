"""A policy with the guard of moves and without it, simulated on recorded programs.

    python -m bench.guard [--policy NAME] [--programs NAME,...] [--ratios 1:2,...] [--publish]

Samples are at their cost, as many as the daemon takes by default, as in
:mod:`bench.learned_policy.held_out`. Prints a table and writes build/guard.json. Takes some 5 s
of CPU per case, and a minute per program for its recording the first time. ``--publish`` also
writes docs/results/guard.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

from bench.compare.bounds import OVERHEAD, PROGRAMS, SETTINGS, fast_pages
from bench.compare.comparison_case import RATIOS
from bench.compare.policies import ROOT, SUITE
from bench.compare.testbed import PRESET
from bench.documents.measured_commit import commit
from bench.progress import print_progress
from bench.suite.ground_truth import recorded
from hmd.decide import registry
from hmd.emulate.preset import load
from hmd.emulate.recordings.miss_stream import MissStream
from hmd.errors import HmdError
from hmd.learn.training_rows import HEADROOM_BYTES
from hmd.simulate.simulation import simulate

OUTPUT = ROOT / "build" / "guard.json"
PUBLISHED = ROOT / "docs" / "results" / "guard.json"
POLICY: Final = "histogram"
"""The rule that has the guard by default."""

GUARDED, UNGUARDED = "guarded", "unguarded"


def case(stream: MissStream, program: str, ratio: str, policy: str = POLICY) -> dict[str, Any]:
    """Return seconds and MiB moved with no moves, with the guard and without it."""
    preset = load(PRESET)
    pages = fast_pages(stream, ratio)
    kept = {"headroom_fraction": 0.0, "headroom_bytes": HEADROOM_BYTES}
    policies = {
        "none": registry.make("none"),
        UNGUARDED: registry.guarded(policy, kept, False),
        GUARDED: registry.guarded(policy, kept, True),
    }
    runs = {
        label: simulate(stream, preset, pages, each, SETTINGS) for label, each in policies.items()
    }
    return {
        "program": program,
        "ratio": ratio,
        "seconds": {label: run.runtime_s for label, run in runs.items()},
        "moved_mib": {label: run.moved_bytes >> 20 for label, run in runs.items()},
    }


def summary(cases: Sequence[Mapping[str, Any]], policy: str = POLICY) -> dict[str, Any]:
    """Return the file's content: the cases, with means and worst cases of speeds."""
    times = [case["seconds"] for case in cases]

    def worst(of: str) -> float:
        return round(float(min(each["none"] / each[of] for each in times)), 4)

    gains = [each[UNGUARDED] / each[GUARDED] for each in times]
    return {
        "command": "python -m bench.guard --publish",
        "commit": commit(),
        "policy": policy,
        "preset": PRESET,
        "overhead": OVERHEAD,
        "geomean_vs_unguarded": round(geometric_mean(gains), 4),
        "worst_vs_unguarded": round(min(gains), 4),
        "worst_vs_none": worst(GUARDED),
        "worst_of_unguarded_vs_none": worst(UNGUARDED),
        "cases": list(cases),
    }


def main() -> int:
    """Simulate the requested cases; print and write all results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recordings", type=Path, help="folder of recordings (PROGRAM.npz)")
    parser.add_argument("--policy", default=POLICY, help=f"default: {POLICY}")
    parser.add_argument("--publish", action="store_true", help=f"also write {PUBLISHED.name}")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="separated by commas")
    parser.add_argument("--ratios", default=",".join(RATIOS), help="separated by commas")
    args = parser.parse_args()
    cases: list[dict[str, Any]] = []
    try:
        for program in args.programs.split(","):
            stream = (
                MissStream.read(args.recordings / f"{program}.npz")
                if args.recordings is not None
                else recorded(program, SUITE, print_progress).stream
            )
            for ratio in args.ratios.split(","):
                print_progress(f"{program} {ratio}")
                cases.append(case(stream, program, ratio, args.policy))
                _write(OUTPUT, cases, args.policy)
        if args.publish:
            _write(PUBLISHED, cases, args.policy)
    except HmdError as error:
        print(f"guard: {error}", file=sys.stderr)
        return int(error.exit_code)
    for one in cases:
        speeds = {n: one["seconds"]["none"] / one["seconds"][n] for n in (UNGUARDED, GUARDED)}
        cells = [f"{name} {speed:.3f} ({one['moved_mib'][name]})" for name, speed in speeds.items()]
        print(f"{one['program'] + ' ' + one['ratio']:24}" + "  ".join(cells))
    print({key: value for key, value in summary(cases, args.policy).items() if key != "cases"})
    return 0


def _write(path: Path, cases: Sequence[Mapping[str, Any]], policy: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(summary(cases, policy), indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
