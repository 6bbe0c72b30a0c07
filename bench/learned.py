"""The learned policy on programs that its training never saw.

    python -m bench.learned [--programs NAME,...] [--ratios 1:2,...] [--seeds N] [--publish]

Takes recorded programs of the suite; gives runtimes of first touch, of no moves with samples at
their cost, of the rules and of the learned policy, with the guard that the daemon has and without.
The network that runs a program was fitted to rows of all other programs (leave one out). Rows are
collected once for each program and round: in the first round the default policy moves its pages, in
the second the network that has not seen the program. So another network's rows of the second round
depend on where a network that knows the program moved their pages, and on nothing else of it.

Prints a table and writes build/learned.json; results of cases that are not named are kept. Rows and
networks are kept in build/learned/, so that an interrupted run continues. ``--ship FILE`` instead
writes the network of all programs, which takes some 20 minutes of CPU, and a minute per program for
the recordings the first time. ``--preset`` and ``--without`` run another machine, or networks
without some features. All cases take some two hours of CPU with three seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.compare.bounds import COMMITTED as BOUNDS
from bench.compare.bounds import PROGRAMS, SAMPLING, SETTINGS, fast_pages
from bench.compare.comparison_case import RATIOS
from bench.compare.policies import ROOT, SUITE
from bench.compare.testbed import PRESET
from bench.learned_summary import mean_speeds, summary
from bench.suite.ground_truth import recorded
from hmd.decide import registry
from hmd.decide.feature_kernel import FEATURES
from hmd.decide.plan import Policy
from hmd.emulate.preset import load
from hmd.errors import HmdError
from hmd.learn.perceptron import fit_network
from hmd.learn.training import make_policy, weights_of
from hmd.learn.training_rows import HEADROOM_BYTES, RowRequest, TrainingRows, collect_rows
from hmd.simulate.known_misses import MissValues
from hmd.simulate.simulation import SimulationSettings, simulate

OUTPUT = ROOT / "build" / "learned.json"
PUBLISHED = ROOT / "docs" / "results" / "learned.json"
FOLDER = ROOT / "build" / "learned"

HORIZON_TICKS: Final = 8
SEEDS: Final = 3
_ROWS_MOST: Final = 12_000  # of a program and round
_EPOCHS: Final = 4
_HIDDEN: Final = (16, 8)
_TESTED: Final = 0.1


@dataclass(frozen=True, slots=True)
class RowRun:
    """A run that rows are collected from: policy, its price of a move in ns, and ratio."""

    policy: str
    move_ns: float
    ratio: str


RUNS: Final = (
    (RowRun("benefit", 3000, "1:2"), RowRun("none", 0, "1:8"), RowRun("benefit", 3000, "1:8")),
    (RowRun("learned", 3000, "1:2"), RowRun("learned", 1500, "1:8")),
)
"""The runs of each round."""


class HeldOutStudy:
    """Rows, networks and runtimes of all programs.

    Networks take the features ``without`` as 0, for ablations.
    """

    def __init__(self, preset: str = PRESET, without: Sequence[str] = ()) -> None:
        self._preset, self._without = load(preset), tuple(sorted(without))
        self._folder = FOLDER / "-".join(("without", *self._without)) if without else FOLDER
        self._folder.mkdir(parents=True, exist_ok=True)

    def network(self, rounds: int, held_out: str | None) -> Path:
        """Return the file of the network that has not seen a program; None: it saw all."""
        path = self._folder / f"round-{rounds}-{held_out or 'all'}.npz"
        if not path.exists():
            _say(f"fitting round {rounds + 1}, without {held_out}")
            seen = [name for name in PROGRAMS if name != held_out]
            rows = TrainingRows.joined(
                [self._rows(name, number) for name in seen for number in range(rounds + 1)]
            )
            unused = [FEATURES.index(name) for name in self._without]
            rows.features[:, unused] = 0
            tested = np.random.default_rng(1).random(len(rows)) < _TESTED
            train, test = (rows.take(np.flatnonzero(part)) for part in (~tested, tested))
            fitted = fit_network(train, test, _HIDDEN, _EPOCHS, seed=1)
            about = f"{len(rows):,} rows of {len(seen)} programs of the suite, {rounds + 1} rounds"
            weights_of(fitted, HORIZON_TICKS, rows, about).write(path)
        return path

    def cases(self, name: str, ratios: Sequence[str], seeds: int) -> list[dict[str, Any]]:
        """Return a program's cases: seconds by policy and seed, and mean MiB moved."""
        stream = recorded(name, SUITE, _say).stream
        weights = {"weights": str(self.network(len(RUNS) - 1, name))}
        found = []
        for ratio in ratios:
            _say(f"{name} {ratio}")
            pages = fast_pages(stream, ratio)
            runs: dict[str, list[tuple[float, int]]] = {}
            for seed in range(1, seeds + 1):
                made = {
                    "none": registry.make("none"),
                    "histogram": _rule("histogram"),
                    registry.DEFAULT: _rule(registry.DEFAULT),
                    "learned": _learned(weights, True),
                    "learned, unguarded": _learned(weights, False),
                }
                if seed == 1:
                    made = {"first touch": registry.make("none"), **made}
                for label, policy in made.items():
                    settings = _settings(seed, free=label == "first touch")
                    run = simulate(stream, self._preset, pages, policy, settings)
                    runs.setdefault(label, []).append((run.runtime_s, run.moved_bytes >> 20))
            found.append(
                {
                    "program": name,
                    "ratio": ratio,
                    "preset": self._preset.name,
                    "seconds": {k: float(np.mean([s for s, _ in v])) for k, v in runs.items()},
                    "moved_mib": {k: round(np.mean([m for _, m in v])) for k, v in runs.items()},
                    "by_seed": {k: [round(s, 6) for s, _ in v] for k, v in runs.items()},
                }
            )
        return found

    def _rows(self, name: str, number: int) -> TrainingRows:
        """Return a program's rows of a round."""
        path = self._folder / f"rows-{name}-{number}.npz"
        if number == 0:
            path = FOLDER / path.name
        if not path.exists():
            stream = recorded(name, SUITE, _say).stream
            values = MissValues(stream, self._preset)
            parts = []
            for position, run in enumerate(RUNS[number]):
                _say(f"round {number + 1}: {name}, {run.policy} {run.ratio}")
                given: dict[str, float | str] = {}
                if run.policy != "none":
                    given["move_ns"] = run.move_ns
                if run.policy == "learned":
                    given["weights"] = str(self.network(number - 1, name))
                seed = 10 * number + position
                parts.append(
                    collect_rows(
                        stream,
                        self._preset,
                        fast_pages(stream, run.ratio),
                        make_policy(run.policy, **given),
                        _settings(seed + 50),
                        RowRequest(PROGRAMS.index(name), HORIZON_TICKS, seed),
                        values,
                    )
                )
            TrainingRows.joined(parts).write(path)
        rows = TrainingRows.read(path)
        return rows.take(np.random.default_rng(0).permutation(len(rows))[:_ROWS_MOST])


