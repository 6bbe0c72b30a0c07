# SPDX-License-Identifier: MIT
"""The learned policy on programs that its training never saw.

    python -m bench.learned_policy.held_out [PROGRAM:RATIO:POLICY,...] [--seeds N] [--publish]

Takes recorded programs of the suite; gives runtimes of first touch, of no moves with samples at
their cost, of the rules, of the learned policy, of what exact knowledge of the past or the future
would bring, and, of six cases, of the better rule tuned for the very case
(:mod:`bench.learned_policy.runs`; needs the extra ``tune``). The
network that runs a program was fitted to rows of all other programs
(:mod:`bench.learned_policy.networks`).

Prints a table and writes build/learned.json. Each run is kept in build/learned/runs.jsonl
(:mod:`bench.learned_policy.runs`), so that an interrupted command continues, and named cases
(``cg:1:8:learned``, ``cg:1:8``, ``cg``) are added to what is known of others.
``--ship FILE`` instead writes the network of all programs, which takes some 3 minutes of CPU, and
one to two minutes per program for the recordings the first time. ``--preset`` runs another machine,
with networks of the usual one. All cases take some 50 minutes of CPU with one seed, most of them
for what exact knowledge would bring, and 5 for each more.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.compare.comparison_case import RATIOS
from bench.compare.policies import ROOT
from bench.compare.testbed import PRESET
from bench.documents.markdown import measured_with
from bench.learned_policy.networks import FOLDER, HeldOutNetworks
from bench.learned_policy.runs import (
    POLICIES,
    HeldOutRun,
    HeldOutRuns,
    mean_speeds,
    runs_of,
    summary,
)
from bench.progress import print_progress
from hmd.base.errors import HmdError
from hmd.emulate.preset import load
from hmd.simulate.executors import Journal

PUBLISHED = ROOT / "docs" / "results" / "learned.json"
JOURNAL = FOLDER / "runs.jsonl"
SEEDS: Final = 5


def main() -> int:
    """Train, simulate the requested cases; print and write all results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "cases", nargs="?", default="", help="PROGRAM:RATIO:POLICY,...; all if none"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds of samples")
    parser.add_argument("--preset", default=PRESET, help="the machine to run on")
    parser.add_argument("--output", type=Path, help="default: build/learned.json, by preset")
    parser.add_argument("--publish", action="store_true", help=f"also update {PUBLISHED.name}")
    parser.add_argument("--ship", type=Path, help="write the network of all programs to this file")
    args = parser.parse_args()
    usual = args.preset == PRESET
    output = args.output or ROOT / "build" / f"learned{'' if usual else '-' + args.preset}.json"
    try:
        networks = HeldOutNetworks(print_progress)
        if args.ship is not None:
            args.ship.write_bytes(networks.network(None).read_bytes())
            return 0
        runs = HeldOutRuns(load(args.preset), networks, Journal(JOURNAL), print_progress)
        make_all(runs, runs_of(args.cases, args.seeds))
        cases = known_cases(runs, args.seeds, args.preset)
        found = summary(cases)
        output.write_text(json.dumps(found, indent=1) + "\n")
        if args.publish:
            publish(found, None if usual else args.preset)
    except HmdError as error:
        print(f"learned: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return 130
    _print(cases)
    return 0


def make_all(runs: HeldOutRuns, chosen: Sequence[HeldOutRun]) -> None:
    """Make the runs that are not known; say what is done, and how long the rest takes."""
    missing = [run for run in chosen if runs.known(run) is None]
    left, done, begun_s = sum(run.weight for run in missing), 0.0, time.monotonic()
    for number, run in enumerate(missing):
        seconds = runs.make(run)["seconds"]
        left, done = left - run.weight, done + run.weight
        minutes = (time.monotonic() - begun_s) / done * left / 60
        print_progress(
            f"[{number + 1} of {len(missing)}] {run}: {seconds:.3f} s; about {minutes:.0f} min left"
        )


def known_cases(runs: HeldOutRuns, seeds: int, preset: str) -> list[dict[str, Any]]:
    """Return the cases of which a run is known, with means over the seeds that are."""
    found: dict[tuple[str, str], dict[str, list[Mapping[str, Any]]]] = {}
    for run in sorted(runs_of("", seeds), key=lambda run: run.seed):
        result = runs.known(run)
        if result is not None:
            found.setdefault((run.program, run.ratio), {}).setdefault(run.policy, []).append(result)
    cases = []
    for program, ratio in sorted(found, key=lambda case: (case[0], RATIOS.index(case[1]))):
        results = found[program, ratio]
        labels = [label for label in POLICIES if label in results]
        seconds = {label: [each["seconds"] for each in results[label]] for label in labels}
        moved = {label: [each["moved_mib"] for each in results[label]] for label in labels}
        cases.append(
            {
                "program": program,
                "ratio": ratio,
                "preset": preset,
                "seconds": {label: sum(s) / len(s) for label, s in seconds.items()},
                "moved_mib": {label: round(sum(m) / len(m)) for label, m in moved.items()},
                "by_seed": {label: [round(each, 6) for each in s] for label, s in seconds.items()},
            }
        )
    return cases


def publish(found: Mapping[str, Any], variant: str | None) -> None:
    """Write results to the published file, those of a variant under its name.

    What other commands measured, or nothing yet, stays: the time of a decision, runs in the guest.
    """
    before = json.loads(PUBLISHED.read_text())
    others: dict[str, Any] = {
        "decision_ms_100k": None, "guest": [], "variants": {},
    }  # fmt: skip
    kept = {name: before.get(name, empty) for name, empty in others.items()}
    if variant is None:
        made = {**found, **kept, **measured_with()}
    else:
        made = {**before, "variants": {**kept["variants"], variant: found}}
    PUBLISHED.write_text(json.dumps(made, indent=1) + "\n")


def _print(cases: Sequence[Mapping[str, Any]]) -> None:
    print("times first touch (MiB moved)")
    for case in cases:
        seconds, moved = case["seconds"], case["moved_mib"]
        if "first touch" in seconds:
            cells = [
                f"{name} {seconds['first touch'] / seconds[name]:.3f} ({moved[name]})"
                for name in seconds
                if name != "first touch"
            ]
            print(f"{case['program'] + ' ' + case['ratio']:24}" + "  ".join(cells))
    print(mean_speeds(cases))


if __name__ == "__main__":
    sys.exit(main())
