"""The default policy with the guard of moves and without it, simulated on recorded programs.

    python -m bench.guard [--recordings FOLDER] [--programs NAME,...] [--ratios 1:2,...]

Samples are at their cost, as many as the daemon takes by default, as in
:mod:`bench.learned_policy.held_out`. Prints a table and writes build/guard.json. Takes a minute of
CPU per case, and a minute per program for its recording the first time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

from bench.compare.bounds import OVERHEAD, SETTINGS, fast_pages
from bench.compare.policies import ROOT, SUITE
from bench.compare.testbed import PRESET
from bench.progress import print_progress
from bench.suite.ground_truth import recorded
from hmd.decide import registry
from hmd.emulate.preset import load
from hmd.emulate.recordings.miss_stream import MissStream
from hmd.errors import HmdError
from hmd.learn.training_rows import HEADROOM_BYTES
from hmd.simulate.simulation import simulate

OUTPUT = ROOT / "build" / "guard.json"
PROGRAMS: Final = (
    "bfs", "cg", "drift", "gups", "index", "phases", "stream", "transpose", "updates_moving",
)  # fmt: skip
GUARDED, UNGUARDED = "guarded", "unguarded"


def case(stream: MissStream, program: str, ratio: str) -> dict[str, Any]:
    """Return seconds and MiB moved with no moves, with the guard and without it."""
    preset = load(PRESET)
    pages = fast_pages(stream, ratio)
    kept = {"headroom_fraction": 0.0, "headroom_bytes": HEADROOM_BYTES}
    policies = {
        "none": registry.make("none"),
        UNGUARDED: registry.guarded(registry.DEFAULT, kept, False),
        GUARDED: registry.guarded(registry.DEFAULT, kept, True),
    }
    runs = {
        label: simulate(stream, preset, pages, policy, SETTINGS)
        for label, policy in policies.items()
    }
    return {
        "program": program,
        "ratio": ratio,
        "seconds": {label: run.runtime_s for label, run in runs.items()},
        "moved_mib": {label: run.moved_bytes >> 20 for label, run in runs.items()},
    }


def summary(cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the file's content: the cases, with means and worst cases of speeds."""
    times = [case["seconds"] for case in cases]

    def worst(of: str) -> float:
        return round(float(min(each["none"] / each[of] for each in times)), 4)

    gains = [each[UNGUARDED] / each[GUARDED] for each in times]
    return {
        "command": "python -m bench.guard",
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
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="separated by commas")
    parser.add_argument("--ratios", default="1:8", help="separated by commas")
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
                cases.append(case(stream, program, ratio))
                OUTPUT.parent.mkdir(exist_ok=True)
                OUTPUT.write_text(json.dumps(summary(cases), indent=1) + "\n")
    except HmdError as error:
        print(f"guard: {error}", file=sys.stderr)
        return int(error.exit_code)
    for one in cases:
        speeds = {n: one["seconds"]["none"] / one["seconds"][n] for n in (UNGUARDED, GUARDED)}
        cells = [f"{name} {speed:.3f} ({one['moved_mib'][name]})" for name, speed in speeds.items()]
        print(f"{one['program'] + ' ' + one['ratio']:24}" + "  ".join(cells))
    print({key: value for key, value in summary(cases).items() if key != "cases"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