def main() -> int:
    """Train, simulate the requested cases; print and write all results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="separated by commas")
    parser.add_argument("--ratios", default=",".join(RATIOS), help="separated by commas")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds of samples")
    parser.add_argument("--preset", default=PRESET, help="the machine to run on")
    parser.add_argument("--without", default="", help="features not used, separated by commas")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="default: build/learned.json")
    parser.add_argument("--publish", action="store_true", help=f"also update {PUBLISHED.name}")
    parser.add_argument("--ship", type=Path, help="write the network of all programs to this file")
    args = parser.parse_args()
    known: list[dict[str, Any]] = []
    if args.output.exists():
        known = json.loads(args.output.read_text())["heldout"]
    try:
        if args.ship is not None:
            args.ship.write_bytes(HeldOutStudy().network(len(RUNS) - 1, None).read_bytes())
            return 0
        study = HeldOutStudy(args.preset, [name for name in args.without.split(",") if name])
        for program in args.programs.split(","):
            found = study.cases(program, args.ratios.split(","), args.seeds)
            new = {(case["program"], case["ratio"]) for case in found}
            known = [case for case in known if (case["program"], case["ratio"]) not in new] + found
            known.sort(key=lambda case: (case["program"], RATIOS.index(case["ratio"])))
            bounds = json.loads(BOUNDS.read_text())["cases"]
            args.output.write_text(json.dumps(summary(known, bounds), indent=1) + "\n")
    except HmdError as error:
        print(f"learned: {error}", file=sys.stderr)
        return int(error.exit_code)
    if args.publish:
        # Measured by other commands, or not yet.
        others: dict[str, Any] = {"decision_ms_100k": None, "geomean_vs_tuned": None, "guest": []}
        before = json.loads(PUBLISHED.read_text())
        kept = {name: before.get(name, empty) for name, empty in others.items()}
        found = json.loads(args.output.read_text()) | kept
        PUBLISHED.write_text(json.dumps(found, indent=1) + "\n")
    _print(known)
    return 0


def _print(cases: Sequence[Mapping[str, Any]]) -> None:
    print("times first touch (MiB moved)")
    for case in cases:
        seconds, moved = case["seconds"], case["moved_mib"]
        cells = [
            f"{name} {seconds['first touch'] / seconds[name]:.3f} ({moved[name]})"
            for name in seconds
            if name != "first touch"
        ]
        print(f"{case['program'] + ' ' + case['ratio']:24}" + "  ".join(cells))
    print(mean_speeds(cases))


def _rule(name: str) -> Policy:
    return make_policy(name)


def _learned(weights: Mapping[str, str], guard: bool) -> Policy:
    """Return the learned policy, as the daemon has it or without its guard."""
    headroom = {"headroom_fraction": 0.0, "headroom_bytes": HEADROOM_BYTES}
    return registry.guarded("learned", {**headroom, **weights}, guard)


def _settings(seed: int, *, free: bool = False) -> SimulationSettings:
    return replace(SETTINGS, sampling=replace(SAMPLING, seed=seed, free=free))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
